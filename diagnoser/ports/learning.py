"""Feedback of people on verdicts, and the rules that are learned from it."""

from dataclasses import dataclass

from diagnoser.model import (
    LearnedState,
)


@dataclass(frozen=True, slots=True)
class LearnedRuleQuery:
    """Which learned rules. Empty: all. source: the diagnosis that a rule was learned from."""

    states: tuple[LearnedState, ...] = ()
    source: str = ""
