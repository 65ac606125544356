"""Routine that no filter knows, cut into segments that a rule can be written for.

A segment holds a few families of shapes (as Drain3 groups them), in the order in which the log prints them: lines of
one phase stand together and explain each other.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diagnoser.compress import routine, templates
from diagnoser.compress.delta import Delta, Stat

LEAST = 50
"""Lines that a shape needs to be worth a rule."""
SIZE, MOST = 12, 3
"""Families in a segment, and segments of one attempt."""
_SAMPLES, _CHARS = 4, 300


@dataclass(frozen=True, slots=True)
class Family:
    """Shapes that differ in what Drain3 takes for parameters. samples: messages as they came."""

    text: str
    count: int
    samples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """id: the same for the same families, in whatever attempt they are met."""

    id: str
    families: tuple[Family, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(sample for family in self.families for sample in family.samples)


def of(delta: Delta, least: int = LEAST) -> list[Segment]:
    """delta: with all known filters applied (``routine.known``)."""
    families = list(_families([stat for _, stat in routine.unknown(delta, least)]))
    cuts = [tuple(families[at : at + SIZE]) for at in range(0, len(families), SIZE)]
    return [Segment(_id(cut), cut) for cut in cuts[:MOST]]


def _families(stats: Sequence[Stat]) -> Iterator[Family]:
    firsts = [routine.samples(stat)[0] for stat in stats]
    for group in templates.group([(text, 0) for text in firsts]):
        members = [stats[index] for index in group.members]
        samples = dict.fromkeys(text for stat in members for text in routine.samples(stat))
        short = [text for text in samples if 0 < len(text) <= _CHARS]
        if short:
            yield Family(group.text, sum(stat.count for stat in members), tuple(short[:_SAMPLES]))


def _id(families: Sequence[Family]) -> str:
    return hashlib.sha256("\0".join(sorted(one.text for one in families)).encode("utf-8", "replace")).hexdigest()[:12]
