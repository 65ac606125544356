"""A Gantt chart of an evaluation: its bars, and the chart as text for a terminal. Pages draw it (``web.pages``)."""

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from diagnoser.evaluations.runtime_estimates import RuntimeEstimates
from diagnoser.model.evaluations import Placement, Schedule


class BarKind(StrEnum):
    LOAD = "load"
    INFERENCE = "inference"
    SCORING = "scoring"
    LOST = "lost"


_MARK = {BarKind.LOAD: "/", BarKind.INFERENCE: "█", BarKind.SCORING: "·", BarKind.LOST: "x"}
_OVER = {BarKind.INFERENCE: 2, BarKind.SCORING: 1, BarKind.LOAD: 0, BarKind.LOST: -1}


@dataclass(frozen=True, slots=True)
class Bar:
    """row: of the chart, such as a slot of a node. start, end: seconds of the run."""

    row: str
    kind: BarKind
    label: str
    start: float
    end: float


def bars(schedule: Schedule, estimates: RuntimeEstimates) -> list[Bar]:
    """Rows of slots in the order of their nodes, then as many rows of CPUs as metrics run at the same time."""
    several = len({scoring.checkpoint for scoring in schedule.scorings}) > 1
    placed = sorted(schedule.placements, key=lambda placement: (natural_order(placement.node), placement.slot))
    found: list[Bar] = []
    for placement in placed:
        found += _batch_bars(placement, estimates, several)
    free: list[tuple[float, int]] = []
    for scoring in sorted(schedule.scorings, key=lambda scoring: scoring.start):
        if free and free[0][0] <= scoring.start:
            number = heapq.heapreplace(free, (scoring.end, free[0][1]))[1]
        else:
            number = len(free)
            heapq.heappush(free, (scoring.end, number))
        label = trial_label(scoring.checkpoint, scoring.task, several)
        found.append(Bar(f"CPU {number}", BarKind.SCORING, label, scoring.start, scoring.end))
    return found


def text(chart: Sequence[Bar], width: int = 100) -> str:
    """A line for each row, at most ``width`` characters wide. A cell shows what takes most of its time."""
    rows: dict[str, list[Bar]] = {}
    for bar in chart:
        rows.setdefault(bar.row, []).append(bar)
    name = min(max(map(len, rows), default=0), 24)
    cells = max(10, width - name - 1)
    end = end_of(chart)
    lines = [f"{row[-name:]:<{name}} {_cells(found, end, cells)}" for row, found in rows.items()]
    axis = f"{'':<{name}} 0{duration(end):>{cells - 1}}"
    marks = "  ".join(f"{_MARK[kind]} {kind}" for kind in kinds(chart))
    return "\n".join([*lines, axis, marks])


def end_of(chart: Sequence[Bar]) -> float:
    """1.0 for a chart of nothing: widths are divided by it."""
    return max((bar.end for bar in chart), default=0.0) or 1.0


def duration(seconds: float) -> str:
    """Two units, such as 1 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def _batch_bars(placement: Placement, estimates: RuntimeEstimates, several: bool) -> Iterable[Bar]:
    row, at = f"{placement.node} {placement.slot}", placement.start
    shards = placement.batch.shards
    estimates = estimates.of_task(shards[0].task)
    seconds = [estimates.start + shard.samples * estimates.samples[shard.task] for shard in shards]
    if (load := placement.batch.seconds - sum(seconds)) > 0.5:
        yield Bar(row, BarKind.LOAD, "weights", at, at + load)
        at += load
    for shard, took in zip(shards, seconds, strict=True):
        name = f"{trial_label(shard.checkpoint, shard.task, several)} {shard.first}-{shard.last - 1}"
        yield Bar(row, BarKind.INFERENCE, name, at, at + took)
        at += took


def trial_label(checkpoint: str, task: str, several: bool) -> str:
    return f"{checkpoint.rstrip('/').rpartition('/')[2]} {task}" if several else task


def natural_order(name: str) -> tuple[tuple[int, str], ...]:
    """So that gpu-10 comes after gpu-9."""
    order: list[tuple[int, str]] = []
    for part in re.findall(r"\d+|\D", name):
        if part.isdecimal():
            order.append((int(part), ""))
        else:
            order.append((-1, part))
    return tuple(order)


def _cells(found: Sequence[Bar], end: float, cells: int) -> str:
    """Choose what takes most of each cell's time; a bar that is shorter than a cell is drawn where nothing else is."""
    shares: list[dict[BarKind, float]] = [{} for _ in range(cells)]
    for bar in found:
        left, right = bar.start / end * cells, bar.end / end * cells
        for cell in range(int(left), min(int(right) + 1, cells)):
            share = min(right, cell + 1) - max(left, cell)
            shares[cell][bar.kind] = shares[cell].get(bar.kind, 0.0) + share
    return "".join(map(_cell, shares)).rstrip()


def _cell(shares: Mapping[BarKind, float]) -> str:
    if sum(shares.values()) <= 0.05:
        return " "
    return _MARK[max(shares, key=lambda kind: (shares[kind], _OVER[kind]))]


def kinds(chart: Sequence[Bar]) -> list[BarKind]:
    """List the kinds to explain: all but lost work, which most charts have none of."""
    kinds = list(BarKind)
    if BarKind.LOST not in {bar.kind for bar in chart}:
        kinds.remove(BarKind.LOST)
    return kinds
