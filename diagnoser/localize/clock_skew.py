"""Node clocks that are wrong, detected from the steps that all ranks make together.

In a synchronous job every rank ends a step at the same moment, within a fraction of it. A rank whose steps are all
early or late by the same amount has a clock that is off by that much, and so have all other lines of its node.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from statistics import median
from typing import TypeVar

from diagnoser.model import Evidence, Line, Progress, Stream
from diagnoser.model.evidence import in_order

_LEAST = 1.0
"""Clocks that differ by fewer seconds are left alone: ranks print the same step up to this far apart."""
_STEPS = 3
"""Common steps needed to tell a wrong clock from a late line."""
_STEADY = 0.2
"""How much an offset may vary from step to step, as a share of it; in seconds for small offsets."""


def corrected(evidence: Evidence) -> Evidence:
    """The evidence with all times on one clock and its lines in that order. A single stream is already in order
    and is left as it is."""
    if len(set(map(attrgetter("stream"), evidence.job_lines))) < 2:
        return evidence
    rank_offsets = _rank_offsets(evidence)
    if not rank_offsets:
        return evidence
    stream_offsets = _stream_offsets(evidence, rank_offsets)
    by_node = _by_node(stream_offsets)
    lines = []
    for line in evidence.lines:
        lines.append(_shifted(line, stream_offsets.get(line.stream, by_node.get(line.stream.node, 0.0))))
    points = (_shifted(point, rank_offsets.get(point.rank, 0.0)) for point in evidence.progress)
    return in_order(replace(evidence, progress=tuple(points)), lines)


_Printed = TypeVar("_Printed", Line, Progress)


def _shifted(printed: _Printed, offset: float) -> _Printed:
    """A line or point at the time of the common clock. offset: seconds by which its clock is ahead."""
    if not offset:
        return printed
    if not printed.is_dated:
        return printed
    return replace(printed, time=printed.time - offset)


def node_offsets(evidence: Evidence) -> dict[str, float]:
    """node -> seconds by which its clock is ahead, as the ranks there show; only nodes whose streams name them."""
    rank_offsets = _rank_offsets(evidence)
    return _by_node(_stream_offsets(evidence, rank_offsets)) if rank_offsets else {}


def _by_node(stream_offsets: Mapping[Stream, float]) -> dict[str, float]:
    return {stream.node: offset for stream, offset in stream_offsets.items() if stream.node}


def _rank_offsets(evidence: Evidence) -> dict[int, float]:
    """rank -> seconds by which its clock is ahead of the middle of all; only ranks whose clock is clearly off."""
    differences: dict[int, list[float]] = defaultdict(list)
    for times in _step_times(evidence).values():
        if len(times) < 2:
            continue
        middle = median(times.values())
        for rank, time in times.items():
            differences[rank].append(time - middle)
    offsets = {}
    for rank, values in differences.items():
        offset = median(values)
        if len(values) < _STEPS:
            continue
        if abs(offset) < _LEAST:
            continue
        if median(abs(difference - offset) for difference in values) <= max(_LEAST, abs(offset)) * _STEADY:
            offsets[rank] = offset
    return offsets


def _step_times(evidence: Evidence) -> dict[int, dict[int, float]]:
    """step -> rank -> when it was made, as the rank prints it."""
    steps: dict[int, dict[int, float]] = defaultdict(dict)
    for point in evidence.progress:
        if point.step is None:
            continue
        if point.rank < 0:
            continue
        if point.is_dated:
            steps[point.step][point.rank] = point.time
    return steps


def _stream_offsets(evidence: Evidence, rank_offsets: Mapping[int, float]) -> dict[Stream, float]:
    """stream -> offset, from the ranks that speak in it: processes of one node share its clock."""
    speakers: dict[Stream, set[int]] = defaultdict(set)
    for line in evidence.lines:
        if line.rank < 0:
            continue
        if line.stream.from_job:
            speakers[line.stream].add(line.rank)
    offsets = {}
    for stream, ranks in speakers.items():
        offsets[stream] = median(rank_offsets.get(rank, 0.0) for rank in ranks)
    return offsets
