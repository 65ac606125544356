"""What a prompt about a failure is filled with. All of it is pseudonymized before a model sees it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from diagnoser.dialects.node_lists import listed_nodes
from diagnoser.llm.evidence import Checked
from diagnoser.llm.view import LogView, Pseudonymizer, delimited
from diagnoser.model import ASK_REASONS, Diagnosis, Evidence, Facts, Line, Rejected, RootCause
from diagnoser.model.taxonomy import DEFINITIONS, Category, FailureType, category_of
from diagnoser.redaction.redact import mask_key_blocks

_CLASS = re.compile(r"^a Python [A-Za-z]+(?= with no deeper cause)")
_WEIGHED = 8
_SIMILAR = 3
_NAME_CHARS = 40
_LINE_CHARS = 300
_SECTION_LINES = 12


@dataclass(frozen=True, slots=True)
class Section:
    """A finding in words, or lines of another log: printed by programs, so it is masked and marked like the log."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Background:
    """What a model is told beside the view. weighed: candidates of the rules that are no mere noise."""

    weighed: tuple[Rejected, ...] = ()
    sections: tuple[Section, ...] = ()


def variables(
    diagnosis: Diagnosis,
    facts: Facts,
    view: LogView,
    background: Background,
    confirmed_failures: Sequence[str],
    pseudonyms: Pseudonymizer,
    marker: str,
) -> Mapping[str, Any]:
    """marker: stands before and after what programs printed, and nowhere in it."""

    def quoted(texts: Iterable[str]) -> list[str]:
        return [delimited(pseudonyms.hide(text), marker) for text in texts]

    sections = []
    for section in background.sections:
        if section.lines:
            lines = mask_key_blocks([text[:_LINE_CHARS] for text in section.lines[:_SECTION_LINES]])
            sections.append({"title": section.title, "lines": quoted(lines)})
    return {
        "marker": marker,
        "facts": pseudonyms.hide(_facts(facts)),
        "view": delimited("\n".join(map(pseudonyms.hide, mask_key_blocks(view.text.split("\n")))), marker),
        "verdict": _verdict(diagnosis),
        "candidates": _candidates(diagnosis, background.weighed, view),
        "background": sections,
        "incidents": quoted(confirmed_failures[:_SIMILAR]),
        "types": _types(),
    }


def _verdict(diagnosis: Diagnosis) -> str:
    """The rules' verdict and what in it is in doubt; "" where they found nothing."""
    if diagnosis.category is Category.UNKNOWN:
        return ""
    doubts = ", ".join(map(ASK_REASONS.__getitem__, diagnosis.doubts))
    if not doubts:
        return str(diagnosis.type)
    return f"{diagnosis.type}; in doubt: {doubts}"


def claims(
    answers: Sequence[Checked], diagnosis: Diagnosis, lines: Mapping[int, Line], hide: Callable[[str], str]
) -> list[dict[str, object]]:
    """The different types that answers and rules claim, each with its line, in the order of the lines.

    lines: by what the view calls them. Who claims what is not told, so that nobody's word counts for more.
    """
    numbers = {line: number for number, line in lines.items()}
    by_type: dict[str, tuple[int | None, str]] = {}
    for checked in answers:
        if checked.lines:
            by_type.setdefault(checked.answer.type, (numbers.get(checked.lines[0]), checked.lines[0].text))
    if diagnosis.category is not Category.UNKNOWN:
        number, text = None, ""
        if root := diagnosis.root_cause:
            number, text = _number(root, lines), root.text
        by_type.setdefault(diagnosis.type, (number, text))
    listed = sorted(by_type.items(), key=lambda claim: (claim[1][0] or 0, claim[0]))
    return [{"type": kind, "line": number, "text": hide(text[:_LINE_CHARS])} for kind, (number, text) in listed]


def _number(root: RootCause | Rejected, lines: Mapping[int, Line]) -> int | None:
    """Number of a cause's line in the view."""
    for number, line in lines.items():
        if (line.number, line.text) == (root.line, root.text):
            return number
    return None


def nodes_of(log: Evidence, facts: Facts) -> frozenset[str]:
    """Every known node of the job, also those that only a list of nodes names."""
    nodes = {*facts.nodes, *facts.job.nodes, *facts.job.rank_nodes.values(), *log.rank_nodes.values()}
    for line in log.lines:
        if line.node:
            nodes.add(line.node)
        if "=" in line.text or ":" in line.text:
            nodes.update(listed_nodes(line.text))
    return frozenset(nodes)


def ranks_of(log: Evidence, facts: Facts) -> frozenset[int]:
    """Every known rank of the job; empty when none is known."""
    seen = {line.rank for line in log.lines if line.rank >= 0}
    return frozenset({*facts.job.rank_nodes, *log.rank_nodes, *log.ranks, *seen})


def _facts(facts: Facts) -> str:
    nodes = len(facts.job.nodes) or "an unknown number of"
    return f"framework {facts.job.framework[:_NAME_CHARS] or 'unknown'}, {nodes} nodes, attempt {facts.attempt}"


def _types() -> str:
    """All types with their definitions, under their categories; neighbours of one definition share a line."""
    texts = []
    for category, kinds in groupby(DEFINITIONS, category_of):
        texts.append(str(category))
        for definition, named in groupby(kinds, _definition):
            texts.append(f"- {', '.join(named)}: {definition}")
    return "\n".join(texts)


def _definition(kind: FailureType) -> str:
    return _CLASS.sub("the Python exception of that class", DEFINITIONS[kind])


def _candidates(diagnosis: Diagnosis, weighed: Sequence[Rejected], view: LogView) -> list[dict[str, object]]:
    """Lines that the rules weighed, by their numbers in the view."""
    causes: list[tuple[RootCause | Rejected, str, str]] = []
    if diagnosis.root_cause:
        causes.append((diagnosis.root_cause, diagnosis.type, "the rules' choice"))
    for rejected in weighed[:_WEIGHED]:
        causes.append((rejected, rejected.type, rejected.why))
    candidates: list[dict[str, object]] = []
    for cause, kind, why in causes:
        number = _number(cause, view.lines)
        if number is not None:
            candidates.append({"line": number, "type": str(kind), "why": why})
    return candidates
