"""Formats values for people: names, times, sizes, and log text without invisible characters."""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from diagnoser.dialects.prefixes import split_prefix
from diagnoser.localize.checkpoints import Checkpoint
from diagnoser.model import (
    ASK_REASONS,
    MODEL_EFFECTS,
    RUNTIME_SOURCES,
    CheckpointPhase,
    Diagnosis,
    NodeActor,
    NodeEventKind,
    PlanReason,
    PlanState,
    Stage,
    changed_by_model,
)
from diagnoser.model.ids import first_id
from diagnoser.model.taxonomy import Action, Category, FailureType
from diagnoser.wording.collapse_ranks import ranges

COMMIT_SECONDS = 5.0
"""From the making of a diagnosis until every page shows it."""
PREFIX_LENGTH = 400
"""Characters of a line that are looked at for what stands in front of it."""
_SPELLED = {
    "nvlink": "NVLink",
    "cuda": "CUDA",
    "ecc": "ECC",
    "s3": "S3",
    "nccl": "NCCL",
    "gpu": "GPU",
    "os": "OS",
    "dataloader": "DataLoader",
}

ACTIONS = {
    Action.CORDON_AND_RESUBMIT: "Cordon the node and resubmit",
    Action.CHECK_AND_RESUBMIT: "Find the faulty node, cordon it, resubmit",
    Action.RESUBMIT: "Resubmit",
    Action.ROLLBACK_AND_RESUBMIT: "Go back to an earlier checkpoint and resubmit",
    Action.NOTIFY_USER: "Notify the owner",
    Action.NONE: "Nothing to do",
}

ACTIONS_SHORT = {
    Action.CORDON_AND_RESUBMIT: "Cordon, resubmit",
    Action.CHECK_AND_RESUBMIT: "Check nodes, resubmit",
    Action.RESUBMIT: "Resubmit",
    Action.ROLLBACK_AND_RESUBMIT: "Roll back, resubmit",
    Action.NOTIFY_USER: "Notify the owner",
    Action.NONE: "Nothing",
}

PLAN_STATES = {
    PlanState.ADVISED: "advice only, nothing was sent",
    PlanState.WAITING: "waits for approval",
    PlanState.SENT: "to be carried out",
    PlanState.REACHED: "carried out",
    PlanState.NOT_REACHED: "tried, not reached",
    PlanState.HELD: "held for a person",
    PlanState.SUPERSEDED: "replaced by a later diagnosis",
    PlanState.REFUSED: "refused",
    PlanState.EXPIRED: "expired",
}

REASONS = {
    # rows of the shipped policy table
    "nothing_to_repair": "Nothing is broken",
    "no_fault": "The run has no fault",
    "unknown_cause": "The cause is not known",
    "rule_on_trial": "The rule that decided is still on trial",
    "guess_about_the_machine": "The answer is more likely wrong than right; the nodes are looked at first",
    "guess_about_the_job": "The answer is more likely wrong than right",
    "rule_asks_for_no_node_action": "The rule that decided asks for it",
    "rule_asks_for_cordon_and_names_the_node": "The rule that decided asks for it, and the log names the node",
    "broken_node_named": "A machine is broken, and it is known which",
    "broken_node_must_be_found": "A machine is broken, and it is not certain which",
    "rank_is_stuck": "A rank is stuck in its own code, and nothing speaks against its machine",
    "transient_service": "A service did not answer; such failures pass",
    "go_back_to_a_healthy_checkpoint": "The loss diverged, and newer checkpoints carry the damage",
    "only_a_person_can_fix_it": "Only a person can fix it",
    "look_before_acting": "The nodes are looked at before anything is done",
    # why a plan stands as it does
    PlanReason.OBSERVE: "The policy only advises here",
    PlanReason.NEEDS_APPROVAL: "The policy asks for a person's approval",
    PlanReason.ACT: "The policy lets this be done without approval",
    PlanReason.FOR_A_PERSON: "Only a person can do this",
    PlanReason.SAME_STEP: "It failed the same way at the same step twice",
    PlanReason.RETRIES_SPENT: "It was launched again often enough without progress",
    PlanReason.NODE_AGAIN: "The same node failed this way before",
    PlanReason.PLACE_FAILS: "Several nodes of one switch or rack failed within minutes, and it is checked once",
    PlanReason.ON_PROBATION: "The node was given back within a day and is suspected again",
    PlanReason.REQUEUE_CAP: "Too many launches on this cluster within the hour",
    PlanReason.TENANT_CAP: "The tenant's share of launches or nodes is used up",
    PlanReason.WRONG_EVICTION: "It failed again right after a node was taken out",
    PlanReason.BREAKER: "The breaker has tripped",
    PlanReason.PERSON_HANDLES_NODE: "A person is handling the node",
    PlanReason.FOREIGN_NODE: "The scheduler did not give this node to the attempt",
    PlanReason.ALLOCATION_UNKNOWN: "It is not known which nodes the attempt ran on",
    PlanReason.UNPROVEN: "Nothing proves that the node is at fault",
    PlanReason.SUSPECTED_AGAIN: "Not proven, but another tenant's job suspected the same node",
    PlanReason.BAD_CHECKPOINT: "The checkpoint to go back to was reported bad",
    PlanReason.ATTEMPT_CLOSED: "A person refused it for this attempt, or the job ran again and completed",
    PlanReason.STILL_RUNNING: "The scheduler shows that the job still runs",
    PlanReason.NOT_CONFIRMED: "The node was asked, and does not confirm the fault",
    PlanReason.LATER_DIAGNOSIS: "A later diagnosis planned something else",
}
"""Reasons that people read; the others read well enough by their names."""

