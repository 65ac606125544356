"""What asking a language model is worth: about which kinds of verdicts, and how many of them are wrong. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diagnoser.accuracy.scoring import ScoredVerdict

ANY = "any"
"""The row of all kinds together."""


@dataclass(frozen=True, slots=True)
class TriggerYield:
    """Verdicts of one kind, or of one source of cases.

    cases, wrong: how many there are, and those with a wrong type.
    asked, caught: about which the model is asked, and the wrong ones among them.
    all_wrong: wrong verdicts of every kind.
    """

    kind: str
    cases: int
    wrong: int
    asked: int
    caught: int
    all_wrong: int

    def figures(self) -> dict[str, str | int | float | None]:
        """For a table or JSON. yield: the share of wrong verdicts among those asked about."""
        return {
            "kind": self.kind,
            "cases": self.cases,
            "wrong": self.wrong,
            "wrong_share": _share(self.wrong, self.cases),
            "asked": self.asked,
            "asked_share": _share(self.asked, self.cases),
            "wrong_asked": self.caught,
            "yield": _share(self.caught, self.asked),
            "of_all_wrong": _share(self.caught, self.all_wrong),
        }


def trigger_yields(verdicts: Sequence[ScoredVerdict]) -> list[TriggerYield]:
    """A row for each kind that is asked about or has a wrong verdict, the one with the most of them first, and one for
    all together."""
    by_kind: dict[str, list[ScoredVerdict]] = defaultdict(list)
    for case in verdicts:
        by_kind[case.review_kind].append(case)
    all_wrong = _wrong(verdicts)
    rows = [_yield_of(kind, cases, all_wrong) for kind, cases in sorted(by_kind.items())]
    rows = [row for row in rows if row.asked or row.wrong]
    rows.sort(key=lambda row: (-row.wrong, row.cases))
    return [*rows, _yield_of(ANY, verdicts, all_wrong)]


def totals(folds: Mapping[str, Sequence[ScoredVerdict]]) -> list[TriggerYield]:
    """The row of all kinds together for each source of cases, under its name."""
    return [_yield_of(name, cases, _wrong(cases)) for name, cases in folds.items()]


def _yield_of(name: str, cases: Sequence[ScoredVerdict], all_wrong: int) -> TriggerYield:
    asked = [case for case in cases if case.asked]
    return TriggerYield(name, len(cases), _wrong(cases), len(asked), _wrong(asked), all_wrong)


def _wrong(verdicts: Iterable[ScoredVerdict]) -> int:
    return sum(not case.type for case in verdicts)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
