"""Learned Filter Rules: which shapes of a merged delta a job family's rules know as routine.

They are applied when a log is read, not when it is stored. So deltas of replicas with different rules merge as ever, a
rule that is promoted or retired counts for what is stored already, and nothing is ever lost. Only shapes that say
nothing by themselves can be known: no anchor of a rule, no word of trouble, no traceback, no progress.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import re2

from diagnoser.compress.delta import Delta, Stat
from diagnoser.compress.kinds import IMPORTANT, Kind
from diagnoser.compress.lines import body_of

LEARNED = "learned/"
"""In front of the id of a learned rule, where shipped filters have ``<family>/``."""
_TELLS = IMPORTANT | int(Kind.PROGRESS | Kind.NODE)
_WORD = re.compile(r"[^\W\d_]{3}")


@dataclass(frozen=True)
class Known:
    """A learned Filter Rule. patterns: RE2, any of them, searched in the message of a line."""

    id: str
    patterns: tuple[str, ...]

    @cached_property
    def _compiled(self) -> tuple[Any, ...]:
        options = re2.Options()
        options.log_errors = False
        return tuple(re2.compile(pattern, options) for pattern in self.patterns)

    def takes(self, text: str) -> bool:
        return any(pattern.search(text) for pattern in self._compiled)

    def takes_all(self, stat: Stat) -> bool:
        return all(self.takes(text) for text in samples(stat))


@dataclass(frozen=True, slots=True)
class Taken:
    """What a rule knows of one log. bytes: about, by the length of a sample of each shape."""

    shapes: frozenset[int]
    lines: int
    bytes: int


def is_quiet(stat: Stat) -> bool:
    """Whether a shape is routine that no filter knows yet, as far as its kind tells."""
    return not stat.kind & _TELLS and not stat.filtered


def message(line: str) -> str:
    """A line without terminal codes and launcher prefixes."""
    return body_of(line.encode("utf-8", "replace"))[1].decode("utf-8", "replace")


def samples(stat: Stat) -> list[str]:
    """The messages of the first and the last line of a shape."""
    return [body_of(text)[1].decode("utf-8", "replace") for text in dict.fromkeys((stat.first_text, stat.last_text))]


def taken(delta: Delta, rule: Known) -> Taken:
    """The quiet shapes that a rule knows."""
    found = {key: stat for key, stat in delta.shapes.items() if is_quiet(stat) and rule.takes_all(stat)}
    size = sum(stat.count * len(stat.first_text) for stat in found.values())
    return Taken(frozenset(found), sum(stat.count for stat in found.values()), size)


def known(delta: Delta, rules: Sequence[Known]) -> Delta:
    """The delta with what the rules know marked as filtered; the first rule counts. The one given stays as it is."""
    if not rules:
        return delta
    shapes = dict(delta.shapes)
    for rule in rules:
        for key in taken(replace(delta, shapes=shapes), rule).shapes:
            shapes[key] = shapes[key].copy()
            shapes[key].filtered = LEARNED + rule.id
    return replace(delta, shapes=shapes)


def unknown(delta: Delta, least: int, anchored: Callable[[str], bool]) -> list[tuple[int, Stat]]:
    """Quiet shapes of at least ``least`` lines that say something, in order of their first lines.

    anchored: whether a message carries a literal of a rule; such lines may matter by their numbers.
    """
    found = [(key, stat) for key, stat in delta.shapes.items() if stat.count >= least and is_quiet(stat)]
    worded = [(k, s) for k, s in found if _WORD.search(samples(s)[0]) and not any(map(anchored, samples(s)))]
    return sorted(worded, key=lambda pair: (pair[1].first, pair[1].first_text))
