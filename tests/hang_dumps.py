"""Flight-recorder dumps as torch writes them, for tests: groups, entries and status of one rank."""

import json
import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
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
    return json.dumps(content).encode() if as_json else as_torch_writes(dict(content))


def as_torch_writes(value: Any) -> bytes:
    """Only strings have a place in the memo, a tuple is a pair, and a large integer has eight bytes."""
    return pickle.PROTO + b"\x02" + b"".join(_opcodes(value, {})) + pickle.STOP


def _opcodes(value: Any, memo: dict[str, int]) -> Iterator[bytes]:
    if isinstance(value, str):
        yield _string(value, memo)
    elif isinstance(value, dict):
        yield pickle.EMPTY_DICT + pickle.MARK
        for key, item in value.items():
            yield from _opcodes(key, memo)
            yield from _opcodes(item, memo)
        yield pickle.SETITEMS
    elif isinstance(value, list):
        yield pickle.EMPTY_LIST + pickle.MARK
        for item in value:
            yield from _opcodes(item, memo)
        yield pickle.APPENDS
    elif isinstance(value, tuple):
        for item in value:
            yield from _opcodes(item, memo)
        yield pickle.TUPLE2
    else:
        yield pickle.dumps(value, protocol=2)[2:-1]


def _string(text: str, memo: dict[str, int]) -> bytes:
    if text in memo:
        place = memo[text]
        return pickle.BINGET + bytes([place]) if place < 256 else pickle.LONG_BINGET + struct.pack("<I", place)
    place = memo[text] = len(memo)
    put = pickle.BINPUT + bytes([place]) if place < 256 else pickle.LONG_BINPUT + struct.pack("<I", place)
    data = text.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(data)) + data + put
