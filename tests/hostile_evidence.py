"""Evidence of a hang as a tenant may send it: every format, broken. Bytes in; read, or refused with BadInput."""

import json
import random

from diagnoser.hang import debug_tables, nccl_ras, report, stacks
from diagnoser.hang.flight_recorder import DumpReader
from diagnoser.model.errors import BadInput
from tests.hang_dumps import debug_tables_of, dump, entry, written

_CONTENT = dump(
    {"0": (0, 1, 2, 3), "7": (1, 3)},
    [entry("7", 5, order=2), entry("0", 4, order=1, done=True), entry("7", 4, order=0, name="nccl:recv 1<-0")],
    pg_status={"0": {"last_enqueued_collective": 40, "last_completed_collective": 40}},
)
SEEDS = (
    written(_CONTENT),
    written(_CONTENT, as_json=True),
    b"""Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 7103 on node 10.0.0.3 managing GPU 3

#0-0 (51a0c3f2) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 3

#0-0 (51a0c3f2) MISMATCH
  Communicator ranks have different collective operation counts
  30 ranks have launched up to operation 812
  2 ranks have launched up to operation 811
  Rank 4 -- GPU 4 managed by process 7104 on node 10.0.0.4
""",
    b"[2026-01-02 03:04:05] PEER_DEAD: Process 7103 on node 10.0.0.3 managing GPU 3\n",
    json.dumps(
        {
            "communicators": [
                {
                    "size": 2,
                    "ranks": [{"rank": 0, "host": "a", "pid": 5, "collective_counts": {"AllReduce": 7}}],
                    "missing_ranks": [{"rank": 1, "host": "b", "pid": 6, "status": {"considered_dead": True}}],
                }
            ]
        }
    ).encode(),
    b'{\n"event": "PEER_DEAD",\n"peer": {"host": "a", "pid": 6}\n}\n{\n"event": "RAS",\n"peer": {}\n}\n',
    b'Thread 0x7f01 (most recent call first):\n  File "/code/data.py", line 12 in next_batch\n',
    b'Process 77: python\n\nThread 77 (idle): "MainThread"\n    wait (libc.so.6)\n    all_reduce (c10d.py:2810)\n',
    b"=== Rank 0: host:1 ===\nThread 77 (idle)\n    step (train.py:88)\n=== Rank 1: host:1 ===\nError: 500\n",
    debug_tables_of([("all_reduce", (0, 1, 3), ""), ("barrier", (0, 1), "broadcast")], silent=2).encode(),
    json.dumps([{"thread_name": "MainThread", "frames": [{"name": "f", "filename": "a.py", "line": 3}]}]).encode(),
)


def one_input(data: bytes) -> None:
    """Raises whatever a parser raises but BadInput, and AssertionError where a bound does not hold."""
    try:
        debug_tables.read_tables(data, DumpReader())
    except BadInput as error:
        assert str(error)
    for parse in (DumpReader().read, stacks.parse_stacks):
        try:
            parse(data, 3)
        except BadInput as error:
            assert str(error)
    for parse_all in (nccl_ras.parse_ras, stacks.parse_all_stacks):
        try:
            parse_all(data)
        except BadInput as error:
            assert str(error)
    files = [("_dump_0", data), ("_dump_1", SEEDS[0]), ("_dump_3", SEEDS[1]), ("stack_2.txt", data)]
    result = report.analyze(report.read(files), {0: "node-0"}, 4)
    assert all(0 <= suspect.score <= 1 and suspect.why for suspect in result.suspects)
    json.dumps(
        [result.notes, result.rejected, [(suspect.rank, suspect.why) for suspect in result.suspects]],
        ensure_ascii=False,
    ).encode()


def mutated(rng: random.Random) -> bytes:
    """One of the seeds, or two, with bytes changed, cut, doubled and taken from another."""
    data = bytearray(rng.choice(SEEDS) + (rng.choice(SEEDS) if rng.random() < 0.1 else b""))
    for _ in range(rng.randint(0, 8)):
        at, length = rng.randrange(len(data)), rng.randint(1, 30)
        other = rng.choice(SEEDS)
        start = rng.randrange(len(other))
        change = rng.choice(
            (b"", bytes([rng.randrange(256)]), other[start : start + length], data[at : at + length] * 2)
        )
        data[at : at + rng.choice((0, 1, length))] = change
        data = data or bytearray(b"{")
    return bytes(data)
