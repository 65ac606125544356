"""What began the wait of a collective that timed out."""

import pytest

from tests.rule_files import verdict

BEFORE = [f"2031-05-06 03:5{i}:00,000 INFO trainer: step {i} loss 2.{9 - i}" for i in range(9)]
AFTER = [f"2031-05-06 04:00:0{i + 2},000 INFO trainer: step {i + 9} loss 2.0" for i in range(4)]
FAULT = (
    "2031-05-06 04:00:01,500 trn-7:920:944 [4] transport/net_ib.cc:84 NCCL WARN NET/IB : "
    "mlx5_3:1 Got async event : port error"
)
REPORTS = [
    f"[rank{rank}]:[E506 04:10:02.{rank}00000000 ProcessGroupNCCL.cpp:633] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600088 milliseconds before "
    "timing out."
    for rank in range(4)
]


def test_a_fault_at_the_begin_of_the_wait_is_the_cause() -> None:
    """A few steps after the port error do not show that it was survived: all ranks waited from then on."""
    found = verdict(*BEFORE, FAULT, *AFTER, *REPORTS)
    assert found.type == "network_error" and found.root_cause is not None
    assert (found.root_cause.line, found.root_cause.node) == (len(BEFORE) + 1, "trn-7")


def test_a_line_that_no_rule_knows_is_linked_by_its_words() -> None:
    """A warning about a port at that moment names cause and rank, with the confidence of words."""
    line = "[rank3]: 2031-05-06 04:00:01,500 WARNING monitor: mlx5_3 symbol errors exceeded, link is retraining"
    found = verdict(*BEFORE, line, *AFTER, *REPORTS)
    assert (found.type, found.decided_by) == ("network_error", "heuristic:words")
    assert found.root_cause is not None and found.root_cause.rank == 3


@pytest.mark.parametrize(
    "line",
    [
        FAULT.replace("04:00:01", "03:53:30"),
        "[rank3]: 2031-05-06 03:53:30,500 WARNING monitor: mlx5_3 symbol errors exceeded, link is retraining",
        "[rank3]: 2031-05-06 04:00:01,500 INFO monitor: mlx5_3 link timeout is set to 20",
    ],
    ids=["rule-earlier", "words-earlier", "calm-line"],
)
def test_what_came_at_another_time_is_not_linked(line: str) -> None:
    """A fault minutes before, and a line that complains of nothing, leave the time-out as it is."""
    at = 4 if "03:53" in line else len(BEFORE)
    assert verdict(*BEFORE[:at], line, *BEFORE[at:], *AFTER, *REPORTS).type == "nccl_timeout_error"


def test_the_start_of_a_run_is_no_precursor() -> None:
    """Where the very first collective times out, what was printed at the start explains nothing by its words."""
    line = "[rank3]: 2031-05-06 04:00:01,500 WARNING monitor: mlx5_3 symbol errors exceeded, link is retraining"
    assert verdict(line, *REPORTS).type == "nccl_timeout_error"
