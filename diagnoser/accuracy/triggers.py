"""What the reasons to ask a language model are worth: how many wrong verdicts each of them picks. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diagnoser.accuracy.scoring import ScoredVerdict

ANY = "any"
"""The row of all reasons together."""


@dataclass(frozen=True, slots=True)
class TriggerYield:
    """The cases that a reason picks.

    cases, wrong: of all labelled cases, and those with a wrong type.
    asked, caught: picked by the reason, and the wrong ones among them.
    alone, caught_alone: picked by no other reason; what is lost without it.
    """

    reason: str
    cases: int
    wrong: int
    asked: int
    caught: int
    alone: int
    caught_alone: int

    def figures(self) -> dict[str, str | int | float | None]:
        """For a table or JSON. yield: the share of wrong verdicts among those asked about."""
        return {
            "reason": self.reason,
            "asked": self.asked,
            "asked_share": _share(self.asked, self.cases),
            "wrong": self.caught,
            "yield": _share(self.caught, self.asked),
            "of_all_wrong": _share(self.caught, self.wrong),
            "alone": self.alone,
            "wrong_alone": self.caught_alone,
        }


def trigger_yields(verdicts: Sequence[ScoredVerdict]) -> list[TriggerYield]:
    """A row for each reason, the one with the most wrong verdicts first, and one for all together."""
    by_reason: dict[str, list[ScoredVerdict]] = defaultdict(list)
    for case in verdicts:
        for reason in case.asked:
            by_reason[reason].append(case)
    rows = [_yield_of(reason, picked, verdicts) for reason, picked in sorted(by_reason.items())]
    rows.sort(key=lambda row: (-row.caught, row.asked))
    return [*rows, _yield_of(ANY, _asked(verdicts), verdicts)]


def totals(folds: Mapping[str, Sequence[ScoredVerdict]]) -> list[TriggerYield]:
    """The row of all reasons together for each source of cases, under its name."""
    return [_yield_of(name, _asked(cases), cases) for name, cases in folds.items()]


def _asked(verdicts: Iterable[ScoredVerdict]) -> list[ScoredVerdict]:
    return [case for case in verdicts if case.asked]


def _yield_of(name: str, picked: Sequence[ScoredVerdict], verdicts: Sequence[ScoredVerdict]) -> TriggerYield:
    alone = [case for case in picked if len(case.asked) == 1]
    return TriggerYield(name, len(verdicts), _wrong(verdicts), len(picked), _wrong(picked), len(alone), _wrong(alone))


def _wrong(verdicts: Iterable[ScoredVerdict]) -> int:
    return sum(not case.type for case in verdicts)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
