"""Which rules hit which kept lines. One RE2 set holds every pattern, so a line is read once, in linear time.

A set tells which patterns match and nothing more; only those are run again for their groups and conditions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import re2

from diagnoser.model import Evidence, Line
from diagnoser.rules.schema import Near, Rule, RuleSet

_SET_MEMORY = 256 << 20
"""Bytes the automaton of the whole set may grow to before RE2 starts over: it is filled only as far as logs need it."""
_LONGEST = 8192
"""Characters of a body that are searched: longer lines carry their message at the front (and are cut anyway)."""

_SOURCE = ("raise ", "return ", "assert ", 'File "', "logger.", "logging.", "print(", "warnings.warn(")


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule that matches a line. ``line`` is an index into ``Evidence.lines``; None where nothing was extracted."""

    rule: Rule
    line: int
    rank: int | None = None
    node: str | None = None
    gpu: str | None = None


class Engine:
    """A compiled rule set. It keeps no state between logs and may be shared by threads."""

    def __init__(self, ruleset: RuleSet) -> None:
        self.ruleset = ruleset
        self._owners = [(rule, pattern) for rule in ruleset.rules for pattern in rule.patterns]
        self._set = _compile([pattern for _, pattern in self._owners])

    def match(self, evidence: Evidence) -> tuple[Hit, ...]:
        """All hits in the order of the lines; on one line the most specific first, then by id."""
        around = _Around(evidence)
        seen: dict[str, tuple[Hit, ...]] = {}
        hits: list[Hit] = []
        for index, line in enumerate(evidence.lines):
            body = line.body[:_LONGEST]
            if around.is_source(index):
                continue
            found = seen.get(body)
            if found is None:
                found = seen[body] = self._hits(body)
            hits += [
                Hit(hit.rule, index, hit.rank, hit.node, hit.gpu) for hit in found if around.allows(hit.rule, index)
            ]
        return tuple(hits)

    def _hits(self, body: str) -> tuple[Hit, ...]:
        """Hits of a body, as far as the body alone decides."""
        if not self._owners or not body:
            return ()
        groups: dict[str, dict[str, str]] = {}
        rules: dict[str, Rule] = {}
        for number in sorted(self._set.Match(body) or ()):
            rule, pattern = self._owners[number]
            rules[rule.id] = rule
            groups[rule.id] = _groups(pattern, body) | groups.get(rule.id, {})
        kept = [rule for rule in rules.values() if not _any(rule.unless, body)]
        kept.sort(key=lambda rule: (-rule.specificity, rule.id))
        return tuple(_hit(rule, groups[rule.id]) for rule in kept)


class _Around:
    """What a rule may ask about the surroundings of a line: its traceback's frames and the lines beside it."""

    def __init__(self, evidence: Evidence) -> None:
        self._lines = evidence.lines
        self._frames: dict[int, list[str]] = {}
        self._raised = {index: trace.raised for trace in evidence.tracebacks for index in trace.lines}
        for trace in evidence.tracebacks:
            for index in trace.lines:
                self._frames.setdefault(index, []).extend(trace.frames)

    def is_source(self, index: int) -> bool:
        """Frames and code of a traceback: a quoted ``raise ValueError("...")`` is a message that nobody printed."""
        body = self._lines[index].body
        if not body[:1].isspace():
            return False
        return index < self._raised.get(index, -1) or body.lstrip().startswith(_SOURCE)

    def allows(self, rule: Rule, index: int) -> bool:
        if rule.frames and not any(_any(rule.frames, frame) for frame in self._frames.get(index, ())):
            return False
        if rule.near and not self._near(rule.near, index):
            return False
        return not (rule.not_near and self._near(rule.not_near, index))

    def _near(self, near: Near, index: int) -> bool:
        here = self._lines[index]
        for step in (-1, 1):
            other = index + step
            while 0 <= other < len(self._lines) and abs(other - index) <= near.lines:
                line = self._lines[other]
                if _beside(here, line, near.lines) and _any(near.patterns, line.body[:_LONGEST]):
                    return True
                other += step
        return False


def _beside(here: Line, there: Line, reach: int) -> bool:
    return there.stream != here.stream or abs(there.number - here.number) <= reach


def _compile(patterns: Sequence[str]) -> Any:
    options = re2.Options()
    options.max_mem = _SET_MEMORY
    options.log_errors = False
    compiled = re2.Set.SearchSet(options)
    for pattern in patterns:
        compiled.Add(pattern)
    if patterns:
        compiled.Compile()
    return compiled


@lru_cache(maxsize=8192)
def _regex(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def _any(patterns: Sequence[str], text: str) -> bool:
    return any(_regex(pattern).search(text) for pattern in patterns)


def _groups(pattern: str, body: str) -> dict[str, str]:
    regex = _regex(pattern)
    if not regex.groupindex:
        return {}
    found = regex.search(body)
    return {name: value for name, value in found.groupdict().items() if value} if found else {}


def _hit(rule: Rule, groups: dict[str, str]) -> Hit:
    rank = groups.get("rank", "")
    return Hit(rule, -1, int(rank) if rank.isdecimal() else None, groups.get("node"), groups.get("gpu"))
