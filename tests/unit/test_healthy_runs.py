"""Healthy logs replayed in their own time: none of their silences is a hang.

Each line arrives at its own time. The longest silences of a log are judged at their end, from what was printed before
them. Where a log prints no times, or several clocks, its silences are not known, and it says nothing here.
"""

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from diagnoser.compress import AttemptLog, Delta
from diagnoser.compress.sampling import merge
from diagnoser.diagnosis import pipeline
from diagnoser.localize.hang_detection import Silence
from diagnoser.model import Baseline, Job, LineBlock, Stage, Stream
from diagnoser.structure import times
from tests.corpus import CORPUS, needs_corpus
from tests.rule_files import ANALYZER

LEAST, JUDGED, MEGABYTE = 11.0, 5, 1 << 20
"""Seconds of the shortest silence that is judged; most silences of a log. Larger logs cost too much here."""
SHIPPING = 0.5
"""Seconds from a line's own time to its arrival."""
LATE_AT_MOST = 0.1
"""Share of the silences of healthy runs that may be suspected: each costs a look at the runtime, and nothing else."""


class Gap(NamedTuple):
    """A silence: seconds, and the number of the line that it follows."""

    seconds: float
    line: int


class Replay(NamedTuple):
    judged: int
    in_training: int
    silences: list[Silence]


def logs() -> list[Path]:
    return [path for path in sorted((CORPUS / "normal").glob("*.log")) if path.stat().st_size < MEGABYTE]


def clock_of(lines: Sequence[bytes]) -> list[float]:
    texts = [line.decode("utf-8", "replace") for line in lines]
    year = times.year_of(texts, 0.0)
    return [times.read_time(text, year) for text in texts]


def arrivals(printed: Sequence[float]) -> list[float]:
    """Lines without a time come with the one before; a clock that runs behind another one is not followed."""
    now, arrived = 0.0, []
    for time in printed:
        now = max(now, time)
        arrived.append(now)
    return arrived


def gaps(printed: Sequence[float], arrived: Sequence[float]) -> Iterator[Gap]:
    """Silences between two lines with times, where no later line tells of an earlier time."""
    earliest, later = float("inf"), [0.0] * len(printed)
    for index in range(len(printed) - 1, -1, -1):
        later[index] = earliest
        earliest = min(earliest, printed[index] or earliest)
    for index, (before, after) in enumerate(pairwise(printed)):
        seconds = after - arrived[index]
        if before and after and arrived[index] - before <= 1.0 and seconds >= LEAST and after <= later[index] + 1.0:
            yield Gap(seconds, index + 1)


def replay(path: Path) -> Replay | None:
    """None where the log shows no silence."""
    lines = path.read_bytes().split(b"\n")
    printed = clock_of(lines)
    arrived = arrivals(printed)
    longest = sorted(sorted(gaps(printed, arrived), reverse=True)[:JUDGED], key=lambda gap: gap.line)
    seen: Delta | None = None
    start, judged, in_training, silences = 0, 0, 0, []
    for gap in longest:
        part = arriving(lines, arrived, start, gap.line)
        seen, start = merge([seen, part]) if seen else part, gap.line
        limit = pipeline.expected_silence_of(Job(id="j"), AttemptLog(seen).evidence, Baseline())
        judged += 1
        if limit and (silence := limit.silence(gap.seconds - 0.001)):
            silences.append(silence)
        in_training += limit is not None and limit.stage is Stage.TRAIN and limit.in_training > 0
    return Replay(judged, in_training, silences) if longest else None


def arriving(lines: Sequence[bytes], arrived: Sequence[float], start: int, end: int) -> Delta:
    """The lines of each second as a shipper sends them."""
    compressor = ANALYZER.compressor()
    while start < end:
        stop = min(end, bisect(arrived, arrived[start] + 1.0, start))
        block = b"".join(line + b"\n" for line in lines[start:stop])
        compressor.feed(LineBlock(Stream(), block, start + 1, received=arrived[stop - 1] + SHIPPING))
        start = stop
    return compressor.take()


@needs_corpus
def test_no_silence_of_a_healthy_run_is_called_a_hang(record_property: Callable[[str, object], None]) -> None:
    """Evaluations and checkpoints included, and without any earlier run of the family to learn from."""
    hangs, replays, unknown = [], [], 0
    for path in logs():
        result = replay(path)
        if result is None:
            unknown += 1
            continue
        replays.append(result)
        hangs += [(path.name, silence) for silence in result.silences if silence.confirmed]
    judged, suspected = sum(each.judged for each in replays), sum(len(each.silences) for each in replays)
    record_property("silences", judged)
    record_property("logs_without_known_silences", unknown)
    record_property("suspected", suspected)
    assert hangs == []
    assert judged >= 50 and sum(each.in_training for each in replays) >= 10
    assert suspected <= LATE_AT_MOST * judged
