"""Rules that the service learned: who wrote them, how they were tested, and what they would have done."""

from dataclasses import dataclass, replace
from enum import StrEnum

from diagnoser.model.jobs import AttemptKey


class LearnedState(StrEnum):
    """proposed -> refused or shadow -> active -> retired; retired -> shadow when a person undoes it."""

    PROPOSED = "proposed"  # wanted, or written and not tested yet
    REFUSED = "refused"  # a gate said no
    SHADOW = "shadow"  # counts what it would have done
    ACTIVE = "active"
    RETIRED = "retired"


LOADED = (LearnedState.SHADOW, LearnedState.ACTIVE)
"""States in which replicas hold a rule."""


class HitVerdict(StrEnum):
    """Whether a rule was right about an attempt in which it hit, or would have."""

    OPEN = "open"
    CONFIRMED = "confirmed"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """One test of a proposed rule. reason: what was checked and found, also when it passed."""

    name: str
    passed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Author:
    """Who wrote a rule: ``template`` (made from the line's shape), ``llm:<model>``, or ``person``.

    failure: a ``ModelFailure`` value, or why the model's rule was not taken, where the template stepped in.
    """

    name: str = ""
    model: str = ""
    prompt: str = ""
    prompt_hash: str = ""
    temperature: float = 0.0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One entry of a rule's history. by: a person, or "diagnoser"."""

    time: float
    state: LearnedState
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Over the attempts in which a rule hit or would have: how many, and what became known of them.

    lines, bytes: that a Filter Rule knew as routine there.
    """

    hits: int = 0
    confirmed: int = 0
    wrong: int = 0
    lines: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class LearnedRule:
    """text: a rule file; "" until it is written. source: the diagnosis that it is learned from. type: the failure type
    that it names. by: who confirmed the source, or wrote the rule. version: grows with every change. replaces:
    id of the rule that a person made this one from, which is retired when this one is in shadow. tenant: whose job it
    is learned from, "" where that is not known. family: the job family whose log a Filter Rule shortens; "" for a rule
    that names a cause.
    """

    id: str
    source: str
    created: float
    state: LearnedState = LearnedState.PROPOSED
    type: str = ""
    text: str = ""
    by: str = ""
    author: Author = Author()
    gates: tuple[ValidationResult, ...] = ()
    history: tuple[Turn, ...] = ()
    changed: float = 0.0
    version: int = 0
    counts: Counts = Counts()
    replaces: str = ""
    tenant: str = ""
    family: str = ""

    def with_state(self, state: LearnedState, *, by: str, why: str, now: float) -> "LearnedRule":
        turn = Turn(now, state, by, why)
        return replace(self, state=state, changed=now, history=(*self.history, turn))


@dataclass(frozen=True, slots=True)
class RuleHit:
    """An attempt in which a rule hit, or would have. There is one for each rule and attempt.

    lines, bytes: that a Filter Rule knew as routine.
    """

    rule: str
    attempt: AttemptKey
    time: float
    diagnosis: str = ""
    verdict: HitVerdict = HitVerdict.OPEN
    active: bool = False
    lines: int = 0
    bytes: int = 0
