"""Flight-recorder dumps as torch writes them, for tests: groups, entries and status of one rank."""

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

WORLD = "0"


def entry(
    group: str,
    sequence: int,
    *,
    order: int,
    done: bool = False,
    name: str = "nccl:all_reduce",
    size: int = 64,
    **more: Any,
) -> dict[str, Any]:
    """One operation. A send or receive has a name such as "nccl:send 0->1", ranks within the group."""
    is_p2p = "send" in name or "recv" in name
    return {
        "record_id": order,
        "pg_id": 0,
        "process_group": (group, f"group {group}"),
        "collective_seq_id": 0 if is_p2p else sequence,
        "p2p_seq_id": sequence if is_p2p else 0,
        "profiling_name": name,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "state": "completed" if done else "scheduled",
        "retired": done,
        "is_p2p": is_p2p,
        "frames": [
            {"name": "all_reduce", "filename": "/env/torch/distributed/distributed_c10d.py", "line": 9},
            {"name": "step", "filename": "/code/train.py", "line": 88},
        ],
    } | more


def dump(groups: Mapping[str, Sequence[int]], entries: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    config = {
        name: {"name": name, "desc": f"group {name}", "ranks": str(list(ranks))} for name, ranks in groups.items()
    }
    return {"version": "2.9", "pg_config": config, "pg_status": {}, "entries": list(entries)} | more


def written(content: Mapping[str, Any], *, as_json: bool = False) -> bytes:
    return json.dumps(content).encode() if as_json else pickle.dumps(dict(content), protocol=2)
