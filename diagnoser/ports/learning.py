"""What people say of verdicts, and the rules that are learned from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model import AttemptKey, Feedback, Incident, LearnedRule, LearnedState, RuleHit


class FeedbackStore(Protocol):
    async def add_feedback(self, feedback: Feedback, incident: Incident, wanted: LearnedRule | None = None) -> None:
        """Store what a person said, and what can be learned from it, in one transaction. Raises NotFound.

        The incident takes the place of an earlier one of the same diagnosis; rules learned from that one as another
        cause are retired. Hits of rules in the attempt are settled. wanted: the rule that is to be written; left out
        when one that is on trial was right.
        """

    async def add_incident(self, incident: Incident, wanted: LearnedRule | None = None) -> bool:
        """The same without a person's word; False, and nothing is stored, when the diagnosis has an incident."""

    async def incidents(self, since: float, after: str, limit: int) -> list[Incident]:
        """Those that changed at or after ``since``, by diagnosis; ``after``: the last one of the page before."""

    async def confirmed(self, limit: int) -> list[str]:
        """Diagnoses that have an incident, those that changed last first."""


@dataclass(frozen=True, slots=True)
class LearnedRuleQuery:
    """Which learned rules. Empty: all. source: the diagnosis that a rule was learned from."""

    states: tuple[LearnedState, ...] = ()
    source: str = ""


class RuleStore(Protocol):
    """Rules that were learned, and the attempts in which they hit or would have."""

    async def rules_revision(self) -> int:
        """Grows whenever a rule changes; cheap to ask. A replica whose revision is older loads the rules anew."""

    async def learned(self, where: LearnedRuleQuery, after: str, limit: int) -> list[LearnedRule]:
        """Newest first, with their counts; ``after`` is the id of the last one already seen, "" for the first page."""

    async def learned_rule(self, id: str) -> LearnedRule | None: ...

    async def propose(self, rule: LearnedRule) -> bool:
        """Store a new rule; False, and nothing is stored, when there is one of that id."""

    async def change_rule(self, before: LearnedRule, after: LearnedRule) -> LearnedRule:
        """Store ``after`` if the rule still has the version of ``before``; ends a claim. Raises Conflict, NotFound."""

    async def claim_rules(self, now: float, lease: float, limit: int) -> list[LearnedRule]:
        """Proposed rules that nobody works on, oldest first; nobody else gets them until the lease is over."""

    async def note_hits(self, hits: Sequence[RuleHit]) -> None:
        """One row a rule and attempt: a later one takes its place, but a verdict that is known stays."""

    async def judge_hits(self, attempt: AttemptKey, type: str) -> list[str]:
        """The cause of an attempt became known: rules that hit there were right if they are of this type, else
        wrong. Ids of those that were right."""

    async def rule_hits(self, rule: str, limit: int) -> list[RuleHit]:
        """The newest first."""
