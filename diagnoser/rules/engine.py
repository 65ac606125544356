"""Which rules hit which kept lines, in linear time whatever a rule says: everything is RE2.

An index of all anchors reads a line once and tells which rules may match at all; only those are run. (A set of all
patterns would track a thousand partial matches at once: its automaton outgrows any memory, and each line then
costs milliseconds.)
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import methodcaller
from typing import Any

from diagnoser.model import Evidence, Line, expressions
from diagnoser.rules.schema import Near, Role, Rule, RuleSet
from diagnoser.rules.statements import stated_matches

_LONGEST = 8192
"""Characters of a body that are searched: longer lines carry their message in front (and are truncated anyway)."""

_GLUED = re.compile(r"^\s*KeyboardInterrupt|[)\"'](?:\w+\.)*\w+(?:Error|Exception)(?:: |\s*$)")
"""Ranks that write into each other glue exceptions to code; no Python source looks like this."""
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
        self._anchored = expressions.AnchorIndex((rule, rule.anchors) for rule in ruleset.rules)

    def match(self, evidence: Evidence) -> tuple[Hit, ...]:
        """All hits in the order of the lines; on one line the most specific first."""
        surroundings = _Surroundings(evidence)
        seen: dict[str, tuple[Hit, ...]] = {}
        hits: list[Hit] = []
        for index, line in enumerate(evidence.lines):
            body = line.body[:_LONGEST]
            if surroundings.is_source(index):
                continue
            body_hits = seen.get(body)
            if body_hits is None:
                body_hits = seen[body] = self._hits(body)
            hits += _undisputed([replace(hit, line=index) for hit in body_hits if surroundings.allows(hit.rule, index)])
        return tuple(hits)

    def _hits(self, body: str) -> tuple[Hit, ...]:
        """The rules that match this body, before their conditions on the surroundings."""
        hits = (_hit(rule, body) for rule in self._anchored.rows(body))
        return tuple(sorted(filter(None, hits), key=_preference))


def _undisputed(hits: list[Hit]) -> list[Hit]:
    """The hits on one line without those of rules that another one of them overrides."""
    overridden = {rule_id for hit in hits for rule_id in hit.rule.overrides}
    return [hit for hit in hits if hit.rule.id not in overridden]


def _preference(hit: Hit) -> tuple[int, bool, str]:
    """The more specific first; of two alike the benign one, written as an exception to the other; then by id."""
    return -hit.rule.specificity, hit.rule.role is not Role.BENIGN, hit.rule.id


class _Surroundings:
    """What a rule may ask about the surroundings of a line: its traceback's frames and the lines beside it."""

    def __init__(self, evidence: Evidence) -> None:
        self._lines = evidence.lines
        self._frames: dict[int, list[str]] = {}
        self._raised: dict[int, int] = {}
        for trace in evidence.tracebacks:
            self._raised |= dict.fromkeys(trace.lines, trace.raised)
            for index in trace.lines:
                self._frames.setdefault(index, []).extend(trace.frames)

    def is_source(self, index: int) -> bool:
        """Frames and code of a traceback: a quoted ``raise ValueError("...")`` is a message that nobody printed."""
        body = self._lines[index].body
        if not body[:1].isspace():
            return False
        if _GLUED.search(body):
            return False
        if index < self._raised.get(index, -1):
            return True
        return body.lstrip().startswith(_SOURCE)

    def allows(self, rule: Rule, index: int) -> bool:
        """Whether the surroundings of the line are as the rule wants them."""
        if rule.severity and _severity_name(self._lines[index]) not in rule.severity:
            return False
        if rule.frames and not self._has_frame(rule.frames, index):
            return False
        if rule.near and not self._near(rule.near, index):
            return False
        return not (rule.not_near and self._near(rule.not_near, index))

    def _has_frame(self, patterns: Sequence[str], index: int) -> bool:
        return any(_any_matches(patterns, frame) for frame in self._frames.get(index, ()))

    def _near(self, near: Near, index: int) -> bool:
        here, lines = self._lines[index], self._lines
        before = range(index - 1, max(-1, index - near.lines - 1), -1)
        after = range(index + 1, min(len(lines), index + near.lines + 1))
        for other in (*before, *after):
            line = lines[other]
            if not _beside(here, line, near.lines):
                continue
            if _any_matches(near.patterns, line.body[:_LONGEST]):
                return True
        return False


def _severity_name(line: Line) -> str:
    return "none" if line.severity is None else line.severity.name.lower()


def _beside(here: Line, there: Line, reach: int) -> bool:
    if there.stream != here.stream:
        return True
    return abs(there.number - here.number) <= reach


@lru_cache(maxsize=16384)
def _regex(pattern: str) -> Any:
    return expressions.compiled(pattern)


def _any_matches(patterns: Sequence[str], text: str) -> bool:
    return any(map(methodcaller("search", text), map(_regex, patterns)))


def _hit(rule: Rule, body: str) -> Hit | None:
    """The rule on this body, with what any of its patterns extracts; None when none matches or one vetoes."""
    matches = stated_matches(map(_regex, rule.patterns), body)
    if not matches:
        return None
    if _any_matches(rule.unless, body):
        return None
    groups: dict[str, str] = {}
    for match in reversed(matches):  # the first one that extracts a name counts
        groups |= {name: value for name, value in match.groupdict().items() if value}
    rank = groups.get("rank", "")
    return Hit(rule, -1, int(rank) if rank.isdecimal() else None, groups.get("node"), groups.get("gpu"))
