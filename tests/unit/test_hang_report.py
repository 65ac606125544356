"""NCCL RAS, stacks and recorders together: who is suspected, where, and how sure."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diagnoser.cli import cli
from diagnoser.hang import nccl_ras, report, stacks
from diagnoser.model import EvidenceKind
from diagnoser.model.errors import BadInput
from tests.corpus import CORPUS
from tests.hang_dumps import dump, entry, written

FIXTURES = CORPUS.parent / "fixtures" / "nccl-ras"
ALL = {"0": (0, 1, 2, 3)}
BEHIND = """Warnings
========

#0-0 (51a0c3f2) MISMATCH
  Communicator ranks have different collective operation counts
  30 ranks have launched up to operation 812
  2 ranks have launched up to operation 811
  Rank 4 -- GPU 4 managed by process 7104 on node 10.0.0.4
  Rank 5 -- GPU 5 managed by process 7105 on node 10.0.0.4
"""
DEAD = """Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 7103 on node 10.0.0.3 managing GPU 3

#0-0 (51a0c3f2) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 3
"""
WAITING = """Thread 0x7f01 (most recent call first):
  File "/env/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/code/train.py", line 88 in step
"""
LOADING = """Thread 0x7f02 (most recent call first):
  File "/env/threading.py", line 300 in run

Thread 0x7f01 (most recent call first):
  File "/code/data.py", line 12 in next_batch
  File "/code/train.py", line 80 in step
"""
PY_SPY = """Process 77: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 77 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2810)
    step (train.py:88)
Thread 99 (active): "pin"
    run (threading.py:300)
"""
NATIVE = """Process 77: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 77 (idle): "MainThread"
    __futex_abstimed_wait_common (libc.so.6)
    std::condition_variable::wait (libstdc++.so.6.0.30)
    c10d::AsyncWork::wait (libtorch_cpu.so)
    all_reduce (torch/distributed/distributed_c10d.py:2810)
        Arguments:
            tensor: <Tensor at 0x7f60bfe12c10>
    step (train.py:88)
    0x7f60bfe4524a (libc.so.6)