CHECKPOINT_STATES = {
    None: "saved, not verified",
    CheckpointPhase.STAGED: "not written out yet",
    CheckpointPhase.DURABLE: "written out, not verified",
    CheckpointPhase.VERIFIED: "verified",
    CheckpointPhase.BAD: "bad",
}

STAGES = {
    Stage.LAUNCH: "launching",
    Stage.INIT: "setting up",
    Stage.DATA: "preparing data",
    Stage.LOAD: "loading a checkpoint",
    Stage.TRAIN: "training",
    Stage.SAVE: "saving a checkpoint",
    Stage.EVAL: "evaluating",
    Stage.FINISH: "finishing",
}

NODE_STATES = {
    NodeEventKind.CORDONED: "taken out of service",
    NodeEventKind.UNCORDONED: "back in service",
    NodeEventKind.DOWN: "down",
    NodeEventKind.RESUMED: "up again",
}

NODE_ACTORS = {NodeActor.PERSON: "a person", NodeActor.DIAGNOSER: "diagnoser"}

_DECIDERS = {"rule": "rule", "llm": "language model", "incident": "confirmed failure", "heuristic": "heuristic"}

_IDENTIFIER = re.compile(r"[a-z0-9_]*[a-z][a-z0-9_]*")
_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))

_BIDI = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C]
_VISIBLE = {
    **{code: f"\u2039{code:02X}\u203a" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x09},
    **{code: f"\u2039U+{code:04X}\u203a" for code in (*_BIDI, 0x2028, 0x2029)},
}


def visible(text: str) -> str:
    """Log text with control and text-direction characters made visible."""
    return text.translate(_VISIBLE)


def name(kind: FailureType | str) -> str:
    """``out_of_memory_error`` -> ``Out of memory error``, ``ecc_error`` -> ``ECC error``."""
    text = " ".join(_SPELLED.get(word, word) for word in str(kind).split("_"))
    return text[:1].upper() + text[1:]


def message(line: str) -> str:
    """A line of a log without what carriers and launchers put in front of it: a narrow column would show no more."""
    body = split_prefix(line[:PREFIX_LENGTH].encode())[1].decode("utf-8", "replace") + line[PREFIX_LENGTH:]
    if not body.strip():
        return visible(line)
    return visible(body)


def cause(kind: FailureType) -> str:
    if kind is FailureType.UNKNOWN:
        return "Unknown cause"
    return name(kind)


def answer(verdict: Diagnosis) -> str:
    """The cause; of a guess, what it most likely is."""
    if verdict.guess:
        return verdict.guess[0].upper() + verdict.guess[1:]
    return cause(verdict.type)


def category(value: Category) -> str:
    if value is Category.NONE:
        return "no fault"
    return value.value


def action_words(value: str) -> str:
    """What a stored action is called, which may be one that this version does not know."""
    if value in set(Action):
        return ACTIONS[Action(value)]
    return name(value)


def decider(decided_by: str) -> tuple[str, str]:
    """``rule:xid_79`` -> (``rule``, ``xid_79``)."""
    kind, _, detail = decided_by.partition(":")
    return _DECIDERS.get(kind, kind), detail


def reason(text: str) -> str:
    """A reason from a closed list in words, or a row of the policy table; any other text unchanged."""
    if text in REASONS:
        return REASONS[text]
    if _IDENTIFIER.fullmatch(text):
        return name(text)
    return text


def lower_first(text: str) -> str:
    """For words in the middle of a sentence; acronyms keep their capitals."""
    if text[1:2].isupper():
        return text
    return text[:1].lower() + text[1:]


