"""Feedback of people on verdicts, and the rules that are learned from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model import (
    AttemptKey,
    CaseMark,
    CaseReplay,
    ConfirmedFailure,
    Feedback,
    Judgement,
    LearnedRule,
    LearnedState,
    RuleHit,
)


class FeedbackStore(Protocol):
    async def add_feedback(
        self, feedback: Feedback, confirmed: ConfirmedFailure, wanted: LearnedRule | None = None
    ) -> None:
        """Store what a person said, and what can be learned from it, in one transaction. Raises NotFound.

        The confirmed failure replaces an earlier one of the same diagnosis; rules that were learned from that one with
        another cause are retired. Rule hits in the attempt are judged. wanted: the rule to be written; not stored when
        one that is on trial was right.
        """

    async def add_confirmed_failure(self, confirmed: ConfirmedFailure, wanted: LearnedRule | None = None) -> bool:
        """The same without feedback of a person; False, and nothing is stored, when the diagnosis has one."""

    async def tenant_of(self, job: str) -> str:
        """Whose job it is, "" where that is not known."""

    async def confirmed_failures(self, since: float, after: str, limit: int) -> list[ConfirmedFailure]:
        """Those that changed at or after ``since``, by diagnosis; ``after``: the last one of the page before."""

    async def confirmed(self, limit: int) -> list[str]:
        """Diagnoses that have a confirmed failure, those that changed last first."""


@dataclass(frozen=True, slots=True)
class LearnedRuleQuery:
    """Which learned rules. Empty: all. source: the diagnosis that a rule was learned from."""

    states: tuple[LearnedState, ...] = ()
    source: str = ""


class RuleStore(Protocol):
    """Rules that were learned, and the attempts in which they hit or would have."""

    async def rules_revision(self) -> int:
        """Grows whenever a rule changes; cheap to query. A replica with an older revision reloads the rules."""

    async def learned(self, where: LearnedRuleQuery, after: str, limit: int) -> list[LearnedRule]:
        """Newest first, with their counts; ``after`` is the id of the last one already seen, "" for the first page."""

    async def learned_rule(self, id: str) -> LearnedRule | None: ...

    async def propose(self, rule: LearnedRule) -> bool:
        """Store a new rule; False, and nothing is stored, when that id exists."""

    async def change_rule(self, before: LearnedRule, after: LearnedRule) -> LearnedRule:
        """Store ``after`` if the rule still has the version of ``before``; ends a claim. Raises Conflict, NotFound."""

    async def claim_rules(self, now: float, lease: float, limit: int) -> list[LearnedRule]:
        """Proposed rules that nobody works on, oldest first; no other replica gets them until the lease ends."""

    async def note_hits(self, hits: Sequence[RuleHit]) -> None:
        """One row per rule and attempt: a later hit replaces it, but a verdict other than open stays."""

    async def judge_hits(self, attempt: AttemptKey, type: str) -> list[str]:
        """The cause of an attempt became known: rules that hit there were right if they are of this type, else
        wrong. Returns the ids of those that were right."""

    async def rule_hits(self, rule: str, limit: int) -> list[RuleHit]:
        """The newest first."""


class CaseStore(Protocol):
    """Failures that people judged, and how the rules do on them over time. Both are kept for ever."""

    async def case_mark(self) -> CaseMark:
        """Changes with every judgement; cheap to query."""

    async def judged(self, after: str, limit: int) -> list[str]:
        """Diagnoses that a person confirmed or corrected, oldest first; ``after``: the last one of the page before."""

    async def case_number(self, diagnosis: str) -> int | None:
        """How many diagnoses people had judged when they first judged this one, with it; None where nobody did."""

    async def judgements(self, since: float, limit: int) -> list[Judgement]:
        """Verdicts made at or after ``since`` that people judged, those judged last first."""

    async def add_replay(self, replay: CaseReplay) -> bool:
        """False, and nothing is stored, when the same rules were replayed on the same cases already."""

    async def replays(self, limit: int) -> list[CaseReplay]:
        """The newest first."""
