"""How often a verdict of its kind was right on frameworks that were left out: the confidence that a diagnosis states;
and how often verdicts like it were wrong: what decides whether a language model reviews it.

The tables are data (``rules/calibration.yaml``), made by ``python -m tools.calibrate`` and stored with its date.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from diagnoser.model import yaml_loader
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_sources import DOWNSTREAM, WIDE_CLASSES
from diagnoser.rules.schema import Maturity, Role, Specificity

LEARNED_PREFIX = "learned_"

Probability = Annotated[float, Field(ge=0, le=1)]


class Decider(StrEnum):
    """What decided a verdict: the coarse rows of the table."""

    SPECIFIC_RULE = "specific_rule"  # knows the message
    GENERIC_RULE = "generic_rule"  # knows a class of exceptions, or words that many failures share
    EXCEPTION = "exception"  # no rule: the class, message and place of an exception
    WORDS = "words"  # no rule: the words of a line
    CLEAN_END = "clean_end"  # the log says that the run ended well
    KILLED = "killed"  # a signal ended a process, and nothing says who sent it
    EXIT = "exit"  # another signal, or an exit code
    STRUCTURE = "structure"  # no line: the loss, or who waits for whom
    REPORT = "report"  # the scheduler or the launcher itself
    GUESS = "guess"  # no rule and no exception: the line that is likeliest to tell the cause, and its words
    NOTHING = "nothing"  # no cause is visible
    OTHER = "other"


_HEURISTICS = {
    "exception": Decider.EXCEPTION,
    "words": Decider.WORDS,
    "clean_end": Decider.CLEAN_END,
    "exit_event": Decider.REPORT,
    "exit": Decider.EXIT,
    "loss": Decider.STRUCTURE,
    "waiting": Decider.STRUCTURE,
    "mismatched": Decider.STRUCTURE,
    "likely_line": Decider.GUESS,
    "no_progress": Decider.NOTHING,
    "no_evidence": Decider.NOTHING,
}
"""How the names of heuristics begin. A name that begins in no such way is ``other``."""


@dataclass(frozen=True, slots=True)
class VerdictKind:
    """detail: the level of a rule, or the name and level of a heuristic. facts: what bears on whether it is right."""

    decider: Decider
    detail: str
    facts: str

    @property
    def keys(self) -> tuple[str, str, str]:
        """Its rows in the table, the coarse one first."""
        return self.decider.value, f"{self.decider}.{self.detail}", f"{self.decider}.{self.detail}.{self.facts}"


class ReviewKind(StrictModel):
    """cases, wrong: verdicts of this kind on labelled logs, and how many named a wrong type. share: of wrong ones,
    smoothed."""

    cases: int
    wrong: int
    share: Probability


class MeasuredKind(StrictModel):
    """cases: of this kind among the trials. right: the share of them that was right. said: what a verdict of the kind
    states: that share, smoothed and bounded."""

    cases: int
    right: Probability
    said: Probability


class Calibration(StrictModel):
    """kinds: by the keys of ``VerdictKind``; every decider has its row. floor: below it the answer is ``unknown``.

    sandbox, learned: the highest confidence that a sandbox rule and an active learned rule may state: neither was
    measured on labelled logs, but a learned one has been confirmed.
    contested: likewise of a verdict that is contested (``CausalResult.is_contested``).
    review: by the names of ``review_kind`` and of what stands above them. review_from: share of wrong verdicts from
    which a language model is asked.
    """

    made: str
    cases: int
    floor: Probability
    default: Probability
    sandbox: Probability
    learned: Probability
    contested: Probability
    kinds: dict[str, MeasuredKind]
    review_from: Probability
    review: dict[str, ReviewKind]

    def of(self, kind: VerdictKind) -> float:
        """The confidence of the finest row that was measured."""
        for key in reversed(kind.keys):
            if key in self.kinds:
                return self.kinds[key].said
        return self.default

    def wrong_share(self, kind: str) -> float:
        """How often verdicts of a kind were wrong, or of the narrowest kind above it that was measured."""
        while kind:
            if kind in self.review:
                return self.review[kind].share
            kind = kind.rpartition(".")[0]
        return 1.0 - self.default

    def bounded(self, confidence: float, decided_by: str, maturity: Maturity | None) -> float:
        """``confidence``, or less where the rule that decided was not measured."""
        if decided_by.startswith(f"rule:{LEARNED_PREFIX}"):
            return min(confidence, self.learned)
        if maturity is Maturity.SANDBOX:
            return min(confidence, self.sandbox)
        return confidence


def load(path: str, text: str) -> Calibration:
    """Raises RuleFaults with every fault of the file."""
    return yaml_loader.load(path, text, Calibration)


def verdict_kind(decided_by: str, failure: FailureType, root: Candidate | None, *, ended_badly: bool) -> VerdictKind:
    """The kind of a verdict.

    ended_badly: something else than the root shows that the run failed.
    """
    facts = [
        "cause" if root is not None and root.role is Role.ROOT else "consequence",
        "ended_badly" if ended_badly else "end_unseen",
    ]
    level = root.specificity if root else Specificity.WORD
    detail = level.name.lower()
    source, _, name = decided_by.partition(":")
    if source != "rule":
        detail = f"{name}_{detail}"
    decider = _decider(source, name, level)
    if decider is Decider.EXIT and _is_by_unknown_sender(failure, root):
        decider = Decider.KILLED
    return VerdictKind(decider, detail, ".".join(facts))


def _decider(source: str, name: str, level: Specificity) -> Decider:
    if source == "rule":
        return Decider.SPECIFIC_RULE if level >= Specificity.FAMILY else Decider.GENERIC_RULE
    for prefix, decider in _HEURISTICS.items():
        if name.startswith(prefix):
            return decider
    return Decider.OTHER


def _is_by_unknown_sender(failure: FailureType, root: Candidate | None) -> bool:
    """Whether other senders of a signal than the likeliest are as usual: SIGKILL without a word about memory; where no
    line tells of the end, also a plain request to end, or the code of ``timeout``."""
    if root is None:
        return failure not in (FailureType.SEGMENTATION_FAULT, FailureType.UNKNOWN)
    if failure is not FailureType.HOST_OUT_OF_MEMORY:
        return False
    return root.specificity < Specificity.MESSAGE


def review_kind(kind: VerdictKind, failure: FailureType, maturity: Maturity | None) -> str:
    """The name of verdicts that are wrong about as often: the decider, its mechanism, how much the type says, and
    whether the root is a cause.

    maturity: of the rule that decided; nobody has measured one in the sandbox.
    """
    mechanism = kind.detail.rpartition("_")[0] or kind.detail
    if maturity is Maturity.SANDBOX:
        mechanism = Maturity.SANDBOX.value
    role, _, _ = kind.facts.partition(".")
    return f"{kind.decider}.{mechanism}.{_type_group(failure)}_{role}"


def _type_group(failure: FailureType) -> str:
    """How much a type says: that a program raised for some reason, what those see whose peer is gone, or a cause."""
    if failure in WIDE_CLASSES:
        return "wide"
    if failure in DOWNSTREAM:
        return "downstream"
    return "narrow"
