"""What a prompt about a failure is filled with. All of it is pseudonymized before a model sees it."""

from collections.abc import Mapping, Sequence
from typing import Any

from diagnoser.llm.redact import keyless
from diagnoser.llm.view import LogView, Pseudonymizer, delimited
from diagnoser.model import Diagnosis, Evidence, Facts
from diagnoser.model.taxonomy import FailureType, category_of

_CANDIDATES = 5
_INCIDENTS = 3
_NAME_CHARS = 40


def variables(
    diagnosis: Diagnosis, facts: Facts, view: LogView, incidents: Sequence[str], pseudonyms: Pseudonymizer, marker: str
) -> Mapping[str, Any]:
    """marker: stands before and after the log, and nowhere in it."""
    return {
        "types": types(),
        "marker": marker,
        "facts": pseudonyms.hide(_facts(facts)),
        "view": delimited("\n".join(map(pseudonyms.hide, keyless(view.text.split("\n")))), marker),
        "candidates": _candidates(diagnosis, view),
        "incidents": [delimited(pseudonyms.hide(incident), marker) for incident in incidents[:_INCIDENTS]],
    }


def nodes_of(log: Evidence, facts: Facts) -> frozenset[str]:
    """Every known node of the job."""
    seen = {line.node for line in log.lines if line.node}
    return frozenset({*facts.job.nodes, *facts.job.rank_nodes.values(), *log.rank_nodes.values(), *seen})


def ranks_of(log: Evidence, facts: Facts) -> frozenset[int]:
    """Every known rank of the job; empty when none is known."""
    seen = {line.rank for line in log.lines if line.rank >= 0}
    return frozenset({*facts.job.rank_nodes, *log.rank_nodes, *log.ranks, *seen})


def types() -> Mapping[str, list[str]]:
    """The closed list by category."""
    by_category: dict[str, list[str]] = {}
    for kind in FailureType:
        by_category.setdefault(str(category_of(kind)), []).append(str(kind))
    return by_category


def _facts(facts: Facts) -> str:
    nodes = len(facts.job.nodes) or "an unknown number of"
    summary = f"framework {facts.job.framework[:_NAME_CHARS] or 'unknown'}, {nodes} nodes, attempt {facts.attempt}"
    ends = [f"{event.kind} {event.code if event.code is not None else ''}".strip() for event in facts.events]
    return f"{summary}; the launcher reported: {', '.join(ends[-3:])}" if ends else summary


def _candidates(diagnosis: Diagnosis, view: LogView) -> list[dict[str, object]]:
    """Lines that the rules weighed, by their numbers in the view."""
    numbers = {(line.number, line.text): number for number, line in view.lines.items()}
    numbered = [(numbers.get((rejected.line, rejected.text)), rejected) for rejected in diagnosis.rejected]
    rest = ((number, rejected.type, rejected.why) for number, rejected in numbered)
    root = diagnosis.root_cause
    first = (numbers.get((root.line, root.text)) if root else None, diagnosis.type, "the rules' choice")
    in_view = [candidate for candidate in (first, *rest) if candidate[0] is not None]
    return [{"line": number, "type": str(kind), "why": why} for number, kind, why in in_view[:_CANDIDATES]]
