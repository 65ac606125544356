"""The log of a node: how its lines are dated, and which of them are about an attempt that ran there. Pure.

A node's log is stored in parts by hour of arrival, so that old parts can be dropped. Only lines that match a rule are
heard: the rest of a syslog says nothing about a training job.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeVar

from diagnoser import compress
from diagnoser.dialects import system_log
from diagnoser.localize import clock_skew, progress
from diagnoser.localize.progress import StepOrder
from diagnoser.model import Evidence, Line, LineBlock, Mark, Stack, Stream, Traceback, provenance_of
from diagnoser.model.order import LATE
from diagnoser.structure.times import read_time

_T = TypeVar("_T", Traceback, Stack)
BEFORE, AFTER = 600.0, 300.0
"""Seconds before and after a failure in which a node's lines may be its cause."""
PART = 3600.0
_AHEAD = 300.0
"""Most seconds that a clock is assumed fast; a line dated later than that is in another time zone."""
_ZONES = 15 * 3600.0
"""Clocks further apart than any two time zones are not of the same day."""
STALL = 45 * 60.0
"""The longest that a collective waits before it gives up: the last step may be that long before the failure."""
_UPTIME = re.compile(rb"^(?:<\d+>)?\[ *(\d+\.\d{3,9})\]")
_QUARTER, _SENT = 900.0, 30.0
"""Zones differ by quarters of an hour; and the longest time a line takes to arrive."""
_UTC = re.compile(r"\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z| UTC| GMT)\b|\b1[5-9]\d{8}\b")
"""A time that is in UTC whatever the node's zone."""
_ZONED = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?([+-])(\d\d):?(\d\d)\b")
_UNDER_WAY = 2
"""Steps after a fault that may have been under way when it came."""
_DAY = 86_400.0
_YEAR = 366 * _DAY


class SetAsideReason(StrEnum):
    """Why a line of a node's log is not of an attempt's failure."""

    OUTLIVED = "training went on after it"
    OTHER_TIME = "it is not of the time of the failure"


