"""Learned Filter Rules: which shapes of a merged delta a job family's rules know as routine.

They are applied when a log is read, not when it is stored. So deltas of replicas with different rules merge as ever, a
rule that is promoted or retired counts for what is stored already, and nothing is ever lost. Only shapes that say
nothing by themselves can be known: no anchor of a rule, no word of trouble, no traceback, no progress.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import re2

from diagnoser.compress.delta import Delta, TemplateStats
from diagnoser.compress.line_flags import IMPORTANT, LineFlag
from diagnoser.compress.lines import body_of

LEARNED = "learned/"
"""In front of the id of a learned rule, where shipped filters have ``<family>/``."""
_TELLS = IMPORTANT | int(LineFlag.PROGRESS | LineFlag.NODE)
_UNEASY = re.compile(
    r"(?i)retr(?:y|ies)|again|slow|stall|delay|wait|late\b|skip|drop|discard|reduc|degrad|throttl|fall.?back|evict|restart"
    r"|recover|overflow|grow|leak|pressure|limit|exceed|exhaust|insufficient|unhandled|weird|odd\b|bad\b|wrong|mismatch"
)
"""Words that are no trouble by themselves, and yet nothing to be hidden on a machine's judgement."""
_WORD = re.compile(r"[^\W\d_]{3}")


@dataclass(frozen=True)
class Known:
    """A learned Filter Rule. patterns: RE2, any of them, searched in the message of a line."""

    id: str
    patterns: tuple[str, ...]

    def takes(self, text: str) -> bool:
        return bool(_set((self,)).Match(text))


@lru_cache(maxsize=256)
def _set(rules: tuple[Known, ...]) -> Any:
    """All patterns of some rules, looked for in one pass."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 64 << 20
    made = re2.Set.SearchSet(options)
    for rule in rules:
        for pattern in rule.patterns:
            made.Add(pattern)
    made.Compile()
    return made


@dataclass(frozen=True, slots=True)
class Taken:
    """What a rule knows of one log. bytes: about, by the length of a sample of each shape."""

    shapes: frozenset[int]
    lines: int
    bytes: int


def is_quiet(stat: TemplateStats) -> bool:
    """Whether a shape is routine that no filter knows yet, as far as its kind tells."""
    return not stat.kind & _TELLS and not stat.filtered


def message(line: str) -> str:
    """A line without terminal codes and launcher prefixes."""
    return body_of(line.encode("utf-8", "replace"))[1].decode("utf-8", "replace")


def samples(stat: TemplateStats) -> list[str]:
    """The messages of the first and the last line of a shape."""
    return [body_of(text)[1].decode("utf-8", "replace") for text in dict.fromkeys((stat.first_text, stat.last_text))]


def taken(delta: Delta, rule: Known) -> Taken:
    """The quiet shapes that a rule knows."""
    found = {key: delta.shapes[key] for key in _knowing(delta, (rule,))}
    size = sum(stat.count * len(stat.first_text) for stat in found.values())
    return Taken(frozenset(found), sum(stat.count for stat in found.values()), size)


def known(delta: Delta, rules: Sequence[Known]) -> Delta:
    """The delta with what the rules know marked as filtered; the first rule counts. The one given stays as it is."""
    if not rules:
        return delta
    shapes = dict(delta.shapes)
    for key, rule in _knowing(delta, tuple(rules)).items():
        shapes[key] = shapes[key].copy()
        shapes[key].filtered = LEARNED + rule.id
    return replace(delta, shapes=shapes)


def _knowing(delta: Delta, rules: tuple[Known, ...]) -> dict[int, Known]:
    """Quiet shapes by name -> the first rule that knows both of their samples."""
    owners = [rule for rule in rules for _ in rule.patterns]
    patterns, found = _set(rules), {}
    for key, stat in delta.shapes.items():
        if is_quiet(stat):
            hits = [{owners[hit] for hit in patterns.Match(text) or ()} for text in samples(stat)]
            both = set.intersection(*hits)
            if both:
                found[key] = min(both, key=rules.index)
    return found


def unknown(delta: Delta, anchored: Callable[[str], bool]) -> list[tuple[int, TemplateStats]]:
    """Quiet shapes that say something, and nothing uneasy, in order of their first lines.

    anchored: whether a message carries a literal of a rule; such lines may matter by their numbers.
    """
    found = [(key, stat) for key, stat in delta.shapes.items() if is_quiet(stat)]
    worded = [(k, s) for k, s in found if _WORD.search(samples(s)[0]) and not _UNEASY.search(samples(s)[0])]
    plain = [(key, stat) for key, stat in worded if not any(map(anchored, samples(stat)))]
    return sorted(plain, key=lambda pair: (pair[1].first, pair[1].first_text))
