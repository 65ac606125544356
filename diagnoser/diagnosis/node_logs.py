"""The log of a node: how its lines are dated, and which of them are about an attempt that ran there. Pure.

A node's log is stored in parts by hour of arrival, so that old parts can be dropped. Only lines that match a rule are
heard: the rest of a syslog says nothing about a training job.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from diagnoser import compress
from diagnoser.dialects import system_log
from diagnoser.localize import clock_skew, progress
from diagnoser.localize.progress import StepOrder
from diagnoser.model import Evidence, Facts, Line, LineBlock, Mark, Stream, provenance_of
from diagnoser.model.evidence import selected
from diagnoser.model.order import LATE
from diagnoser.structure.times import read_time

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
    dates = [_date(line, block.received) for line in lines]
    zone = _zone([date.time for date in dates if date.is_naive], block.received)
    newest = next((date.uptime for date in reversed(dates) if not math.isnan(date.uptime)), 0.0)
    times = []
    for time, date in zip(record_times, dates, strict=True):
        if math.isnan(time):
            time = _time(date.time + zone * date.is_naive, newest - date.uptime, block.received)
        times.append(time)
    return replace(block, times=tuple(times))


class _Date(NamedTuple):
    """What a line says of its time.

    time: as printed, 0.0 when none.
    is_naive: the zone of that is unknown.
    uptime: of the machine in seconds, NaN when none.
    """

    time: float
    is_naive: bool
    uptime: float


def _date(line: bytes, near: float) -> _Date:
    text, uptime = line.decode("utf-8", "replace"), _UPTIME.match(line)
    time = printed_time(text, near)
    is_naive = time > 0 and not any(zone.search(text[:80]) for zone in (_ZONED, _UTC))
    return _Date(time, is_naive, float(uptime[1]) if uptime else math.nan)


def _zone(naive: Sequence[float], received: float) -> float:
    """Seconds by which a node's clock is behind UTC, when it follows local time.

    Lines are sent as they are printed, so the newest one in a batch is as old as the zone is far off: a multiple of
    a quarter hour, give or take the seconds that sending takes. Anything else is the age of an old log.
    """
    lag = received - max(naive, default=received)
    zone = round(lag / _QUARTER) * _QUARTER
    if abs(lag - zone) > _SENT:
        return 0.0
    if not 3600.0 <= abs(zone) < _ZONES:
        return 0.0
    return zone


def with_printed_times(block: LineBlock, near: float) -> LineBlock:
    """The block with the times that its lines print; a line without one takes that of the line before, if any."""
    times, last = [], 0.0
    for line in block.data.removesuffix(b"\n").split(b"\n"):
        last = printed_time(line.decode("utf-8", "replace"), near) or last
        times.append(last)
    return replace(block, times=tuple(times))


def _time(own: float, age: float, received: float) -> float:
    """own: as printed. age: by uptime, seconds older than the newest line of its block; NaN without uptime."""
    if 0 < own <= received + _AHEAD:
        return own
    if age > 0:
        return received - age
    return received


def printed_time(text: str, near: float) -> float:
    """The time that a line prints, 0.0 when none. near: a time close to it, for formats without a year."""
    year = datetime.fromtimestamp(max(0.0, near), UTC).year
    time = read_time(text, year)
    if time > near + 2 * _DAY and str(year) not in text[:40]:
        time = read_time(text, year - 1)
    zone = _ZONED.search(text[:80])
    if not time:
        return time
    if not zone:
        return time
    return time - int(f"{zone[1]}1") * (int(zone[2]) * 3600 + int(zone[3]) * 60)


def fault_lines(node: str, parts: Iterable[bytes]) -> list[Line]:
    """Lines of one node's log that match a rule, under the job's name for the node."""
    kept, headless = kept_lines(node, parts), set[int]()
    surplus = Counter[Stream]()  # how many more lines have a header than have none
    for index, line in enumerate(kept):
        if system_log.read_record(line.text).start == 0:
            headless.add(index)
        surplus[line.stream] += -1 if index in headless else 1
    odd = set(filter(lambda index: surplus[kept[index].stream] > 0, headless))
    faults = []
    for index, line in enumerate(kept):
        if line.mark is Mark.ANCHOR:
            faults.append(replace(line, continues=index in odd))
    return faults


def kept_lines(node: str, parts: Iterable[bytes]) -> list[Line]:
    """All kept lines of one node's log."""
    delta, kept = compress.merge([compress.read_together(list(parts))]), []
    for line in compress.digest(delta).lines:
        time = delta.shares[line.stream].rows[line.number].time
        kept.append(replace(line, stream=_own(line.stream, node), node=node, time=time))
    return kept


