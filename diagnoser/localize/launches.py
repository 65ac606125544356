"""Where launches begin in a log that holds more than one.

A job that is launched again has its ranks on other nodes, and often fewer of them: what an older launch in the same log
said about ranks and nodes must not place a failure of the newest one.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import re2

from diagnoser.localize.progress import ProgressTimeline
from diagnoser.model import Evidence, Progress, Stream
from diagnoser.model.evidence import rank_nodes

_COMES_UP = (
    r"^START TIME:|Setting OMP_NUM_THREADS environment variable|^\+ ?(?:srun|torchrun|mpirun) "
    r"|\[launch(?:er)?\.py:\d+:main\] (?:WORLD INFO|nnodes=)|\[runner\.py:\d+:main\] cmd ="
    r"|store_based_barrier_key:1 to store|[Ii]nitializ(?:ing|ed) torch distributed|distributed init \(rank"
    r"|GLOBAL_RANK: \d+|\bdistributed_backend=|\b[Rr]ank[ :=]*\d+\b.{0,24}?\bon (?:node|host) [\w.-]+"
    r'|Process rank: \d+, (?:world|device)|[Ss]tarted a local Ray instance|"(?:submission_benchmark|init_start)"'
    r"|^nohup: ignoring input|STARTING TIMING RUN"
)
"""What is printed once a launch, by the launcher or by processes that come up."""
_FEW = 2
"""Steps that are no sign of life yet: the bars of downloads and caches look like them."""
SegmentBounds = Mapping[Stream, tuple[int, float]]
"""stream -> line numbers between which a launch lies, both belonging to it."""


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

    ended: lines that say that a run has ended. Where the log itself begins is not among them.
    """
    course = ProgressTimeline(evidence)
    ends = sorted(course.place(evidence.lines[index]) for index in ended)
    places = [course.place(line) for line in evidence.lines]
    found, before = set(), (0, 0)
    for place in sorted(_coming_up(evidence, course)):
        steps, over = bisect_left(course.places, place), bisect_left(ends, place)
        if steps > before[0] + _FEW or over > before[1]:
            last = max([*course.places[steps - 1 : steps], *ends[over - 1 : over]])
            found.add(_first_after(places, last))
        before = steps, over
    return sorted(index for index in found if index is not None)


def _coming_up(evidence: Evidence, course: ProgressTimeline) -> set[float]:
    """Where processes come up: by lines, and by the first and last of routine lines that were not kept."""
    search = _comes_up().search
    shown = {course.place(line) for line in evidence.lines if search(line.body)}
    for template in evidence.templates:
        if all(map(search, template.samples)):
            shown |= {course.at(*template.first), course.at(*template.last)}
    return shown - {math.inf}


@lru_cache(maxsize=1)
def _comes_up() -> Any:
    return re2.compile(_COMES_UP)


def _first_after(places: Sequence[float], place: float) -> int | None:
    """Lines of node logs stand beside the attempt's own: their place is infinite."""
    return next((index for index, one in enumerate(places) if place < one < math.inf), None)


def around(evidence: Evidence, begins: Sequence[int], at: int) -> LaunchSegment:
    """The launch that line ``at`` belongs to. begins: as of ``starts``."""
    if not begins:
        return LaunchSegment(evidence)
    count = bisect_right(begins, at)
    first, last = [0, *begins][count], [*begins, len(evidence.lines)][count]
    bounds = _bounds(evidence, first, last)
    lines = evidence.lines[first:last]
    placements = tuple(one for one in evidence.placements if _within(bounds, one.stream, one.number))
    course, nodes = ProgressTimeline(evidence), rank_nodes(lines, placements)
    low = course.place(evidence.lines[first]) if first else -math.inf
    high = course.place(evidence.lines[last]) if last < len(evidence.lines) else math.inf
    part = replace(
        evidence,
        lines=lines,
        tracebacks=(),
        progress=tuple(point for point in evidence.progress if low <= course.place_of(point) < high),
        templates=tuple(one for one in evidence.templates if _within(bounds, *one.last)),
        phases=tuple(one for one in evidence.phases if _within(bounds, one.last_stream, one.last)),
        rank_nodes=nodes,
        placements=placements,
    )
    return LaunchSegment(replace(part, ranks=_ranks(part, bounds)), first)


def series(evidence: Evidence, begins: Sequence[int]) -> tuple[Progress, ...]:
    """The steps of the newest launch that printed a loss or a gradient norm: another one has its own."""
    for at in (len(evidence.lines), *(begin - 1 for begin in reversed(begins))):
        points = around(evidence, begins, at).evidence.progress
        if any(point.loss is not None or point.grad_norm is not None for point in points):
            return points
    return evidence.progress


def _bounds(evidence: Evidence, first: int, last: int) -> SegmentBounds:
    """Also of lines that were not kept: a launch goes from the last kept line before it to the first one after it."""
    lows, highs = dict[Stream, int](), dict[Stream, float]()
    for line in evidence.lines[:first]:
        lows[line.stream] = line.number + 1
    for line in reversed(evidence.lines[last:]):
        highs[line.stream] = line.number - 1
    streams = {line.stream for line in evidence.lines[first:last]}
    return {stream: (lows.get(stream, 0), highs.get(stream, math.inf)) for stream in streams}


def _within(bounds: SegmentBounds, stream: Stream, number: int) -> bool:
    low, high = bounds.get(stream, (1, 0))
    return low <= number <= high


def _ranks(part: Evidence, bounds: SegmentBounds) -> frozenset[int]:
    """The ranks of a launch. A shape that an older one printed as well may have had more of them: those up to the
    highest that is this launch's own are taken for its own."""
    own = {line.rank for line in part.lines} | set(part.rank_nodes) | {point.rank for point in part.progress}
    for template in part.templates:
        own |= template.ranks if _within(bounds, *template.first) else set()
    shared = frozenset().union(*(template.ranks for template in part.templates))
    return frozenset(own | {rank for rank in shared if rank <= max(own, default=-1)}) - {-1}
