"""Where launches begin in a log that holds more than one.

A job that is launched again has its ranks on other nodes, and often fewer of them: what an older launch in the same log
said about ranks and nodes must not locate a failure of the newest one.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import zip_longest
from operator import attrgetter
from typing import Any

import re2

from diagnoser.localize.progress import ProgressTimeline
from diagnoser.model import Evidence, ExitReport, Line, Progress, Stream
from diagnoser.model.evidence import rank_nodes

_COMES_UP = (
    r"^START TIME:|Setting OMP_NUM_THREADS environment variable|^\+ ?(?:srun|torchrun|mpirun) "
    r"|\[launch(?:er)?\.py:\d+:main\] (?:WORLD INFO|nnodes=)|\[runner\.py:\d+:main\] cmd ="
    r"|store_based_barrier_key:1 to store|[Ii]nitializ(?:ing|ed) torch distributed|distributed init \(rank"
    r"|GLOBAL_RANK: \d+|\bdistributed_backend=|\b[Rr]ank[ :=]*\d+\b.{0,24}?\bon (?:node|host) [\w.-]+"
    r'|Process rank: \d+, (?:world|device)|[Ss]tarted a local Ray instance|"(?:submission_benchmark|init_start)"'
    r"|^nohup: ignoring input|STARTING TIMING RUN"
)
"""Printed once per launch, by the launcher or by processes that start up."""
_FEW = 2
"""Up to this many steps are no sign of life: the progress bars of downloads and caches look like them."""


@dataclass(frozen=True, slots=True)
class LaunchSegment:
    """One launch. evidence: what the log shows of it; its lines are those of the whole log from index ``first`` on.

    Tracebacks are left out: their indices are those of the whole log.
    """

    evidence: Evidence
    first: int = 0

    def holds(self, index: int) -> bool:
        return self.first <= index < self.first + len(self.evidence.lines)


def starts(evidence: Evidence, ended: Iterable[int]) -> list[int]:
    """Where another launch begins: the first line after the last step, or the end, of the one before.

    ended: lines that say that a run has ended. The start of the log itself is not among the results.
    """
    timeline = ProgressTimeline(evidence)
    orders: dict[Stream | None, _LaunchSigns] = defaultdict(_LaunchSigns)
    for index, line in enumerate(evidence.lines):
        orders[timeline.order_of(line.stream)].lines.append((_place(timeline, line), index))
    for point in evidence.steps:
        place = _in_order(timeline, point.stream, point.line, timeline.place_of(point))
        orders[timeline.order_of(point.stream)].steps.append(place)
    for index in ended:
        line = evidence.lines[index]
        orders[timeline.order_of(line.stream)].ends.append(_place(timeline, line))
    for stream, place in _coming_up(evidence, timeline):
        orders[timeline.order_of(stream)].coming_up.add(place)
    # The streams of a job are launched together: the first line of them all begins the launch.
    together = zip_longest(*(signs.begins() for signs in orders.values()), fillvalue=len(evidence.lines))
    return sorted(set(map(min, together)))


@dataclass(slots=True)
class _LaunchSigns:
    """Places at which something tells of launches, in streams whose lines share one order. lines: with their indices
    into ``Evidence.lines``."""

    lines: list[tuple[float, int]] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    coming_up: set[float] = field(default_factory=set)

    def begins(self) -> list[int]:
        """The first line of each launch but the first one."""
        steps, ends, lines = sorted(self.steps), sorted(self.ends), sorted(self.lines)
        first_lines, before = set[int](), (0, 0)
        for place in sorted(self.coming_up - {math.inf}):
            steps_passed, ends_passed = bisect_left(steps, place), bisect_left(ends, place)
            if steps_passed > before[0] + _FEW or ends_passed > before[1]:
                last = max([*steps[steps_passed - 1 : steps_passed], *ends[ends_passed - 1 : ends_passed]])
                first_lines.update(_first_after(lines, last))
            before = steps_passed, ends_passed
        return sorted(first_lines)


def _coming_up(evidence: Evidence, timeline: ProgressTimeline) -> Iterator[tuple[Stream, float]]:
    """Where processes start up: from kept lines, and from the first and last of routine lines that were not kept."""
    search = _comes_up().search
    for line in evidence.lines:
        if search(line.body):
            yield line.stream, _place(timeline, line)
    for template in evidence.templates:
        if not all(map(search, template.samples)):
            continue
        for stream, number in (template.first, template.last):
            yield stream, _in_order(timeline, stream, number, timeline.at(stream, number))


def _place(timeline: ProgressTimeline, line: Line) -> float:
    """The place of a line among those that share an order with it."""
    return _in_order(timeline, line.stream, line.number, timeline.place(line))


def _in_order(timeline: ProgressTimeline, stream: Stream, number: int, place: float) -> float:
    """The place on the timeline, or the number in a stream that has an order of its own."""
    return place if timeline.order_of(stream) is None else float(number)


@lru_cache(maxsize=1)
def _comes_up() -> Any:
    return re2.compile(_COMES_UP)


def _first_after(lines: Sequence[tuple[float, int]], place: float) -> Iterator[int]:
    """The first line after a place, if there is one. Lines of node logs are not on the attempt's timeline: their place
    is infinite. lines: by place."""
    after = bisect_right(lines, (place, math.inf))
    for next_place, index in lines[after : after + 1]:
        if next_place < math.inf:
            yield index


def around(evidence: Evidence, begins: Sequence[int], index: int) -> LaunchSegment:
    """The launch that line ``index`` belongs to. begins: from ``starts``."""
    if not begins:
        return LaunchSegment(evidence)
    edges, count = [0, *begins, len(evidence.lines)], bisect_right(begins, index)
    first, last = edges[count], edges[count + 1]
    bounds = _bounds(evidence, first, last)
    lines = evidence.lines[first:last]
    placements = tuple(seen for seen in evidence.placements if bounds.hold(seen.stream, seen.number))
    part = replace(
        evidence,
        lines=lines,
        tracebacks=(),
        progress=tuple(_points_between(evidence, first, last)),
        templates=tuple(template for template in evidence.templates if bounds.hold(*template.last)),
        phases=tuple(phase for phase in evidence.phases if bounds.hold(phase.last_stream, phase.last)),
        rank_nodes=rank_nodes(lines, placements),
        placements=placements,
        exits=tuple(_exits_between(evidence, first, last)),
    )
    return LaunchSegment(replace(part, ranks=_ranks(part, bounds)), first)


def _points_between(evidence: Evidence, first: int, last: int) -> Iterator[Progress]:
    """The points of the progress series that belong to lines first..last."""
    timeline, low, high = ProgressTimeline(evidence), -math.inf, math.inf
    if first:
        low = timeline.place(evidence.lines[first])
    if last < len(evidence.lines):
        high = timeline.place(evidence.lines[last])
    return (point for point in evidence.progress if low <= timeline.place_of(point) < high)


def _exits_between(evidence: Evidence, first: int, last: int) -> Iterator[ExitReport]:
    """The reports of lines first..last, counted from the first."""
    for report in evidence.exits:
        if first <= report.line < last:
            yield replace(report, line=report.line - first)


def series(evidence: Evidence, begins: Sequence[int]) -> tuple[Progress, ...]:
    """The steps of the newest launch that printed a loss or a gradient norm: another one has its own."""
    for begin in (*reversed(begins), 0):
        # a line of the launch: its first one
        points = around(evidence, begins, begin).evidence.progress
        if any((point.loss, point.grad_norm) != (None, None) for point in points):
            return points
    return evidence.progress


@dataclass(frozen=True, slots=True)
class SegmentBounds:
    """stream -> first and last line number of a launch, both included."""

    numbers: Mapping[Stream, tuple[int, float]]

    def hold(self, stream: Stream, number: int) -> bool:
        low, high = self.numbers.get(stream, (1, 0))
        return low <= number <= high


def _bounds(evidence: Evidence, first: int, last: int) -> SegmentBounds:
    """Covers lines that were not kept: a launch reaches from the last kept line before it to the first one after it."""
    lows, highs = dict[Stream, int](), dict[Stream, float]()
    for line in evidence.lines[:first]:
        lows[line.stream] = line.number + 1
    for line in reversed(evidence.lines[last:]):
        highs[line.stream] = line.number - 1
    numbers = {}
    for line in evidence.lines[first:last]:
        numbers[line.stream] = lows.get(line.stream, 0), highs.get(line.stream, math.inf)
    return SegmentBounds(numbers)


def _ranks(launch: Evidence, bounds: SegmentBounds) -> frozenset[int]:
    """The ranks of a launch. A template that an older launch printed too may carry ranks of that one, so of its ranks
    only those up to the highest that is certainly this launch's are counted."""
    own, shared = {*launch.rank_nodes, *map(attrgetter("rank"), launch.lines)}, set[int]()
    own.update(map(attrgetter("rank"), launch.progress))
    for template in launch.templates:
        (own if bounds.hold(*template.first) else shared).update(template.ranks)
    highest = max(own, default=-1)
    own.update(filter(highest.__ge__, shared))
    return frozenset(own - {-1})
