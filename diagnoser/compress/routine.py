"""Routine that a job family's filters know: its shapes become one counted entry of the delta for each filter. Pure.

Only shapes that say nothing by themselves are folded: no anchor of a rule, word of trouble, frame, progress or place.
Lines that are kept verbatim stay. Entries of other filters, or of none, merge as ever: the counts add up.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from diagnoser.compress.compressor import SAMPLE
from diagnoser.compress.delta import LEARNED, Delta, TemplateStats
from diagnoser.compress.line_flags import IMPORTANT, STAGES, LineFlag
from diagnoser.compress.line_masking import blurred, identity
from diagnoser.compress.lines import body_of
from diagnoser.compress.template_cache import TemplateCache
from diagnoser.model import AttemptKey, expressions

_TELLS = IMPORTANT | STAGES | int(LineFlag.PROGRESS | LineFlag.NODE)
_MEMORY = 32 << 20

Fold = Callable[[Delta], Delta]
Folding = Callable[[AttemptKey], Awaitable[Fold]]
"""What the filters in force for the job of an attempt make of its delta."""


async def unfolded(_: AttemptKey) -> Fold:
    """Where no filters are learned."""
    return lambda delta: delta


@dataclass(frozen=True)
class RoutineFilter:
    """patterns: RE2, each of a whole message without the blanks around it."""

    id: str
    patterns: tuple[str, ...]

    def takes(self, text: str) -> bool:
        return bool(_set(self.patterns).Match(text.strip()))


@lru_cache(maxsize=512)
def _set(patterns: tuple[str, ...]) -> Any:
    return expressions.search_set(patterns, expressions.quiet_options(_MEMORY))


def messages(stat: TemplateStats) -> tuple[str, ...]:
    """The first and the last line of a shape, without terminal codes and launcher prefixes."""
    texts = dict.fromkeys((stat.first_text, stat.last_text))
    return tuple(body_of(text)[1].decode("utf-8", "replace") for text in texts)


def routine_shapes(delta: Delta, cache: TemplateCache) -> Iterator[tuple[int, TemplateStats]]:
    """Shapes that a filter may know. cache: of the rules in force now, whatever those were that made the delta."""
    for shape, stat in delta.shapes.items():
        if stat.kind & _TELLS or stat.is_folded:
            continue
        texts = stat.first_text, stat.last_text
        if max(map(len, texts)) >= SAMPLE:
            continue  # cut: nobody knows what it goes on to say
        templates = cache.of(map(blurred, texts)).values()
        if not any(template.kind & _TELLS or template.watch for template in templates):
            yield shape, stat


def fold(delta: Delta, filters: Sequence[RoutineFilter], cache: TemplateCache) -> Delta:
    """The delta with one entry for each filter and set of ranks in place of the shapes that the filter knows.

    A shape that some ranks did not print stays apart from what all of them did.
    """
    folded: dict[int, TemplateStats] = {}
    shapes = dict(delta.shapes)
    for shape, stat in routine_shapes(delta, cache) if filters else ():
        known_by = _knowing(stat, filters)
        if known_by is None:
            continue
        name = f"{LEARNED}{known_by.id}"
        entry = identity(f"{name} {stat.ranks:x}".encode())
        part = replace(shapes.pop(shape), filtered=name)
        if entry in folded:
            folded[entry].add(part)
        else:
            folded[entry] = part
    for entry, stat in folded.items():
        if entry in shapes:
            stat.add(shapes[entry])
        shapes[entry] = stat
    return replace(delta, shapes=shapes)


def _knowing(stat: TemplateStats, filters: Sequence[RoutineFilter]) -> RoutineFilter | None:
    texts = messages(stat)
    for known in filters:
        if all(map(known.takes, texts)):
            return known
    return None
