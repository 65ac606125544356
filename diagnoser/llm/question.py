"""What a prompt about a failure is filled with. All of it is pseudonymized before a model sees it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diagnoser.dialects.node_lists import listed_nodes
from diagnoser.llm.evidence import Checked
from diagnoser.llm.view import LogView, Pseudonymizer, delimited
from diagnoser.model import ASK_REASONS, Diagnosis, Evidence, Facts, Line, Rejected, RootCause
from diagnoser.model.taxonomy import Category
from diagnoser.redaction.redact import keyless

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
    return {
        "marker": marker,
        "facts": pseudonyms.hide(_facts(facts)),
        "view": delimited("\n".join(map(pseudonyms.hide, keyless(view.text.split("\n")))), marker),
        "verdict": _verdict(diagnosis),
        "candidates": _candidates(diagnosis, background.weighed, view),
        "background": [_section(section, pseudonyms, marker) for section in background.sections if section.lines],
        "incidents": [delimited(pseudonyms.hide(confirmed), marker) for confirmed in confirmed_failures[:_SIMILAR]],
    }


def _section(section: Section, pseudonyms: Pseudonymizer, marker: str) -> dict[str, object]:
    lines = keyless([text[:_LINE_CHARS] for text in section.lines[:_SECTION_LINES]])
    return {"title": section.title, "lines": [delimited(pseudonyms.hide(text), marker) for text in lines]}


def _verdict(diagnosis: Diagnosis) -> str:
    """The rules' verdict and what in it is in doubt; "" where they found nothing."""
    if diagnosis.category is Category.UNKNOWN:
        return ""
    doubts = ", ".join(ASK_REASONS[reason] for reason in diagnosis.doubts)
    return f"{diagnosis.type}; in doubt: {doubts}" if doubts else str(diagnosis.type)


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
        root = diagnosis.root_cause
        by_type.setdefault(diagnosis.type, (_number(root, lines) if root else None, root.text if root else ""))
    listed = sorted(by_type.items(), key=lambda claim: (claim[1][0] or 0, claim[0]))
    return [{"type": kind, "line": number, "text": hide(text[:_LINE_CHARS])} for kind, (number, text) in listed]


def _number(root: RootCause | Rejected, lines: Mapping[int, Line]) -> int | None:
    """Number of a cause's line in the view."""
    return next((n for n, line in lines.items() if (line.number, line.text) == (root.line, root.text)), None)


def nodes_of(log: Evidence, facts: Facts) -> frozenset[str]:
    """Every known node of the job, also those that only a list of nodes names."""
    seen = {line.node for line in log.lines if line.node}
    listed = {node for line in log.lines if "=" in line.text or ":" in line.text for node in listed_nodes(line.text)}
    registered = {*facts.nodes, *facts.job.nodes, *facts.job.rank_nodes.values()}
    return frozenset({*registered, *log.rank_nodes.values(), *seen, *listed})


def ranks_of(log: Evidence, facts: Facts) -> frozenset[int]:
    """Every known rank of the job; empty when none is known."""
    seen = {line.rank for line in log.lines if line.rank >= 0}
    return frozenset({*facts.job.rank_nodes, *log.rank_nodes, *log.ranks, *seen})


def _facts(facts: Facts) -> str:
    nodes = len(facts.job.nodes) or "an unknown number of"
    summary = f"framework {facts.job.framework[:_NAME_CHARS] or 'unknown'}, {nodes} nodes, attempt {facts.attempt}"
    told = (event for event in facts.events if event.phase is None)
    ends = [f"{event.kind} {event.code if event.code is not None else ''}".strip() for event in told]
    return f"{summary}; the launcher reported: {', '.join(ends[-3:])}" if ends else summary


def _candidates(diagnosis: Diagnosis, weighed: Sequence[Rejected], view: LogView) -> list[dict[str, object]]:
    """Lines that the rules weighed, by their numbers in the view."""
    root = diagnosis.root_cause
    first = [(_number(root, view.lines), diagnosis.type, "the rules' choice")] if root else []
    rest = [(_number(rejected, view.lines), rejected.type, rejected.why) for rejected in weighed[:_WEIGHED]]
    in_view = [candidate for candidate in (*first, *rest) if candidate[0] is not None]
    return [{"line": number, "type": str(kind), "why": why} for number, kind, why in in_view]
