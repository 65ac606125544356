"""Routine that no filter knows, cut into segments that a rule can be written for.

A segment holds a few families of shapes (as Drain3 groups them), in the order in which the log prints them: lines of
one phase stand together and explain each other.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from diagnoser.compress import learned_filters, templates
from diagnoser.compress.delta import Delta, TemplateStats

LEAST = 50
"""Lines that a family needs to be worth a rule, in however many shapes."""
SIZE, MOST = 12, 3
"""Families in a segment, and segments of one attempt."""
_SHAPES, _CHARS = 4, 300
"""Shapes of a family that speak for it, and the longest line that is worth an expression."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A message as it came. count: lines of its shape."""

    text: str
    count: int


@dataclass(frozen=True, slots=True)
class Segment:
    """shapes: names of those that speak for it, by which it is found again in the same log."""

    shapes: tuple[int, ...]
    samples: tuple[Sample, ...]

    @property
    def id(self) -> str:
        """The same for the same shapes, in whatever attempt they are met."""
        return digest(*map(str, sorted(self.shapes)))

    @property
    def name(self) -> str:
        return ".".join(f"{key:x}" for key in self.shapes)


def of(delta: Delta, anchored: Callable[[str], bool]) -> list[Segment]:
    """delta: with all known filters applied (``routine.known``). anchored: whether a message carries an anchor."""
    families = list(_families(learned_filters.unknown(delta, anchored)))
    cuts = [[key for family in families[at : at + SIZE] for key in family] for at in range(0, len(families), SIZE)]
    return [_segment(delta, cut) for cut in cuts[:MOST]]


def again(delta: Delta, name: str) -> Segment | None:
    """A segment by its name; None where this log does not hold all of it."""
    keys = [int(part, 16) for part in name.split(".") if part]
    return _segment(delta, keys) if keys and all(key in delta.shapes for key in keys) else None


def _families(shapes: Sequence[tuple[int, TemplateStats]]) -> Iterator[list[int]]:
    firsts = [learned_filters.samples(stat)[0] for _, stat in shapes]
    for group in templates.group([(text, 0) for text in firsts]):
        fitting = [index for index in group.members if len(firsts[index]) <= _CHARS]
        if fitting and sum(shapes[index][1].count for index in group.members) >= LEAST:
            yield [shapes[index][0] for index in _spread(fitting)]


def _spread(found: Sequence[int]) -> list[int]:
    """A few of them, from the first to the last, so that what varies is seen."""
    few = min(_SHAPES, len(found))
    return [found[at * (len(found) - 1) // max(1, few - 1)] for at in range(few)]


def _segment(delta: Delta, keys: Sequence[int]) -> Segment:
    samples = [
        Sample(text, delta.shapes[key].count) for key in keys for text in learned_filters.samples(delta.shapes[key])
    ]
    return Segment(tuple(keys), tuple(one for one in samples if len(one.text) <= _CHARS))


def digest(*parts: str) -> str:
    """Twelve hexadecimal digits that name these texts."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:12]
