"""Formats values for people: names, times, sizes, and log text without invisible characters."""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from diagnoser.model import (
    ASK_REASONS,
    RUNTIME_SOURCES,
    AskReason,
    Diagnosis,
    Mode,
    ModelEffect,
    PlanState,
    changed_by_model,
)
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from diagnoser.web.groups import ranges

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

MODES = {
    Mode.OBSERVE: "observe",
    Mode.APPROVE: "act after approval",
    Mode.ACT: "act without approval",
}

MODEL_EFFECTS = {
    ModelEffect.NONE: "nothing: the verdict of the rules stands",
    ModelEffect.AGREED: "the model agrees",
    ModelEffect.LOCATED: "the model agrees, and names the place",
    ModelEffect.DECIDED: "the model's verdict stands",
    ModelEffect.CONTRADICTED: "the model names another cause; the verdict of the rules stands",
}

_DECIDERS = {"rule": "rule", "llm": "language model", "incident": "similar incident", "heuristic": "heuristic"}

_ENDINGS = {
    Outcome.COMPLETED: "The job completed",
    Outcome.CANCELLED: "The job was cancelled",
    Outcome.PREEMPTED: "The job was preempted",
    Outcome.TIME_LIMIT: "The job ran into its time limit",
    Outcome.HUNG: "The job hangs",
    Outcome.FAILED: "The job failed",
    Outcome.UNKNOWN: "It is not clear how the job ended",
}

_KINDS = {
    Category.INFRASTRUCTURE: "a fault of the infrastructure",
    Category.FRAMEWORK: "a fault of the training framework",
    Category.SCRIPT: "a fault of the script",
    Category.UNKNOWN: "a fault of an unknown kind",
}

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


def cause(kind: FailureType) -> str:
    return "Unknown cause" if kind is FailureType.UNKNOWN else name(kind)


def category(value: Category) -> str:
    return "no fault" if value is Category.NONE else value.value


def action(value: Action) -> str:
    return ACTIONS[value]


def action_short(value: Action) -> str:
    return ACTIONS_SHORT[value]


def plan_state(value: PlanState) -> str:
    return PLAN_STATES[value]


def ask_reason(value: AskReason) -> str:
    return ASK_REASONS[value]


def model_effect(value: ModelEffect) -> str:
    return MODEL_EFFECTS[value]


def mode(value: Mode) -> str:
    return MODES[value]


def decider(decided_by: str) -> tuple[str, str]:
    """``rule:xid_79`` -> (``rule``, ``xid_79``)."""
    kind, _, detail = decided_by.partition(":")
    return _DECIDERS.get(kind, kind), detail


def reason(text: str) -> str:
    """A reason from a closed list in words; any other text unchanged."""
    return name(text) if text.replace("_", "").isalnum() and text.islower() else text


def percent(share: float) -> str:
    """A share as a percentage; only 1.0 reads as 100 %."""
    return f"{round(share * 100) if share >= 1 else min(round(share * 100), 99)}\u2009%"


def source(name: str) -> str:
    """Where a line comes from: sources without lines in words."""
    return RUNTIME_SOURCES.get(name, name)


def size(count: float) -> str:
    for unit, label in _SIZES:
        if count >= unit:
            return f"{count / unit:.1f} {label}"
    return f"{count:.0f} bytes"


def number(value: int) -> str:
    return f"{value:,}".replace(",", "\u2009")


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


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
    return "just now" if age < 5 else f"{_largest(age)} ago"


def summary(verdict: Diagnosis) -> str:
    """One sentence: how the attempt ended, what kind of fault, and where."""
    text = _ENDINGS[verdict.outcome]
    if verdict.held_up:
        return f"{text}: {visible(verdict.held_up[0].lower() + verdict.held_up[1:])}."
    if verdict.category is Category.NONE:
        return text + "."
    text += f" with {_KINDS[verdict.category]}"
    place = _place(verdict)
    return f"{text}{', first seen on ' + place if place else ''}."


def _place(verdict: Diagnosis) -> str:
    root = verdict.root_cause
    if root is None:
        return f"node {verdict.nodes[0].node}" if verdict.nodes else ""
    parts = [
        f"rank {root.rank}" if root.rank is not None else "",
        f"node {root.node}" if root.node else "",
        f"GPU {root.gpu}" if root.gpu else "",
    ]
    return ", ".join(label for label in parts if label)


def _largest(seconds: float) -> str:
    for unit, label in _UNITS:
        if seconds >= unit:
            return f"{math.floor(seconds / unit)}\u00a0{label}"
    return "0\u00a0s"


FILTERS: Mapping[str, Callable[..., object]] = {
    "visible": visible,
    "name": name,
    "cause": cause,
    "category": category,
    "action": action,
    "action_short": action_short,
    "plan_state": plan_state,
    "ask_reason": ask_reason,
    "model_effect": model_effect,
    "changed_by_model": changed_by_model,
    "mode": mode,
    "decider": decider,
    "reason": reason,
    "percent": percent,
    "size": size,
    "number": number,
    "stamp": stamp,
    "iso": iso,
    "lasting": lasting,
    "ago": ago,
    "summary": summary,
    "source": source,
    "ranges": ranges,
}