def hour_of(received: float) -> int:
    """Number of the part for lines that arrive at ``received``."""
    return max(1, int(received // PART))


def with_times(block: LineBlock) -> LineBlock:
    """The block with a time per line: from its record, else printed, else from its uptime, else the arrival."""
    lines = block.data.removesuffix(b"\n").split(b"\n")
    record_times = block.times or (math.nan,) * len(lines)
    uptimes = [float(match[1]) if (match := _UPTIME.match(line)) else math.nan for line in lines]
    newest = next((uptime for uptime in reversed(uptimes) if not math.isnan(uptime)), 0.0)
    printed = [_own_time(line.decode("utf-8", "replace"), block.received) for line in lines]
    zone = _zone([time for time, naive in printed if naive], block.received)
    times = tuple(
        time if not math.isnan(time) else _time(stamp + zone * naive, newest - uptime, block.received)
        for time, uptime, (stamp, naive) in zip(record_times, uptimes, printed, strict=True)
    )
    return replace(block, times=times)


def _own_time(text: str, near: float) -> tuple[float, bool]:
    """The time that a line prints (0.0 when none), and whether its zone is unknown."""
    time = printed_time(text, near)
    return time, bool(time) and not (_ZONED.search(text[:80]) or _UTC.search(text[:80]))


def _zone(naive: Sequence[float], received: float) -> float:
    """Seconds by which a node's clock is behind UTC, when it follows local time.

    Lines are sent as they are printed, so the newest one in a batch is as old as the zone is far off: a multiple of
    a quarter hour, give or take the seconds that sending takes. Anything else is the age of an old log.
    """
    lag = received - max(naive, default=received)
    zone = round(lag / _QUARTER) * _QUARTER
    return zone if abs(lag - zone) <= _SENT and 3600.0 <= abs(zone) < _ZONES else 0.0


def with_printed_times(block: LineBlock, near: float) -> LineBlock:
    """The block with the times that its lines print; a line without one takes that of the line before, if any."""
    times, last = [], 0.0
    for line in block.data.removesuffix(b"\n").split(b"\n"):
        last = printed_time(line.decode("utf-8", "replace"), near) or last
        times.append(last)
    return replace(block, times=tuple(times))


def _time(own: float, age: float, received: float) -> float:
    """own: as printed. age: by uptime, seconds older than the newest line of its block; NaN without uptime."""
    if own and own <= received + _AHEAD:
        return own
    return received - age if age > 0 else received


def printed_time(text: str, near: float) -> float:
    """The time that a line prints, 0.0 when none. near: a time close to it, for formats without a year."""
    year = datetime.fromtimestamp(max(0.0, near), UTC).year
    time = read_time(text, year)
    if time > near + 2 * _DAY and str(year) not in text[:40]:
        time = read_time(text, year - 1)
    if time and (zone := _ZONED.search(text[:80])):
        offset = int(zone[2]) * 3600 + int(zone[3]) * 60
        time -= offset if zone[1] == "+" else -offset
    return time


def fault_lines(node: str, parts: Iterable[bytes]) -> list[Line]:
    """Lines of one node's log that match a rule, under the job's name for the node."""
    kept = kept_lines(node, parts)
    headless = {index for index, line in enumerate(kept) if system_log.read_record(line.text).start == 0}
    lines, bare = Counter(line.stream for line in kept), Counter(kept[index].stream for index in headless)
    return [
        replace(line, continues=index in headless and 2 * bare[line.stream] < lines[line.stream])
        for index, line in enumerate(kept)
        if line.mark is Mark.ANCHOR
    ]


def kept_lines(node: str, parts: Iterable[bytes]) -> list[Line]:
    """All kept lines of one node's log."""
    delta = compress.merge(map(compress.from_bytes, parts))
    return [
        replace(line, stream=_own(line.stream, node), node=node, time=rows[line.number].time)
        for line in compress.digest(delta).lines
        if (rows := delta.shares[line.stream].rows)
    ]


def _own(stream: Stream, node: str) -> Stream:
    """A stream of the node's log: only those who speak for nodes may write to it."""
    return Stream(stream.source, node, stream.rank, provenance_of(stream.source, vouched=True))


def lines_near_failure(evidence: Evidence, lines: Iterable[Line], failed: tuple[float, float]) -> list[Line]:
    """Node log lines that may be of the failure: see ``weighed_lines``."""
    return [line for line, reason in weighed_lines(evidence, lines, failed) if not reason]


def weighed_lines(
    evidence: Evidence, lines: Iterable[Line], failed: tuple[float, float]
) -> list[tuple[Line, SetAsideReason | None]]:
    """Node log lines of the time of an attempt, whatever zone the attempt's own clock is in, and why one is set aside
    that cannot be of its failure. Where times do not tell, it may be.

    failed: first sign and end of the failure as the service saw them; zeros: only the log's own times count.
    """
    lines = list(lines)
    if not lines:
        return []
    offsets = clock_skew.node_offsets(evidence)
    evidence = clock_skew.corrected(evidence)
    newest = max((line.time for line in evidence.lines), default=0.0)
    end = failed[1] or newest
    zone = _zone_ahead(newest, end)
    steps = _StepTimes(evidence, zone)
    first = failed[0] or end
    spans = [_span(steps.last, first, end)]
    if newest and abs(newest - end) >= _ZONES:  # a log of another day that was sent today
        spans.append(_span(steps.last + zone, newest, newest))
    read = _without_year if 0.0 < end < _YEAR else float  # a log without years, whose year nothing else shows

    def time_of(line: Line) -> float:
        return read(line.time - offsets.get(line.stream.node, 0.0))

    def is_in_time(line: Line) -> bool:
        return end <= 0.0 or time_of(line) <= end + STALL  # not what befell the jobs after it

    def reason(line: Line) -> SetAsideReason | None:
        time = time_of(line)
        if end <= 0.0 or not line.time:
            return None
        if not _in_any(spans, time):
            return SetAsideReason.OTHER_TIME
        return SetAsideReason.OUTLIVED if steps.count_after(time) > _UNDER_WAY else None

    return [(line, reason(line)) for line in lines if is_in_time(line)]


class _StepTimes:
    """When steps were made, at the earliest: as they print it, else when the body before had arrived, for a line that
    prints no time is as old as the buffers that it went through. last: when the newest one was made, at the earliest.
    """

    def __init__(self, evidence: Evidence, zone: float) -> None:
        begun = progress.body_begins(evidence.progress)
        points = [point for point in evidence.progress if point.time > 0]
        dated = [(point.time - zone, point.step) for point in points if point.is_dated]
        undated = [(begun[point.stream, point.received], point.step) for point in points if not point.is_dated]
        self.last = max((time for time, _ in (*dated, *undated)), default=0.0)
        self._dated, self._undated = StepOrder(dated), StepOrder(undated)

    def count_after(self, time: float) -> int:
        """How many different steps were made after it, as far as that is known."""
        return max(self._dated.count_after(time), self._undated.count_after(time + LATE))


def _in_any(spans: Sequence[tuple[float, float]], time: float) -> bool:
    return any(begin <= time <= end for begin, end in spans)


def _without_year(time: float) -> float:
    """The time in 1970."""
    moment = datetime.fromtimestamp(time, UTC)
    leap = moment.month == 2 and moment.day == 29
    return moment.replace(year=1970, day=28 if leap else moment.day).timestamp()


def _zone_ahead(newest: float, end: float) -> float:
    """Seconds by which the zone of the attempt's own clock is ahead. newest: its newest time, 0.0 without one."""
    same_day = abs(newest - end) < _ZONES
    return round((newest - end) / _QUARTER) * _QUARTER if newest and same_day else 0.0


def _span(last: float, first: float, end: float) -> tuple[float, float]:
    """When lines may be of a failure: see ``_begin``."""
    return _begin(last, first, end) - BEFORE, end + AFTER


def _begin(last: float, first: float, end: float) -> float:
    """When the failure began, at the earliest: the attempt was still sound at its last step. last: when that was made,
    infinitely long ago where it came with the first lines of all."""
    if last == -math.inf:
        return min(first, end - STALL)
    return last if end - STALL <= last <= end else first


def without(evidence: Evidence, index: int) -> Evidence:
    """The evidence without one line that is part of no traceback."""
    new_index = {old: old - (old > index) for old in range(len(evidence.lines))}
    lines = evidence.lines[:index] + evidence.lines[index + 1 :]
    traces = tuple(_moved(trace, new_index) for trace in evidence.tracebacks)
    unbroken = [stack for stack in evidence.stacks if index not in stack.lines]
    linked = len(unbroken) == len(evidence.stacks)
    stacks = tuple(_moved(stack if linked else replace(stack, cause=-1), new_index) for stack in unbroken)
    return replace(evidence, lines=lines, tracebacks=traces, stacks=stacks)


def _moved(trace: _T, new_index: Mapping[int, int]) -> _T:
    return replace(trace, lines=tuple(new_index[index] for index in trace.lines), raised=new_index[trace.raised])
