"""Replay healthy logs as they were printed: ``python -m tools.metric_runs.healthy_logs [FOLDER...]``.

Each log goes through what the service does while a run goes on: its metrics are watched, its silences are compared with
its rhythm, its fatal lines are diagnosed. Lines arrive at the times that they print; those between that print none come
evenly. A log without times comes by the line, a second each, and its hours are counted apart.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median

import numpy as np
import typer

from diagnoser.compress import AttemptLog
from diagnoser.compress.delta import Delta
from diagnoser.compress.sampling import merge
from diagnoser.diagnosis import pipeline
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.localize.hang_detection import stands_still_after
from diagnoser.localize.metric_watch import speed
from diagnoser.model import Baseline, Facts, Job, LineBlock, MetricEventKind, Progress, Stream
from diagnoser.model.taxonomy import Outcome
from diagnoser.structure.times import read_time, year_of
from tests import accuracy_bars
from tests.corpus import CORPUS
from tools.metric_runs.__main__ import points_of, watched

NORMAL = CORPUS / "normal"
PACE_SECONDS = 1.0
LEAST_TIMES = 10
"""Fewest lines with a time of a log that is replayed by its times."""
CERTAIN_SECONDS = 60.0
"""Shortest silence that is certain by itself; a shorter one only leads to a look at the ranks."""
FATAL_QUIET, FATAL_LATEST = 10.0, 60.0
"""Seconds after a fatal line until a running attempt is diagnosed: of silence, and while lines go on."""
FORGOTTEN_SECONDS = 86_400.0
DIAGNOSED_SECONDS = 300.0
"""Silence in which a running attempt is diagnosed whatever it printed."""
JOB = Job("replayed")
STAYED_SLOW, STAYED_HIGH = 0.9, 0.97
"""Share of the usual speed, and of the loss at an alarm, that bears it out."""
NEXT, LAST = 100, 50
"""Points behind an alarm, and newest ones, that are compared."""


@dataclass(frozen=True, slots=True)
class TimedLog:
    """lines: without their ends. arrivals: seconds since the epoch, a line each, in order. is_timed: whether the log
    prints them."""

    lines: list[str]
    arrivals: list[float]
    is_timed: bool

    @classmethod
    def read(cls, path: Path) -> "TimedLog":
        lines = path.read_bytes().decode("utf-8", "replace").removesuffix("\n").split("\n")
        times = _by_one_clock(lines)
        if len(times) < LEAST_TIMES:
            return cls(lines, [PACE_SECONDS * (number + 1) for number in range(len(lines))], is_timed=False)
        latest = max(list(times.values())[-LEAST_TIMES:])
        printed = [index for index, time in times.items() if time <= latest]  # what is later is no time of a line
        moments = list(accumulate((times[index] for index in printed), max))
        return cls(lines, np.interp(range(len(lines)), printed, moments).tolist(), is_timed=True)

    @property
    def hours(self) -> float:
        """Without what lies between two runs: a silence of a day is watched by nobody."""
        silences = (following - arrival for arrival, following in pairwise(self.arrivals))
        return sum(silence for silence in silences if silence < FORGOTTEN_SECONDS) / 3600

    def block(self, start: int, end: int) -> LineBlock:
        """Some lines, which arrived apart."""
        arrivals = [(index + 1, self.arrivals[index]) for index in range(start, end)]
        data = "".join(f"{line}\n" for line in self.lines[start:end]).encode()
        return LineBlock(Stream(), data, start + 1, received=self.arrivals[end - 1], arrivals=tuple(arrivals))


def _by_one_clock(lines: Sequence[str]) -> dict[int, float]:
    """Index of each line with a time -> that. Of seconds since the epoch and times of a day, whose zone may be another,
    those that more lines have."""
    year = year_of(lines, 0.0)
    since_epoch, of_day = dict[int, float](), dict[int, float]()
    for index, line in enumerate(lines):
        time = read_time(line, year)
        if time:
            chosen = since_epoch if str(int(time)) in line else of_day
            chosen[index] = time
    return max(since_epoch, of_day, key=len)


class AlarmKind(StrEnum):
    METRIC = "metric"
    HANG = "hang"
    FAILURE = "failure"  # a line looks fatal, and nothing else was printed for a while


@dataclass(frozen=True, slots=True)
class Alarm:
    """line: after which it came. is_true: the rest of the log bears it out."""

    kind: AlarmKind
    line: int
    why: str
    is_true: bool = False


def metric_alarms(log: TimedLog) -> Iterator[Alarm]:
    """What would be told of the metrics. A run that crawls is only looked at."""
    points = points_of(log.lines, log.arrivals)
    for line, event in watched(points):
        if event.kind is not MetricEventKind.CRAWLING:
            is_true = is_borne_out(event.kind, points, line)
            yield Alarm(AlarmKind.METRIC, line, f"{event.kind} {event.why} {event.picture}", is_true)


def is_borne_out(kind: MetricEventKind, points: Sequence[Progress], line: int) -> bool:
    """Whether a run went on as an alarm says: no quicker for a while, no wiser to the end. That it diverged its clean
    end belies.

    line: of the alarm.
    """
    before = [point for point in points if point.line <= line]
    rest = [point for point in points if point.line > line]
    match kind:
        case MetricEventKind.SLOWER:
            return median(map(speed, rest[:NEXT])) < STAYED_SLOW * median(map(speed, before))
        case MetricEventKind.STUCK:
            return _newest_loss(rest) > STAYED_HIGH * _newest_loss(before)
    return False


def _newest_loss(points: Sequence[Progress]) -> float:
    losses = [point.loss for point in points if point.loss is not None]
    return median(losses[-LAST:]) if losses else 0.0


def verdict_alarms(log: TimedLog, analyzer: LogAnalyzer) -> Iterator[Alarm]:
    """What would be said of the run in its silences, while its scheduler shows it running; of shorter ones, too, once
    it printed a fatal line."""
    compressor, read, has_fatal, was_failed = analyzer.compressor(), Delta(), False, False
    for start, end, quiet in stretches(log.arrivals):
        block = log.block(start, end)
        compressor.feed(block)
        has_fatal = has_fatal or compressor.has_fatal(block.data)
        may_fail = has_fatal and not was_failed
        if not may_fail and quiet < CERTAIN_SECONDS:
            continue
        read = merge([read, compressor.take()])
        alarm = judged(AttemptLog(read), analyzer, log.arrivals[end - 1], quiet, may_fail=may_fail)
        if alarm:
            was_failed = was_failed or alarm.kind is AlarmKind.FAILURE
            yield alarm


def stretches(arrivals: Sequence[float]) -> Iterator[tuple[int, int, float]]:
    """Lines at whose end the service looks at a run that has printed a fatal one: first, behind the last, and seconds
    of silence behind them."""
    start = 0
    for end, (arrival, following) in enumerate(pairwise(arrivals), 1):
        quiet = following - arrival
        if quiet >= FATAL_QUIET or arrival >= arrivals[start] + FATAL_LATEST:
            yield start, end, quiet
            start = end


def judged(log: AttemptLog, analyzer: LogAnalyzer, arrival: float, quiet: float, *, may_fail: bool) -> Alarm | None:
    """Give the verdict on a running attempt; None where it is left alone.

    arrival: of its newest line. quiet: seconds of silence behind that. may_fail: it printed a fatal line.
    """
    limit = pipeline.expected_silence_of(JOB, log.evidence, Baseline())
    if may_fail and quiet < stands_still_after(limit):
        return None
    if not may_fail and quiet < DIAGNOSED_SECONDS:
        silence = limit.silence(quiet) if limit else None
        if silence is None or not silence.confirmed:
            return None
    facts = Facts(JOB, failed=(arrival, arrival), last_line=arrival)
    diagnosis = analyzer.analyze(log, facts, arrival + quiet)
    if diagnosis.outcome not in (Outcome.FAILED, Outcome.HUNG):
        return None
    if diagnosis.outcome is Outcome.FAILED and quiet < stands_still_after(limit):
        return None
    text = diagnosis.root_cause.text if diagnosis.root_cause else "; ".join(diagnosis.notes)
    kind = AlarmKind.HANG if diagnosis.outcome is Outcome.HUNG else AlarmKind.FAILURE
    why = f"{diagnosis.type} after {quiet:.0f} s of silence: {text[:160]}"
    return Alarm(kind, log.delta.lines, why)


def replay(path: Path, analyzer: LogAnalyzer) -> tuple[TimedLog, list[Alarm]]:
    log = TimedLog.read(path)
    return log, [*metric_alarms(log), *verdict_alarms(log, analyzer)]


def main(folders: Sequence[Path]) -> None:
    analyzer = accuracy_bars.load()
    timed = paced = 0.0
    logs, false = 0, Counter[AlarmKind]()
    for path in (path for folder in folders for path in sorted(folder.glob("*.log"))):
        log, alarms = replay(path, analyzer)
        logs += 1
        if log.is_timed:
            timed += log.hours
        else:
            paced += log.hours
        false.update({alarm.kind for alarm in alarms if not alarm.is_true})
        for alarm in alarms:
            typer.echo(f"{'true ' if alarm.is_true else 'FALSE'} {alarm.kind} {path.name}:{alarm.line}: {alarm.why}")
    counts = ", ".join(f"{kind} {false[kind]}" for kind in AlarmKind)
    typer.echo(f"{logs} logs, {timed:.0f} hours by printed times, {paced:.0f} hours by the line")
    typer.echo(f"logs with false alarms: {counts}")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or [NORMAL])
