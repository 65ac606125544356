"""How often verdicts were right by the word of people, over time and by who decided. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diagnoser.model import Judgement
from diagnoser.model.taxonomy import FailureType

WEEK = 7 * 86_400.0
_MONDAY = 4 * 86_400.0
"""The first Monday after the epoch, in seconds."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Verdicts that people judged. name: the week's begin, or who decided."""

    name: str
    right: int
    judged: int

    @property
    def wrong(self) -> int:
        return self.judged - self.right


@dataclass(frozen=True, slots=True)
class Week:
    """The verdicts of the week from Monday ``start``, in UTC, seconds since the epoch."""

    start: float
    right: int
    wrong: int

    @property
    def judged(self) -> int:
        return self.right + self.wrong


@dataclass(frozen=True, slots=True)
class Confusion:
    """A cause that verdicts named where people named another one. diagnosis: the latest of them."""

    said: FailureType
    known: FailureType
    count: int
    diagnosis: str


def week_of(time: float) -> float:
    """When the week of a time began."""
    return math.floor((time - _MONDAY) / WEEK) * WEEK + _MONDAY


def by_week(judgements: Iterable[Judgement], now: float, weeks: int) -> list[Week]:
    """The last weeks, oldest first, those without a judgement included."""
    counts = Counter((week_of(judgement.time), judgement.was_right) for judgement in judgements)
    starts = [week_of(now) - number * WEEK for number in range(weeks - 1, -1, -1)]
    return [Week(start, counts[start, True], counts[start, False]) for start in starts]


def by_kind(judgements: Sequence[Judgement]) -> list[Tally]:
    """Count by what decided: rule, heuristic, language model, confirmed failure; most judged first."""
    return _tallies((judgement.decided_by.partition(":")[0], judgement.was_right) for judgement in judgements)


def most_corrected(judgements: Sequence[Judgement], limit: int) -> list[Tally]:
    """The single rules, models and heuristics that people corrected most often."""
    tallies = _tallies((judgement.decided_by, judgement.was_right) for judgement in judgements)
    wrong = sorted((tally for tally in tallies if tally.wrong), key=lambda tally: (-tally.wrong, tally.name))
    return wrong[:limit]


def confusions(judgements: Sequence[Judgement], limit: int) -> list[Confusion]:
    """List what people corrected most often, and to what."""
    wrong = [judgement for judgement in judgements if not judgement.was_right]
    latest: dict[tuple[FailureType, FailureType], Judgement] = {}
    for judgement in sorted(wrong, key=lambda judgement: judgement.time):
        latest[judgement.said, judgement.known] = judgement
    counts = Counter((judgement.said, judgement.known) for judgement in wrong)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [Confusion(*pair, count, latest[pair].diagnosis) for pair, count in ranked[:limit]]


def _tallies(outcomes: Iterable[tuple[str, bool]]) -> list[Tally]:
    counts = Counter(outcomes)
    names = {name for name, _ in counts}
    tallies = [Tally(name, counts[name, True], counts[name, True] + counts[name, False]) for name in names]
    return sorted(tallies, key=lambda tally: (-tally.judged, tally.name))
