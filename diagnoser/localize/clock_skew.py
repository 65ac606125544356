"""Clocks of nodes that are wrong, told by the steps that all ranks make together.

In a synchronous job every rank ends a step at the same moment, within a fraction of it. A rank whose steps are all
dated early or late by the same amount has a clock that is off by that; so have the other lines of its node.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from diagnoser.model import NODE_SOURCES, Evidence, Line, Stream
from diagnoser.model.evidence import in_order

_LEAST = 1.0
"""Seconds below which clocks are left alone: so far apart do ranks print the same step."""
_STEPS = 3
"""Common steps needed to tell a wrong clock from a late line."""
_STEADY = 0.2
"""Share of an offset by which it may vary from step to step; and seconds, for small ones."""


def corrected(evidence: Evidence) -> Evidence:
    """The evidence with all times on one clock, its lines in that order. Within one stream the order of lines counts
    and nothing is changed."""
    if len({line.stream for line in evidence.lines if line.stream.source not in NODE_SOURCES}) < 2:
        return evidence
    ranks = _offsets(evidence)
    if not ranks:
        return evidence
    streams = _of_streams(evidence, ranks)
    nodes = {stream.node: offset for stream, offset in streams.items() if stream.node}

    def moved(line: Line) -> Line:
        offset = streams.get(line.stream, nodes.get(line.stream.node, 0.0))
        return replace(line, time=line.time - offset) if offset and line.time > 0 else line

    points = (replace(point, time=point.time - ranks.get(point.rank, 0.0)) for point in evidence.progress)
    return in_order(replace(evidence, progress=tuple(points)), tuple(map(moved, evidence.lines)))


def _offsets(evidence: Evidence) -> dict[int, float]:
    """rank -> seconds by which its clock is ahead of the middle of all; only ranks whose clock is clearly off."""
    steps: dict[int, dict[int, float]] = defaultdict(dict)
    for point in evidence.progress:
        if point.step is not None and point.time > 0 and point.rank >= 0:
            steps[point.step][point.rank] = point.time
    apart: dict[int, list[float]] = defaultdict(list)
    for times in steps.values():
        middle = median(times.values())
        for rank, time in times.items() if len(times) > 1 else ():
            apart[rank].append(time - middle)
    offsets = {rank: median(found) for rank, found in apart.items() if len(found) >= _STEPS}
    return {
        rank: offset
        for rank, offset in offsets.items()
        if abs(offset) >= _LEAST
        and median(abs(one - offset) for one in apart[rank]) <= max(_LEAST, abs(offset)) * _STEADY
    }


def _of_streams(evidence: Evidence, ranks: Mapping[int, float]) -> dict[Stream, float]:
    """stream -> offset, from the ranks that speak in it: processes of one node share its clock."""
    found: dict[Stream, set[int]] = defaultdict(set)
    for line in evidence.lines:
        if line.rank >= 0 and line.stream.source not in NODE_SOURCES:
            found[line.stream].add(line.rank)
    offsets = {stream: [ranks.get(rank, 0.0) for rank in speakers] for stream, speakers in found.items()}
    return {stream: median(values) for stream, values in offsets.items()}