def _own(stream: Stream, node: str) -> Stream:
    """A stream of the node's log: only those who speak for nodes may write to it."""
    return Stream(stream.source, node, stream.rank, provenance_of(stream.source, vouched=True))


def weighed_faults(evidence: Evidence, facts: Facts) -> list[tuple[Line, SetAsideReason | None]]:
    """The lines of the logs of the attempt's nodes that match a rule: see ``weighed_lines``."""
    lines = []
    for node in dict.fromkeys(facts.nodes):
        lines += fault_lines(node, facts.node_logs.get(node, ()))
    return weighed_lines(evidence, lines, facts.failed)


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
    newest = evidence.newest_time
    end = failed[1] or newest
    if end <= 0.0:
        return [(line, None) for line in lines]
    zone = _zone_ahead(newest, end)
    steps = _StepTimes(evidence, zone)
    spans = _spans(steps, zone, newest, (failed[0] or end, end))
    read = _without_year if end < _YEAR else float  # a log without years, whose year nothing else shows
    weighed: list[tuple[Line, SetAsideReason | None]] = []
    for line in lines:
        time = read(line.time - offsets.get(line.stream.node, 0.0))
        if time > end + STALL:
            continue  # what befell the jobs after it
        weighed.append((line, _reason(time, spans, steps) if line.time else None))
    return weighed


def _spans(steps: "_StepTimes", zone: float, newest: float, failed: tuple[float, float]) -> list[tuple[float, float]]:
    """When a line may be of the failure. newest: time in the attempt's own log, 0 without one."""
    spans = [_span(steps.last, *failed)]
    if newest and abs(newest - failed[1]) >= _ZONES:  # a log of another day that was sent today
        spans.append(_span(steps.last + zone, newest, newest))
    return spans


def _reason(time: float, spans: Iterable[tuple[float, float]], steps: "_StepTimes") -> SetAsideReason | None:
    """Why a line of this time is not of the failure; None where it may be."""
    if not any(begin <= time <= end for begin, end in spans):
        return SetAsideReason.OTHER_TIME
    if steps.count_after(time) > _UNDER_WAY:
        return SetAsideReason.OUTLIVED
    return None


class _StepTimes:
    """When steps were made, at the earliest: as they print it, else when the body before had arrived, for a line that
    prints no time is as old as the buffers that it went through. last: when the newest one was made, at the earliest.
    """

    def __init__(self, evidence: Evidence, zone: float) -> None:
        begun = progress.body_begins(evidence.progress)
        dated, undated = list[tuple[float, int | None]](), list[tuple[float, int | None]]()
        for point in evidence.progress:
            if point.is_dated:
                dated.append((point.time - zone, point.step))
            elif point.time > 0:
                undated.append((begun[point.stream, point.received], point.step))
        self.last = max((time for time, _ in (*dated, *undated)), default=0.0)
        self._dated, self._undated = StepOrder(dated), StepOrder(undated)

    def count_after(self, time: float) -> int:
        """How many different steps were made after it, as far as that is known."""
        return max(self._dated.count_after(time), self._undated.count_after(time + LATE))


def _without_year(time: float) -> float:
    """The time in 1970."""
    moment = datetime.fromtimestamp(time, UTC)
    if (moment.month, moment.day) == (2, 29):
        moment = moment.replace(day=28)
    return moment.replace(year=1970).timestamp()


def _zone_ahead(newest: float, end: float) -> float:
    """Seconds by which the zone of the attempt's own clock is ahead. newest: its newest time, 0.0 without one."""
    if not newest:
        return 0.0
    if abs(newest - end) >= _ZONES:
        return 0.0
    return round((newest - end) / _QUARTER) * _QUARTER


def _span(last: float, first: float, end: float) -> tuple[float, float]:
    """When lines may be of a failure: see ``_begin``."""
    return _begin(last, first, end) - BEFORE, end + AFTER


def _begin(last: float, first: float, end: float) -> float:
    """When the failure began, at the earliest: the attempt was still sound at its last step. last: when that was made,
    infinitely long ago where it came with the first lines of all."""
    if last == -math.inf:
        return min(first, end - STALL)
    if end - STALL <= last <= end:
        return last
    return first


def without(evidence: Evidence, index: int) -> Evidence:
    """The evidence without one line that is part of no traceback."""
    return selected(evidence, [*range(index), *range(index + 1, len(evidence.lines))])
