"""What the progress series shows of how far training came: whether it went on after a line, and where it began anew."""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, pairwise
from operator import attrgetter

from diagnoser.model import Evidence, Line, Progress, Stream
from diagnoser.model.order import LATE, follows_restart, is_of_restart, process_of

_ON = 2
"""Steps after an error that show that training went on: one more step may already have been under way."""
_Processes = frozenset[int | str]
"""Ranks; nodes or pods where no ranks are known."""


class ProgressTimeline:
    """The progress series, to ask whether training went on after a line. Built once per log: logs have many candidates.

    Only steps count that are known to have come after the line: see ``model.order``. Places are on a scale that lines
    and steps share: line numbers where there is one stream, else times, of arrival where no others are known. They tell
    what came first only among streams that ``order_of`` puts together.
    """

    def __init__(self, evidence: Evidence) -> None:
        streams = set[Stream]()
        self._undated = set[Stream]()
        for line in evidence.lines:
            if line.stream.from_job:
                streams.add(line.stream)
            if line.arrived:
                self._undated.add(line.stream)
        self._evidence = evidence
        self._only: Stream | None = None
        self._single = len(streams) <= 1
        if self._single:
            self._only = next(iter(streams), None)

    @cached_property
    def _line_places(self) -> dict[Stream, tuple[list[int], list[float]]]:
        """The numbers and the places of the lines of each stream."""
        of_streams = dict[Stream, tuple[list[int], list[float]]]()
        for line in self._evidence.lines:
            numbers, places = of_streams.setdefault(line.stream, ([], []))
            numbers.append(line.number)
            places.append(self.place(line))
        return of_streams

    @cached_property
    def _on_node(self) -> dict[str, set[int | str]]:
        """The processes that print from each node."""
        processes = defaultdict[str, set[int | str]](set)
        for line in self._evidence.lines:
            processes[line.node].add(line.process)
        return processes

    @cached_property
    def _steps(self) -> "_PointOrders":
        return _PointOrders(self._evidence.steps, self._only)

    @cached_property
    def _calm(self) -> "_PointOrders":
        return _PointOrders(list(filter(_is_finite, self._evidence.progress)), self._only)

    def went_on(self, line: Line, steps: int = _ON) -> bool:
        """Whether training advanced by more than ``steps`` different steps after ``line``.

        Where the rank that printed the line had told its own steps before, only its own count: others train on for a
        moment without it, or to their own end. The same for a node or pod where no ranks are known, and for all
        that print from a node, after a line of the node itself.
        """
        ranks: _Processes | None = frozenset({line.process}) - {-1}
        if line.rank < 0 and line.node:
            ranks = frozenset(self._on_node[line.node])
        if not ranks or not self._steps.has_before(line, ranks):
            ranks = None
        return self._steps.advanced(line, ranks, steps)

    def lived_on(self, line: Line, ranks: Sequence[int], steps: int) -> bool:
        """Whether these ranks advanced by more than ``steps`` different steps after ``line``; all ranks without any."""
        return self._steps.advanced(line, frozenset(ranks) or None, steps)

    def calmed(self, line: Line) -> bool:
        """Whether a later point shows a finite loss again."""
        return self._calm.advanced(line, None, 0)

    def order_of(self, stream: Stream) -> Stream | None:
        """The lines of which streams share an order with those of this one: only its own, as it prints no times; None:
        those of all streams that print times, or of the only one."""
        if self._single:
            return None
        if stream not in self._undated:
            return None
        return stream

    def place_of(self, point: Progress) -> float:
        if self._single:
            return float(point.line)
        return point.time

    def at(self, stream: Stream, number: int) -> float:
        """The place of a line that may not have been kept: that of the next kept line of its stream."""
        if self._single:
            return float(number)
        numbers, places = self._line_places.get(stream, ([], []))
        index = bisect_left(numbers, number)
        if index < len(places):
            return places[index]
        return math.inf

    def place(self, line: Line) -> float:
        """Where the line stands among the steps; infinite where the log does not show it."""
        if not self._single:
            return line.time if line.time > 0 else math.inf
        return float(line.number) if line.stream.from_job else math.inf  # a node's own log counts its lines apart


class StepOrder:
    """Steps in one order, with the number of different ones from each of them to the end."""

    def __init__(self, points: Iterable[tuple[float, int | None]]) -> None:
        """points: place in the order, and step."""
        self._places, self._counts, steps = list[float](), [0], set[int | None]()
        for place, step in sorted(points, key=lambda point: point[0], reverse=True):
            steps.add(step)
            self._places.append(place)
            self._counts.append(len(steps))
        self._places.reverse()
        self._counts.reverse()
        self.first = next(iter(self._places), math.inf)

    def count_after(self, place: float) -> int:
        return self._counts[bisect_right(self._places, place)]


def body_begins(points: Iterable[Progress]) -> dict[tuple[Stream, float], float]:
    """(stream, arrival of a body of lines) -> when its lines were printed, at the earliest: after the body before had
    arrived; infinitely long ago for the first one."""
    arrivals: dict[Stream, set[float]] = defaultdict(set)
    for point in points:
        arrivals[point.stream].add(point.received)
    begins = dict[tuple[Stream, float], float]()
    for stream, received in arrivals.items():
        for before, time in pairwise([-math.inf, *sorted(received)]):
            begins[stream, time] = before
    return begins


