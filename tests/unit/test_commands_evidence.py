"""`diagnose` and `explain` with dumps of the ranks beside the log."""

import json
from pathlib import Path

import pytest

from diagnoser.model.errors import BadInput
from tests.command_line import invoke
from tests.hang_dumps import dump, entry, written

RANKS = range(4)
TIMEOUT = (
    "[rank0]:[E301 10:11:00.123456789 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600005 milliseconds "
    "before timing out.\n"
)


def steps() -> str:
    """Who runs where, as NCCL prints it, and a minute of steps."""
    placed = "".join(
        f"gpu-{rank:03d}:471{rank}:471{rank} [0] NCCL INFO ncclCommInitRankConfig comm 0x55d0 rank {rank} nranks 4 "
        f"cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9f - Init COMPLETE\n"
        for rank in RANKS
    )
    return placed + "".join(
        f"[2026-03-01 10:00:{n:02d}] iteration {n:8d}/     900 | lm loss: {9 - n / 200:.4f} |\n" for n in range(1, 60)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three ranks stand in number 6, which rank 2 has not called; a note lies beside their dumps."""
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    done = entry("0", 5, order=0, done=True)
    for rank in RANKS:
        entries = [done] if rank == 2 else [done, entry("0", 6, order=1)]
        (dumps / f"_dump_{rank}").write_bytes(written(dump({"0": RANKS}, entries)))
    (dumps / "notes.txt").write_text("nothing of a runtime")
    return dumps


def test_a_log_that_stops_or_times_out_names_rank_and_node(tmp_path: Path, folder: Path) -> None:
    """The dumps tell the rank, the log its node; the timeout's line stays the root, else the flight recorder is it."""
    stopped, timed_out = tmp_path / "stopped.log", tmp_path / "timed_out.log"
    stopped.write_text(steps())
    timed_out.write_text(steps() + TIMEOUT)
    shown = invoke("diagnose", stopped, timed_out, "--evidence", folder, "--json")
    first, second = (json.loads(line) for line in shown.stdout.splitlines() if line.startswith("{"))
    assert (first["outcome"], first["type"]) == ("hung", "nccl_timeout_error")
    assert (first["root_cause"]["line"], first["root_cause"]["source"]) == (0, "flight_recorder")
    assert second["root_cause"]["line"] == 64
    for verdict in (first, second):
        assert (verdict["root_cause"]["rank"], verdict["root_cause"]["node"]) == (2, "gpu-002")
        assert (verdict["hang"]["waiting"], verdict["hang"]["files"]) == (3, 4)
    assert "notes.txt" in shown.output


def test_explain_prints_who_waits_for_whom(tmp_path: Path, folder: Path) -> None:
    """As a small table, and with --json what `hang --json` prints; no line 0 is spoken of."""
    log = tmp_path / "job.log"
    log.write_text(steps())
    text = invoke("explain", log, "--evidence", folder).stdout
    data = invoke("explain", log, "--evidence", folder, "--json").stdout
    assert "Rank 2 on gpu-002 holds up 3 ranks" in text
    assert "flight recorder nccl_timeout_error" in text and "line 0" not in text
    assert "0\u20131, 3 -> 2  nccl:all_reduce number 6 of group 0" in text
    assert "group    ranks  at  stands in        behind" in text
    assert "group 0  0\u20133    6   nccl:all_reduce  2 at 5" in text
    hang = json.loads(next(line for line in data.splitlines() if line.startswith("{")))["hang"]
    assert hang["waits"] == {"0": [2], "1": [2], "3": [2]}
    assert (hang["waiting"], hang["suspects"][0]["node"]) == (3, "gpu-002")


def test_a_folder_without_a_dump_is_an_error(tmp_path: Path) -> None:
    """So is one that does not exist: a person who names it wants it read."""
    log = tmp_path / "job.log"
    log.write_text(steps())
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        with pytest.raises(BadInput):
            invoke("diagnose", log, "--evidence", tmp_path / name)
