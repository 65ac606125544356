"""How often verdicts were right by the word of people, over time and by who decided. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from diagnoser.model import Judgement
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.weeks import WEEK, week_of


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


def by_week(judgements: Iterable[Judgement], now: float, weeks: int) -> list[Week]:
    """The last weeks, oldest first, those without a judgement included."""
    counts = Counter((week_of(judgement.time), judgement.was_right) for judgement in judgements)
    listed = []
    for number in range(weeks - 1, -1, -1):
        start = week_of(now) - number * WEEK
        listed.append(Week(start, counts[start, True], counts[start, False]))
    return listed


def by_kind(judgements: Sequence[Judgement]) -> list[Tally]:
    """Count by what decided: rule, heuristic, language model, confirmed failure; most judged first."""
    return _tallies(judgements, lambda judgement: judgement.decided_by.partition(":")[0])


def most_corrected(judgements: Sequence[Judgement], limit: int) -> list[Tally]:
    """The single rules, models and heuristics that people corrected most often."""
    tallies = filter(attrgetter("wrong"), _tallies(judgements, attrgetter("decided_by")))
    return sorted(tallies, key=lambda tally: (-tally.wrong, tally.name))[:limit]


def confusions(judgements: Sequence[Judgement], limit: int) -> list[Confusion]:
    """List what people corrected most often, and to what."""
    found: dict[tuple[FailureType, FailureType], Confusion] = {}
    for judgement in sorted(judgements, key=attrgetter("time")):
        if judgement.was_right:
            continue
        pair = judgement.said, judgement.known
        count = found[pair].count + 1 if pair in found else 1
        found[pair] = Confusion(*pair, count, judgement.diagnosis)
    return sorted(found.values(), key=lambda confusion: (-confusion.count, confusion.said, confusion.known))[:limit]


def _tallies(judgements: Iterable[Judgement], name_of: Callable[[Judgement], str]) -> list[Tally]:
    tallies: dict[str, Tally] = {}
    for judgement in judgements:
        name = name_of(judgement)
        before = tallies.get(name, Tally(name, 0, 0))
        tallies[name] = Tally(name, before.right + judgement.was_right, before.judged + 1)
    return sorted(tallies.values(), key=lambda tally: (-tally.judged, tally.name))
