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


def debug_tables_of(
    collectives: Sequence[tuple[str, Sequence[int], str]], ranks: int = 4, silent: int = -1, first: int = 6
) -> str:
    """What PyTorch's debug server writes of one group. collectives: (name, ranks that called it, what rank 1 called in
    its place or ""), the last of them not done. silent: a rank that did not answer. first: number of the first."""
    header = (
        "  id    group_id  pass_check      collective_seq_id    p2p_seq_id    record_id  pg_desc       collective_name"
        "    input_sizes    output_sizes    expected_ranks    collective_state    collective_frames"
    )
    frames = "[{'name': 'step', 'filename': '/code/train.py', 'line': 88}]"
    header += (
        " " * len(frames) + "input_numel    output_numel    missing_ranks    mismatch_collectives    type_of_mismatch"
    )
    everyone = f"{{{', '.join(map(str, range(ranks)))}}}"
    lines = [f"PARTIAL DATA: {ranks - 1}/{ranks} workers responded", f"  Rank {silent}: TimeoutError: ", ""]
    lines = [*(lines if silent >= 0 else ()), "=== FR Trace ===", "--- Groups ---", "  id  desc          size"]
    lines += [f"0732  default_pg  {ranks:>6}", "--- Memberships ---", "  group_id    global_rank"]
    lines += [f"      0732{rank:>15}" for rank in range(ranks)]
    lines += ["--- Collectives ---", header]
    for at, (name, called, other) in enumerate(collectives):
        missing = ", ".join(str(rank) for rank in range(ranks) if rank not in called and rank != silent)
        state = "completed" if at < len(collectives) - 1 else "scheduled"
        cells = (
            ("id", str(at)),
            ("group_id", "0"),
            ("pass_check", str(not other)),
            ("collective_seq_id", str(first + at)),
            ("p2p_seq_id", "0"),
            ("record_id", str(at)),
            ("pg_desc", "0:default_pg"),
            ("collective_name", f"nccl:{name}"),
            ("input_sizes", "[[64]]"),
            ("output_sizes", "[[64]]"),
            ("expected_ranks", everyone),
            ("collective_state", state),
            ("collective_frames", frames),
            ("missing_ranks", f"{{{missing}}}" if missing else ""),
            ("mismatch_collectives", _mismatch(first + at, at, other, everyone) if other else ""),
        )
        line = ""
        for column, cell in cells:
            place = header.index(column)
            end = place + len(column)
            line = line.ljust(end - len(cell)) + cell if cell.isdecimal() else line.ljust(place) + cell
        lines.append(line)
    lines += ["--- NCCL Calls ---", "  id  collective_id      group_id    global_rank    traceback_id  collective_type"]
    return "\n".join(lines)


def _mismatch(sequence: int, record: int, name: str, everyone: str) -> str:
    return (
        f"{{1: Collective(id={record}, group_id='0', pass_check=False, collective_seq_id={sequence}, p2p_seq_id=0, "
        f"record_id={record}, pg_desc='0:default_pg', collective_name='nccl:{name}', input_sizes=[[64]], "
        f"output_sizes=[[64]], expected_ranks={everyone}, collective_state='scheduled', collective_frames=[])}}"
    )


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
