"""Logs of nodes: how their lines are dated, which of them join an attempt, and which verdict stands."""

import io

import pytest

from diagnoser.diagnosis import node_logs
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import Diagnosis, Evidence, Facts, Line, LineBlock, Mark, Progress, Stream, node_log_id
from diagnoser.model.taxonomy import Action, Category, FailureType
from tests import accuracy_bars

NOON = 1_772_362_800.0  # 2026-03-01 11:00:00 UTC
XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
TIMEOUT = (
    "[rank1]:[E301 11:00:00.1 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=81, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600033 milliseconds "
    "before timing out.\n"
)
TRACE = (
    "Traceback (most recent call last):\n  File \"/srv/a/train.py\", line 9, in <module>\n    go()\nKeyError: 'mask'\n"
)


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def lines_near_failure(evidence: Evidence, lines: list[Line], failed: tuple[float, float]) -> list[Line]:
    return [line for line, reason in node_logs.weighed_lines(evidence, lines, failed) if reason is None]


def times(text: str, received: float = NOON, given: tuple[float, ...] | None = None) -> tuple[float, ...]:
    found = node_logs.with_times(LineBlock(Stream("kernel", "n1"), text.encode(), 1, given, received)).times
    assert found is not None
    return found


def test_a_line_is_dated_by_its_record_then_by_itself_then_by_arrival() -> None:
    """The record's time wins; a syslog or ISO time follows; what carries none has the time of arrival."""
    nan = float("nan")
    text = "a\nMar  1 10:59:00 n1 kernel: b\n2026-03-01T12:58:00+02:00 n1 kernel: c\nd\n"
    assert times(text, given=(NOON - 7, nan, nan, nan)) == (NOON - 7, NOON - 60, NOON - 120, NOON)


def test_uptime_dates_lines_against_the_newest_of_their_block() -> None:
    """dmesg prints seconds since boot: an old line that is sent together with a new one stays old."""
    assert times("[  100.000000] old\n[ 7300.500000] new\n") == (NOON - 7200.5, NOON)


@pytest.mark.parametrize("clock", ["05:59:50", "16:29:50", "10:59:50"])
def test_local_time_is_read_as_such(clock: str) -> None:
    """A batch whose newest line is whole quarters of an hour off was printed just now, in another zone; a line that
    states its zone is left alone."""
    old = f"Mar  1 {int(clock[:2]) - 1:02d}{clock[2:]} n1 kernel: old\n"
    stated = "2026-03-01T10:00:00Z n1 kernel: stated\n"
    assert times(f"{old}{stated}Mar  1 {clock} n1 kernel: new\n") == (NOON - 3610, NOON - 3600, NOON - 10)


def test_an_old_log_is_not_taken_for_another_zone() -> None:
    """What was printed five hours and eleven minutes ago is just old, and so is what is half an hour old."""
    assert times("Mar  1 05:49:00 n1 kernel: x\n") == (NOON - 5 * 3600 - 660,)
    assert times("Mar  1 10:30:00 n1 kernel: x\n") == (NOON - 1800,)


def test_a_time_of_another_zone_is_not_believed() -> None:
    """A line from the future tells its time in another zone: arrival is better."""
    assert times("Mar  1 19:00:00 n1 kernel: x\n") == (NOON,)


def test_a_year_is_found_for_formats_without_one() -> None:
    """In January a line of December is of the year before."""
    january = 1_767_229_200.0  # 2026-01-01 01:00:00 UTC
    assert times("Dec 31 23:59:00 n1 kernel: x\n", january) == (january - 3660,)


def test_short_and_full_names_are_one_node() -> None:
    """The domain is no part of the name under which a node's log is stored; an address is kept whole."""
    assert node_log_id("east", "n1.hpc.example") == node_log_id("east", "n1") != node_log_id("west", "n1")
    assert node_log_id("", "DGX-07.hpc.example") == node_log_id("", "dgx-07")
    assert node_log_id("", "10.1.2.3").endswith("/10.1.2.3")


def test_a_line_without_a_head_goes_on_with_the_message_before(analyzer: LogAnalyzer) -> None:
    """Among lines with heads, where a path with a line feed would begin a message of its own; in a log whose lines have
    none, each is a message."""
    heads = [f"[ 9021.11452{number}] usb 1-1: new device" for number in range(5)]
    broken = [*heads, "[ 9021.114526] process '/tmp/a", f"{XID}' started with executable stack"]
    for texts, continues in ((broken, True), ([XID], False), ([f"[ 9021.114526] {XID}"], False)):
        log = io.BytesIO("\n".join([*texts, ""]).encode())
        (fault,) = node_logs.fault_lines("n1", [analyzer.node_log("n1", log, NOON)])
        assert (fault.number, fault.continues) == (len(texts), continues)


