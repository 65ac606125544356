"""Nodes whose clocks are wrong: what they print is put where it belongs."""

import pytest

from diagnoser import compress
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.localize import clock_skew
from diagnoser.model import Evidence, Facts, LineBlock, Stream
from diagnoser.model.taxonomy import FailureType
from tests import accuracy_bars

BASE = 1_772_362_800.0
TRACE = 'Traceback (most recent call last):\n  File "/srv/a/train.py", line 9, in <module>\n    go()\n'


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def run(
    analyzer: LogAnalyzer, ahead: dict[int, float], ends: dict[int, tuple[str, float]], jitter: float = 0.0
) -> Evidence:
    """A stream a rank, ten steps a second apart. ahead: how fast each rank's clock is; ends: rank -> (error, when, in
    true seconds after the last step)."""
    compressor = analyzer.compressor()
    for rank, fast in ahead.items():
        lines = [f"step {n} | loss {9 - n / 10:.2f}\n" for n in range(1, 11)]
        times = [BASE + n + fast + jitter * (n % 3) * (rank % 2) for n in range(1, 11)]
        if rank in ends:
            error, when = ends[rank]
            said = (TRACE + error + "\n").splitlines(keepends=True)
            lines += said
            times += [BASE + 10 + when + fast] * len(said)
        compressor.feed(LineBlock(Stream("stdout", f"n{rank}", rank), "".join(lines).encode(), times=tuple(times)))
    return compress.digest(compressor.take()).evidence


def test_the_first_failure_is_the_first_by_true_time(analyzer: LogAnalyzer) -> None:
    """Rank 1 failed after rank 0 and its clock is half a minute slow: by the printed times it would be first."""
    ends = {0: ("KeyError: 'mask'", 5.0), 1: ("ValueError: no batch", 20.0)}
    wrong = run(analyzer, {0: 0.0, 1: -30.0, 2: 0.0, 3: 0.0}, ends)
    first = next(line for line in wrong.lines if "Error" in line.body)
    assert first.rank == 1, "the printed times mislead"
    told = analyzer.diagnose_with_node_logs(wrong, Facts())
    assert (told.type, told.root_cause and told.root_cause.rank) == (FailureType.KEY_ERROR, 0)


def test_lines_and_tracebacks_move_together(analyzer: LogAnalyzer) -> None:
    """After the correction every traceback still points at its own lines."""
    fixed = clock_skew.corrected(run(analyzer, {0: 0.0, 1: -30.0, 2: 0.0}, {1: ("ValueError: no batch", 2.0)}))
    (trace,) = fixed.tracebacks
    assert fixed.lines[trace.raised].body == "ValueError: no batch"
    assert [fixed.lines[index].rank for index in trace.lines] == [1] * len(trace.lines)
    assert [line.time for line in fixed.lines] == sorted(line.time for line in fixed.lines)
    last = [point.time for point in fixed.progress if point.step == 10]
    assert max(last) - min(last) < 1.0


def test_small_and_unsteady_differences_are_no_wrong_clock(analyzer: LogAnalyzer) -> None:
    """Half a second, or a rank that is late now and then, changes nothing."""
    small = run(analyzer, {0: 0.0, 1: 0.4, 2: 0.0}, {})
    assert clock_skew.corrected(small) is small
    late = run(analyzer, {0: 0.0, 1: 0.0, 2: 0.0}, {}, jitter=4.0)
    assert clock_skew.corrected(late) is late


def test_one_stream_keeps_its_order(analyzer: LogAnalyzer) -> None:
    """Lines of one stream stand in the order in which they were written, whatever times they print."""
    evidence = analyzer.evidence_of(b"[rank0]: step 1 | loss 2\n[rank1]: step 1 | loss 2\n")
    assert clock_skew.corrected(evidence) is evidence
