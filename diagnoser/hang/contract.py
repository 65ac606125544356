"""What programs get of a hang: the JSON of `diagnoser hang --json` and of the API."""

from typing import Any

from diagnoser.hang.report import HangReport
from diagnoser.hang.wait_graph import GroupState, Mismatch
from diagnoser.model import HangSuspect


def contract(result: HangReport) -> dict[str, Any]:
    """Make values that JSON has; the suspects stand with the most likely first."""
    return {
        "suspects": list(map(_suspect, result.suspects)),
        "groups": list(map(_group, result.graph.groups)),
        "mismatches": list(map(_mismatch, result.graph.mismatches)),
        "not_seen": list(result.graph.not_seen),
        "waits": {str(rank): sorted(others) for rank, others in sorted(result.graph.waits.items())},
        "notes": list(result.notes),
        "rejected": [{"file": name, "why": why} for name, why in result.rejected],
    }


def _suspect(suspect: HangSuspect) -> dict[str, Any]:
    return {
        "rank": suspect.rank,
        "why": suspect.why,
        "score": suspect.score,
        "kind": str(suspect.kind),
        "node": suspect.node or None,
    }


def _group(state: GroupState) -> dict[str, Any]:
    return {
        "group": state.group.title,
        "ranks": list(state.group.ranks),
        "highest": state.highest,
        "operation": state.operation,
        "behind": {str(rank): sequence for rank, sequence in state.behind.items()},
        "not_seen": list(state.not_seen),
    }


def _mismatch(mismatch: Mismatch) -> dict[str, Any]:
    return {
        "group": mismatch.group.title,
        "sequence": mismatch.sequence,
        "variants": [{"call": call, "ranks": list(ranks)} for call, ranks in mismatch.variants.items()],
    }
