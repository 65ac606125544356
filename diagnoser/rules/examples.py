"""Checks that each rule does what its examples say, through the same compressor that reads real logs."""

from collections.abc import Callable, Iterator
from operator import attrgetter

from diagnoser.model import Evidence
from diagnoser.model.errors import Fault
from diagnoser.model.taxonomy import category_of
from diagnoser.rules.engine import Engine, Hit
from diagnoser.rules.schema import Match, Rule

Digester = Callable[[bytes], Evidence]
"""A log's bytes -> what the compressor keeps of it."""


def check(engine: Engine, digest: Digester) -> list[Fault]:
    """Every example that does not hold: a match that misses or extracts something else, a no_match that hits."""
    faults = []
    for rule in engine.ruleset.rules:
        for what in _faults(rule, engine, digest):
            faults.append(Fault(path_of(rule), 0, what))
    return faults


def path_of(rule: Rule) -> str:
    return f"{category_of(rule.type)}/{rule.id}.yaml"


def _faults(rule: Rule, engine: Engine, digest: Digester) -> Iterator[str]:
    for index, example in enumerate(rule.examples.match):
        match = Match(text=example) if isinstance(example, str) else example
        for why in _mismatches(rule, match, engine, digest):
            yield f"examples.match.{index}: {why}"
    for index, text in enumerate(rule.examples.no_match):
        if _hits(rule, engine, digest(text.encode())):
            yield f"examples.no_match.{index}: the rule hits"


def _mismatches(rule: Rule, match: Match, engine: Engine, digest: Digester) -> Iterator[str]:
    evidence = digest(match.text.encode())
    hits = _hits(rule, engine, evidence)
    if not hits:
        text = "\n".join(map(attrgetter("body"), evidence.lines))
        anchored = any(anchor in text for anchor in rule.anchors)
        yield "the rule does not hit" if anchored else "no line carries any of the rule's anchors"
        return
    for name in ("rank", "node", "gpu"):
        wanted = getattr(match, name)
        if wanted is None:
            continue
        extracted = {_extracted(name, hit, evidence) for hit in hits} - {None, ""}
        if wanted not in extracted:
            yield f"{name}: expected {wanted!r}, extracted {sorted(map(str, extracted)) or 'nothing'}"


def _extracted(name: str, hit: Hit, evidence: Evidence) -> str | int | None:
    """The field as the rule extracted it, else as the line's prefix gives it."""
    value: str | int | None = getattr(hit, name)
    if value is not None:
        return value
    if name == "gpu":
        return value
    line = evidence.lines[hit.line]
    return line.known_rank if name == "rank" else line.node


def _hits(rule: Rule, engine: Engine, evidence: Evidence) -> list[Hit]:
    return [hit for hit in engine.match(evidence) if hit.rule.id == rule.id]