def checkpoint_state(saved: Checkpoint) -> str:
    """What an on-call engineer needs to know of a checkpoint before loading it."""
    if saved.finite is False:
        return "bad: not finite"
    return CHECKPOINT_STATES[saved.phase]


def checkpoint_shape(saved: Checkpoint) -> str:
    """How it is drawn: one of staged, durable, verified, bad."""
    if saved.is_bad:
        return CheckpointPhase.BAD
    return saved.phase or CheckpointPhase.DURABLE


def percent(share: float) -> str:
    """A share as a percentage; only 1.0 reads as 100 %."""
    rounded = round(share * 100)
    if share < 1:
        rounded = min(rounded, 99)
    return f"{rounded}\u2009%"


def source(name: str) -> str:
    """Where a line comes from: sources without lines in words, and a stream of our client without its launch."""
    stream, _, launch = name.partition("@")
    if not launch:
        return RUNTIME_SOURCES.get(name, name)
    if stream in ("stdout", "stderr"):
        return stream
    return RUNTIME_SOURCES.get(name, name)


def size(count: float) -> str:
    for unit, label in _SIZES:
        if count >= unit:
            return f"{count / unit:.1f} {label}"
    return f"{count:.0f} bytes"


def number(value: int) -> str:
    return f"{value:,}".replace(",", "\u2009")


def measure(value: float) -> str:
    """A measured value in five digits; "NaN" for what is no number."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinite"
    return f"{value:.5g}"


def pace(step_seconds: float) -> str:
    """``0.25`` -> ``4 steps/s``, ``12`` -> ``12 s a step``."""
    if step_seconds <= 0:
        return ""
    if not math.isfinite(step_seconds):
        return ""
    if step_seconds < 1:
        return f"{1 / step_seconds:.3g} steps/s"
    if step_seconds < 120:
        return f"{step_seconds:.3g} s a step"
    return f"{lasting(step_seconds)} a step"


def rate(tokens_per_second: float) -> str:
    if not math.isfinite(tokens_per_second):
        return ""
    return f"{number(round(tokens_per_second))} tokens/s"


def news_since(now: float) -> str:
    """The id from which on news are no part of a page that is drawn now: one made just before may be stored later."""
    return first_id(now - COMMIT_SECONDS)


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def minute(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def time_of_day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S")


def day_time(seconds: float) -> str:
    """``Nov 3, 14:05``."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%b} {moment.day}, {moment:%H:%M}"


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def lasting(seconds: float) -> str:
    """A duration in its two largest units: ``2 h 5 min``."""
    rest = max(0.0, seconds)
    largest = next((place for place, (unit, _) in enumerate(_UNITS) if rest >= unit), len(_UNITS) - 1)
    parts: list[str] = []
    for unit, label in _UNITS[largest : largest + 2]:
        count, rest = divmod(rest, unit)
        if count or not parts:
            parts.append(f"{count:.0f}\u00a0{label}")
    return " ".join(parts)


def ago(seconds: float, now: float) -> str:
    age = now - seconds
    if age < 0:
        return f"in {_largest(-age)}"
    if age < 5:
        return "just now"
    return f"{_largest(age)} ago"


def _largest(seconds: float) -> str:
    for unit, label in _UNITS:
        if seconds >= unit:
            return f"{math.floor(seconds / unit)}\u00a0{label}"
    return "0\u00a0s"


FILTERS: Mapping[str, Callable[..., object]] = {
    "message": message,
    "visible": visible,
    "name": name,
    "cause": cause,
    "answer": answer,
    "category": category,
    "action": ACTIONS.__getitem__,
    "action_short": ACTIONS_SHORT.__getitem__,
    "plan_state": PLAN_STATES.__getitem__,
    "ask_reason": ASK_REASONS.__getitem__,
    "model_effect": MODEL_EFFECTS.__getitem__,
    "changed_by_model": changed_by_model,
    "stage": STAGES.__getitem__,
    "node_state": NODE_STATES.__getitem__,
    "node_actor": NODE_ACTORS.__getitem__,
    "checkpoint_state": checkpoint_state,
    "measure": measure,
    "pace": pace,
    "rate": rate,
    "decider": decider,
    "reason": reason,
    "lower_first": lower_first,
    "percent": percent,
    "size": size,
    "number": number,
    "news_since": news_since,
    "stamp": stamp,
    "time_of_day": time_of_day,
    "day_time": day_time,
    "iso": iso,
    "lasting": lasting,
    "ago": ago,
    "source": source,
    "ranges": ranges,
}
