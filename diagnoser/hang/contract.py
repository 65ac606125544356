"""What programs get of a hang: the JSON of `diagnoser hang --json` and of the API."""

from typing import Any

from diagnoser.hang.report import HangReport
from diagnoser.hang.wait_graph import GroupState, Mismatch


def contract(result: HangReport) -> dict[str, Any]:
    """Values that JSON has. suspects: only ranks that are really suspected, the most likely first."""
    return {
        "suspects": [
            {
                "rank": suspect.rank,
                "why": suspect.why,
                "score": suspect.score,
                "kind": str(suspect.kind),
                "node": suspect.node or None,
            }
            for suspect in result.suspects
        ],
        "groups": [_group(state) for state in result.graph.groups],
        "mismatches": [_mismatch(mismatch) for mismatch in result.graph.mismatches],
        "not_seen": list(result.graph.not_seen),
        "waits": {str(rank): sorted(others) for rank, others in sorted(result.graph.waits.items())},
        "notes": list(result.notes),
        "rejected": [{"file": name, "why": why} for name, why in result.rejected],
    }


def _group(state: GroupState) -> dict[str, Any]:
    return {
        "group": state.group.description or "default",
        "ranks": list(state.group.ranks),
        "highest": state.highest,
        "operation": state.operation,
        "behind": {str(rank): sequence for rank, sequence in state.behind.items()},
        "not_seen": list(state.not_seen),
    }


def _mismatch(mismatch: Mismatch) -> dict[str, Any]:
    return {
        "group": mismatch.group.description or "default",
        "sequence": mismatch.sequence,
        "variants": [{"call": call, "ranks": list(ranks)} for call, ranks in mismatch.variants.items()],
    }