"""
JSON = """[{"pid": 77, "thread_name": "pin", "frames": [{"name": "run", "filename": "/lib/threading.py", "line": 300}]},
{"pid": 77, "thread_name": "MainThread", "frames": [
  {"name": "all_reduce", "filename": "/torch/distributed/distributed_c10d.py", "short_filename": null, "line": 2810},
  {"name": "step", "filename": "/code/train.py", "short_filename": "train.py", "line": 88}]}]"""
QUEUE = """Thread 0x7f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/code/data.py", line 12 in next_batch
"""


def dumps(*present: int, behind: int = -1) -> list[tuple[str, bytes]]:
    done = [entry("0", 5, order=0, done=True)]
    standing = [*done, entry("0", 6, order=1)]
    return [(f"_dump_{rank}", written(dump(ALL, done if rank == behind else standing))) for rank in present]


def test_ras_names_ranks_that_are_behind_with_their_node() -> None:
    """The smaller part, rank by rank; all ranks are placed."""
    found = nccl_ras.parse_ras(BEHIND.encode())
    assert [(one.rank, one.node, one.behind) for one in found.findings] == [(4, "10.0.0.4", 1), (5, "10.0.0.4", 1)]
    assert dict(found.nodes) == {4: "10.0.0.4", 5: "10.0.0.4"}


def test_ras_tells_the_process_and_the_missing_rank_apart_and_both_are_one() -> None:
    """The rank stands in one part of the text, its host in another."""
    (finding,) = nccl_ras.parse_ras(DEAD.encode()).findings
    assert (finding.rank, finding.node, finding.process) == (3, "10.0.0.3", 7103)
    assert "considered dead" in finding.why


def test_an_answer_of_ras_that_is_cut_short_accuses_nobody_else() -> None:
    """Wherever it ends: the beginning of a rank or host is another one."""
    text = DEAD.replace("missing rank: 3", "missing rank: 31")
    for end in range(len(text)):
        findings = nccl_ras.parse_ras(("RAS\n" + text[:end]).encode()).findings
        assert {finding.rank for finding in findings} <= {-1, 31}
        assert {finding.node for finding in findings} <= {"", "10.0.0.3"}


def _communicator(ranks: dict[int, int], behind: int) -> dict[str, object]:
    """ranks: own rank -> rank of the job, two on a node. behind: one of the job."""
    rows = []
    for own, rank in ranks.items():
        counts = {"AllReduce": 10 if rank == behind else 12}
        rows.append({"rank": own, "host": f"n{rank // 2}", "pid": 100 + rank, "collective_counts": counts})
    return {"size": len(ranks), "ranks": rows}


def test_a_rank_of_a_smaller_communicator_is_named_as_the_job_counts_it() -> None:
    """In JSON by its process; text does not tell, so that it accuses nobody."""
    world, data = _communicator({rank: rank for rank in range(8)}, -1), _communicator(dict(enumerate((1, 3, 5, 7))), 5)
    (finding,) = nccl_ras.parse_ras(json.dumps({"communicators": [data, world]}).encode()).findings
    assert (finding.rank, finding.node) == (5, "n2")
    table = "Communicators\n    0   1   4   2   8   8   RUNNING  OK\n    1   2   4   1   4   8   RUNNING  MISMATCH\n"
    small = BEHIND.replace("#0-0", "#1-0")
    assert nccl_ras.parse_ras((table + small).encode()).findings == ()
    assert len(nccl_ras.parse_ras((table + BEHIND).encode()).findings) == 2


def test_no_dump_claims_a_rank_that_no_job_has() -> None:
    """The default group would have every rank up to it, and a page or a database would not take it."""
    missing = {"size": 2, "missing_ranks": [{"rank": 2**64 - 1, "host": "n1", "pid": 2}]}
    ras = ("ras.json", json.dumps({"communicators": [missing]}).encode())
    evidence = report.read([("dump", dumps(0)[0][1]), ras], {"dump": 3_000_000})
    assert [name for name, _ in evidence.rejected] == ["dump"]
    assert report.analyze(evidence).suspects == ()


def test_a_group_whose_name_is_a_number_of_thousands_of_digits_is_a_name() -> None:
    """Python refuses to read it as a number: the dump was answered as an error of the service, and sent again."""
    data = written(dump({"9" * 5000: (0, 1), "0": (0, 1)}, [entry("0", 5, order=0)]), as_json=True)
    assert report.read([("_dump_0", data)]).rejected == ()


@pytest.mark.parametrize("text", ["", "step 4 loss 2.1", "Fault ranks: [12, 14]", "{", '{"a": 1}'])
def test_other_text_is_no_answer_of_ras(text: str) -> None:
    """It is refused, and does not count as an answer without findings."""
    with pytest.raises(BadInput):
        nccl_ras.parse_ras(text.encode())


def test_recorder_and_ras_together_are_surer_and_know_the_node() -> None:
    """Rank 3 left no dump, and RAS calls its process dead."""
    alone = report.analyze(report.read(dumps(0, 1, 2)))
    both = report.analyze(report.read([*dumps(0, 1, 2), ("ras.txt", DEAD.encode())]))
    assert [(one.rank, one.node) for one in alone.suspects] == [(3, "")]
    assert [(one.rank, one.node) for one in both.suspects] == [(3, "10.0.0.3")]
    assert both.suspects[0].score > alone.suspects[0].score


def test_ras_that_sees_others_behind_does_not_add_to_the_recorder() -> None:
    """Counts differ by one while a job trains: only those whom a recorder names, too, are suspected."""
    result = report.analyze(report.read([*dumps(0, 1, 2, 3, behind=2), ("ras.txt", BEHIND.encode())]))
    assert [one.rank for one in result.suspects] == [2]


@pytest.mark.parametrize("text", [WAITING, PY_SPY, NATIVE, JSON], ids=["faulthandler", "py-spy", "native", "json"])
def test_the_main_thread_is_read_from_every_kind_of_stacks(text: str) -> None:
    """py-spy names it, faulthandler prints it last; the frames of libraries in C are left out."""
    assert report.kind_of(text.encode()) is EvidenceKind.STACKS
    stack = stacks.parse_stacks(text.encode(), 3)
    assert [frame.split(" ")[0] for frame in stack.frames] == ["all_reduce", "step"]
    assert stack.waits


def test_who_waits_for_a_thread_of_its_own_does_not_wait_for_others() -> None:
    """An empty queue of batches: the rank that waits there is what the others wait for."""
    files = [(f"stack_{rank}.txt", (QUEUE if rank == 2 else WAITING).encode()) for rank in range(4)]
    assert [(one.rank, one.kind) for one in report.analyze(report.read(files)).suspects] == [(2, "stack")]


def test_a_file_of_all_ranks_gives_a_stack_for_each() -> None:
    """As `torch.distributed.debug` writes it; ranks that did not answer have none."""
    parts = [f"=== Rank {rank}: host-{rank}:41000 ===\n{LOADING if rank == 3 else WAITING}" for rank in range(4)]
    whole = "\n".join([*parts, "=== Rank 4: host-4:41000 ===\nError: 500\n"])
    evidence = report.read([("stacks_20260102_030405.txt", whole.encode())])
    assert [stack.rank for stack in evidence.stacks] == [0, 1, 2, 3]
    assert [one.rank for one in report.analyze(evidence).suspects] == [3]


def test_the_rank_that_loads_data_while_the_others_wait_is_suspected() -> None:
    """By stacks alone; two ranks have no majority."""
    files = [(f"stack_{rank}.txt", (LOADING if rank == 2 else WAITING).encode()) for rank in range(4)]
    (suspect,) = report.analyze(report.read(files)).suspects
    assert (suspect.rank, suspect.kind) == (2, "stack")
    assert "next_batch (/code/data.py:12)" in suspect.why
    assert report.analyze(report.read(files[1:3])).suspects == ()


@pytest.mark.skipif(not FIXTURES.is_dir(), reason="the NCCL RAS answers of ../shared/fixtures are absent")
def test_real_answers_of_ras_are_read() -> None:
    """The dead process of the guide's example is found in text, JSON and monitor."""
    ranks = {path.name: nccl_ras.parse_ras(path.read_bytes()).findings for path in sorted(FIXTURES.iterdir())}
    assert [(one.rank, one.node) for one in ranks["ras_06.txt"]] == [(21, "172.16.64.213")]
    assert [(one.rank, one.process) for one in ranks["ras_07.json"]] == [(1, 1524345)]
    assert {one.process for name in ("ras_09.txt", "ras_10.json") for one in ranks[name]} == {1524345}


def test_the_command_prints_suspects_for_people_and_programs(tmp_path: Path) -> None:
    """What cannot be read is listed; a folder without evidence is an error."""
    for name, data in (*dumps(0, 1, 2, 3, behind=1), ("notes.bin", b"\x80\x02c")):
        (tmp_path / name).write_bytes(data)
    shown = CliRunner().invoke(cli, ["hang", str(tmp_path), "--json"])
    answer = json.loads(shown.stdout)
    assert [(one["rank"], one["kind"]) for one in answer["suspects"]] == [(1, "behind")]
    assert (answer["not_seen"], answer["rejected"][0]["file"]) == ([], "notes.bin")
    assert answer["groups"][0]["behind"] == {"1": 5}
    assert "rank 1" in CliRunner().invoke(cli, ["hang", str(tmp_path)]).stdout
    (tmp_path / "empty").mkdir()
    assert CliRunner().invoke(cli, ["hang", str(tmp_path / "empty")]).exit_code == 1