def line(time: float, number: int = 1, node: str = "n1", source: str = "kernel") -> Line:
    return Line(Stream(source, node), number, XID, XID, node=node, time=time, mark=Mark.ANCHOR)


def test_only_lines_around_the_failure_join() -> None:
    """Ten minutes before to five minutes after; a line without a time joins, for who sent it meant this job."""
    found = [line(NOON - 601), line(NOON - 599), line(NOON + 299), line(NOON + 301), line(0.0)]
    joined = lines_near_failure(Evidence(), found, (NOON, NOON))
    assert [one.time for one in joined] == [NOON - 599, NOON + 299, 0.0]


def test_the_wait_of_a_collective_belongs_to_the_failure() -> None:
    """A watchdog that fires half an hour after the last step: the fault of that time joins."""
    stalled = Evidence(progress=(Progress(1, 0, NOON - 1800, step=7),))
    assert lines_near_failure(stalled, [line(NOON - 1750)], (NOON, NOON))
    assert not lines_near_failure(Evidence(), [line(NOON - 1750)], (NOON, NOON))


def test_what_the_job_outlived_does_not_join() -> None:
    """Steps after a node's complaint show that this job did not die of it."""
    steps = tuple(Progress(number, 0, NOON - 300 + number, step=number) for number in range(9))
    assert not lines_near_failure(Evidence(progress=steps), [line(NOON - 400)], (NOON, NOON))


def test_a_log_in_local_time_is_joined_by_arrival() -> None:
    """The job's own lines may be hours off: what joins is decided by the time of arrival, and keeps its own time."""
    local = Evidence(lines=(Line(Stream(), 1, "x", "x", time=NOON + 8 * 3600 - 4),))
    assert lines_near_failure(local, [line(NOON - 30), line(NOON - 3600)], (NOON, NOON)) == [line(NOON - 30)]


def diagnose(analyzer: LogAnalyzer, log: str, node: str, failed: tuple[float, float] = (0.0, 0.0)) -> Diagnosis:
    part = analyzer.node_log("n44", io.BytesIO(node.encode()), NOON)
    return analyzer.diagnose_with_node_logs(
        analyzer.evidence_of(log.encode()), Facts(node_logs={"n44": [part]}, failed=failed, nodes=("n44",))
    )


def test_a_lost_gpu_behind_a_timeout_is_the_cause(analyzer: LogAnalyzer) -> None:
    """The job says only that it waited; the kernel of the node says why, and that node is taken out."""
    alone = analyzer.diagnose_with_node_logs(analyzer.evidence_of(TIMEOUT.encode()), Facts())
    found = diagnose(
        analyzer, TIMEOUT, f"Mar  1 10:55:00 n44 kernel: usb 1-1: new device\nMar  1 10:55:01 n44 kernel: {XID}\n"
    )
    assert (alone.type, alone.nodes) == (FailureType.NCCL_TIMEOUT_ERROR, ())
    assert (found.type, found.recovery.action) == (FailureType.GPU_LOST, Action.CORDON_AND_RESUBMIT)
    assert found.root_cause is not None
    assert (found.root_cause.source, found.root_cause.line, found.root_cause.node) == ("kernel", 2, "n44")
    assert [one.node for one in found.nodes] == ["n44"]
    assert any(one.type is FailureType.NCCL_TIMEOUT_ERROR for one in found.symptoms)
    assert any("kernel log of n44" in note for note in found.notes)


def test_an_old_fault_of_the_node_is_not_the_cause(analyzer: LogAnalyzer) -> None:
    """What the node went through hours before says nothing about this failure."""
    found = diagnose(analyzer, TIMEOUT, f"Mar  1 04:55:01 n44 kernel: {XID}\n")
    assert (found.type, found.nodes) == (FailureType.NCCL_TIMEOUT_ERROR, ())


def test_a_fault_of_the_script_stays_one(analyzer: LogAnalyzer) -> None:
    """A typing error is no fault of a machine, whatever the machine went through at that time; it is told."""
    found = diagnose(analyzer, TRACE, f"[  10.000000] {XID}\n")
    assert (found.category, found.type) == (Category.SCRIPT, FailureType.KEY_ERROR)
    assert found.recovery.action is Action.NOTIFY_USER
    assert any("not taken for the cause" in note for note in found.notes)


def test_what_the_scheduler_says_of_other_jobs_is_not_heard(analyzer: LogAnalyzer) -> None:
    """A node's scheduler log tells of all its jobs: that one of them was cancelled is not this one's end."""
    other = (
        "Mar  1 10:59:00 n44 slurmd[811]: slurmstepd: error: *** JOB 77 ON n44 CANCELLED AT 2026-03-01T10:59:00 ***\n"
    )
    found = diagnose(analyzer, TIMEOUT, other)
    assert found.type is FailureType.NCCL_TIMEOUT_ERROR