class _Arrivals:
    """What the arrival of steps tells of a line of another stream that does not share a clock with them.

    A step was made after the body before its own had arrived, where its stream had begun to arrive by then: what comes
    from a stream that nobody saw before may all be older than the line.
    """

    def __init__(self, streams: Iterable[Sequence[Progress]], steps: int) -> None:
        """streams: the points of each. steps: how many different ones show no life yet."""
        alive = []
        for points in filter(None, streams):
            alive.append((min(map(attrgetter("received"), points)), _alive_at(points, steps)))
        alive.sort()
        self._firsts = [first for first, _ in alive]
        self._alive_until = list(accumulate((until for _, until in alive), max))

    def show_life(self, line: Line) -> bool:
        """Whether a stream that had begun to arrive before the line made more steps after it, beyond what buffers
        explain."""
        seen = bisect_right(self._firsts, line.received)
        if not line.received or not seen:
            return False
        return self._alive_until[seen - 1] > line.received + LATE


def _alive_at(points: Sequence[Progress], steps: int) -> float:
    """The newest moment after which the stream is known to have made more than ``steps`` different steps."""
    begins, made = body_begins(points), set[int | None]()
    for point in sorted(points, key=attrgetter("received"), reverse=True):
        made.add(point.step)
        if len(made) > steps:
            return begins[point.stream, point.received]
    return -math.inf


class _PointOrders:
    """Points of the progress series in every order that one of them shares with a line. only: the stream of all points
    where there is but one."""

    def __init__(self, points: Sequence[Progress], only: Stream | None) -> None:
        self.only = only
        self._by_stream: dict[Stream, list[Progress]] = defaultdict(list)
        self._by_rank: dict[int | str, list[Progress]] = defaultdict(list)
        for point in points:
            self._by_stream[only or point.stream].append(point)
            self._by_rank[point.process].append(point)
        self._by_process: dict[object, list[Stream]] = defaultdict(list)
        for stream in self._by_stream:
            self._by_process[process_of(stream)].append(stream)
        self._of_launcher = list(filter(is_of_restart, self._by_stream))
        self._kinds: dict[object, StepOrder] = {}
        self._by_arrival: dict[object, _Arrivals] = {}

    def advanced(self, line: Line, ranks: _Processes | None, steps: int) -> bool:
        """Whether more than ``steps`` different steps are known to have been made after ``line``. ranks: by these;
        None: by all."""
        if self.only and line.stream != self.only:
            return False
        if self._of_stream(line.stream, ranks).count_after(line.number) > steps:
            return True
        if self.only:
            return False
        if self._of_restarts(line.stream, ranks) > steps:
            return True
        if line.is_dated and self._dated(ranks).count_after(line.time) > steps:
            return True
        # A rank that tells no steps of its own is alive while the others train on, beyond what buffers explain.
        return self._arrivals(line, ranks, steps).show_life(line)

    def has_before(self, line: Line, ranks: _Processes) -> bool:
        """Whether one of these ranks is known to have made a step before ``line``, or as one of its own stream."""
        if self._of_stream(self.only or line.stream, ranks).first <= line.number:
            return self.only in (None, line.stream)
        if self.only:
            return False
        if not line.is_dated:
            return False
        return self._dated(ranks).first <= line.time

    def _of_stream(self, stream: Stream, ranks: _Processes | None) -> StepOrder:
        return self._series((stream, ranks), lambda: ((p.line, p.step) for p in _of(self._by_stream[stream], ranks)))

    def _dated(self, ranks: _Processes | None) -> StepOrder:
        chosen = self._by_rank if ranks is None else ranks
        points = chain.from_iterable(self._by_rank.get(rank, ()) for rank in chosen)
        return self._series(ranks, lambda: ((p.time, p.step) for p in points if p.is_dated))

    def _of_restarts(self, stream: Stream, ranks: _Processes | None) -> int:
        """Steps in the files of processes that the launcher started after those of the stream."""
        steps = set[int | None]()
        for other in self._of_launcher:
            if follows_restart(other, stream):
                steps.update(map(attrgetter("step"), _of(self._by_stream[other], ranks)))
        return len(steps)

    def _arrivals(self, line: Line, ranks: _Processes | None, steps: int) -> "_Arrivals":
        """Of the steps that do not share a clock with the line: of all streams, else what the process of the line
        prints into its other output."""
        process = None if ranks is None else process_of(line.stream)
        key = process, line.is_dated, ranks, steps
        if key not in self._by_arrival:
            streams = self._by_stream if process is None else self._by_process.get(process, ())
            points = (self._without_clock(stream, ranks, is_dated=line.is_dated) for stream in streams)
            self._by_arrival[key] = _Arrivals(points, steps)
        return self._by_arrival[key]

    def _without_clock(self, stream: Stream, ranks: _Processes | None, *, is_dated: bool) -> list[Progress]:
        """The points of a stream, but for those whose printed times tell more. is_dated: the other line prints one."""
        points = _of(self._by_stream[stream], ranks)
        return [point for point in points if not (is_dated and point.is_dated)]

    def _series(self, key: object, points: Callable[[], Iterable[tuple[float, int | None]]]) -> StepOrder:
        if key not in self._kinds:
            self._kinds[key] = StepOrder(points())
        return self._kinds[key]


def _of(points: Iterable[Progress], ranks: _Processes | None) -> Iterator[Progress]:
    if ranks is None:
        return iter(points)
    return (point for point in points if point.process in ranks)


def restarts(evidence: Evidence) -> list[int]:
    """Lines at which a rank's step counter falls back: another launch appended to the same log."""
    last: dict[int | str, int] = {}
    lines = []
    for point in sorted(evidence.progress, key=lambda point: point.line):
        if point.step is None:
            continue
        if point.step < last.get(point.process, point.step):
            lines.append(point.line)
        last[point.process] = point.step
    return lines


def _is_finite(point: Progress) -> bool:
    """Whether it has a loss or a gradient norm, and neither is NaN or infinite."""
    values = [value for value in (point.loss, point.grad_norm) if value is not None]
    if not values:
        return False
    return all(map(math.isfinite, values))
