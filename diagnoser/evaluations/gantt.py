"""A Gantt chart of an evaluation: as SVG without script or style, and as text for a terminal.

What a bar is shows its pattern, not its colour alone: loads are hatched, metrics dotted, inference plain.
"""

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape

from diagnoser.evaluations.runtime_estimates import RuntimeEstimates
from diagnoser.model.evaluations import Placement, Schedule

_LOAD, _INFERENCE, _SCORING, _LOST = "#b08800", "#1f6fbf", "#2b8a3e", "#d9480f"
"""Colours that can be read on a light and on a dark page. Text has the colour of the page's."""
_WIDTH, _LEFT, _ROW, _TOP, _BOTTOM = 960, 150, 18, 24, 26
_TICKS = 7
"""Most ticks of the axis."""
_STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400)
"""Seconds between two ticks."""
_LETTER = 6.2
"""Pixels of a character, so that a label stays within its bar."""


class BarKind(StrEnum):
    LOAD = "load"
    INFERENCE = "inference"
    SCORING = "scoring"
    LOST = "lost"


_FILL = {
    BarKind.LOAD: "url(#trial-load)",
    BarKind.INFERENCE: _INFERENCE,
    BarKind.SCORING: "url(#trial-scoring)",
    BarKind.LOST: "none",
}
_EDGE = {BarKind.LOAD: _LOAD, BarKind.INFERENCE: _INFERENCE, BarKind.SCORING: _SCORING, BarKind.LOST: _LOST}
_MARK = {BarKind.LOAD: "/", BarKind.INFERENCE: "█", BarKind.SCORING: "·", BarKind.LOST: "x"}
_OVER = {BarKind.INFERENCE: 2, BarKind.SCORING: 1, BarKind.LOAD: 0, BarKind.LOST: -1}
_NAMES = {
    BarKind.LOAD: "load of weights",
    BarKind.INFERENCE: "inference",
    BarKind.SCORING: "metric on a CPU",
    BarKind.LOST: "lost or cancelled",
}


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


def svg(chart: Sequence[Bar], title: str, description: str) -> str:
    """The chart as one element, to stand in a page or in a file. The texts are escaped here."""
    rows: dict[str, int] = {}
    for bar in chart:
        rows.setdefault(bar.row, len(rows))
    end = _end(chart)
    bottom = _TOP + _ROW * max(1, len(rows))
    scale = (_WIDTH - _LEFT - 8) / end
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + _BOTTOM}" width="{_WIDTH}" '
        f'height="{bottom + _BOTTOM}" role="img" aria-labelledby="trial-gantt-title trial-gantt-text" '
        f'font-family="sans-serif" font-size="11" fill="currentColor">'
        f'<title id="trial-gantt-title">{escape(title)}</title>'
        f'<desc id="trial-gantt-text">{escape(description)}</desc>{_DEFINITIONS}{_legend(chart)}'
        + "".join(_row(row, number) for row, number in rows.items())
        + _axis(end, scale, bottom)
        + "".join(_rectangle(bar, rows[bar.row], scale) for bar in chart)
        + "</svg>"
    )


def text(chart: Sequence[Bar], width: int = 100) -> str:
    """A line for each row, at most ``width`` characters wide. A cell shows what takes most of its time."""
    rows: dict[str, list[Bar]] = {}
    for bar in chart:
        rows.setdefault(bar.row, []).append(bar)
    name = min(max(map(len, rows), default=0), 24)
    cells = max(10, width - name - 1)
    end = _end(chart)
    lines = [f"{row[-name:]:<{name}} {_cells(found, end, cells)}" for row, found in rows.items()]
    axis = f"{'':<{name}} 0{duration(end):>{cells - 1}}"
    marks = "  ".join(f"{_MARK[kind]} {kind}" for kind in _kinds(chart))
    return "\n".join([*lines, axis, marks])


def _end(chart: Sequence[Bar]) -> float:
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


_DEFINITIONS = (
    '<defs><pattern id="trial-load" width="5" height="5" patternUnits="userSpaceOnUse" '
    f'patternTransform="rotate(45)"><path d="M0 0V5" stroke="{_LOAD}" stroke-width="3"/></pattern>'
    '<pattern id="trial-scoring" width="5" height="5" patternUnits="userSpaceOnUse">'
    f'<circle cx="2.5" cy="2.5" r="1.4" fill="{_SCORING}"/></pattern></defs>'
)


def _kinds(chart: Sequence[Bar]) -> list[BarKind]:
    """List the kinds to explain: all but lost work, which most charts have none of."""
    kinds = list(BarKind)
    if BarKind.LOST not in {bar.kind for bar in chart}:
        kinds.remove(BarKind.LOST)
    return kinds


def _legend(chart: Sequence[Bar]) -> str:
    legend = ""
    for number, kind in enumerate(_kinds(chart)):
        x = _LEFT + 130 * number
        legend += f'<rect x="{x}" y="4" width="22" height="12" fill="{_FILL[kind]}" stroke="{_EDGE[kind]}"/>'
        legend += f'<text x="{x + 28}" y="14">{_NAMES[kind]}</text>'
    return legend


def _row(row: str, number: int) -> str:
    y = _TOP + _ROW * number + _ROW - 5
    if len(row) >= 24:
        row = "…" + row[-22:]
    return f'<text x="{_LEFT - 6}" y="{y}" text-anchor="end">{escape(row)}</text>'


def _axis(end: float, scale: float, bottom: int) -> str:
    ticks = ""
    step = next((step for step in _STEPS if end / step <= _TICKS), end)
    for tick in range(int(end / step * 0.92) + 1):  # none beside the end's own
        at = step * tick
        x = f"{_LEFT + at * scale:.1f}"
        ticks += f'<path d="M{x} {_TOP}V{bottom}" stroke="currentColor" stroke-opacity=".25"/>'
        ticks += f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{duration(at)}</text>'
    return f'{ticks}<text x="{_WIDTH - 8}" y="{bottom + 16}" text-anchor="end">{duration(end)}</text>'


def _label(bar: Bar, width: float) -> str:
    """Choose the longest text that fits into the bar; "" where none does."""
    if bar.kind is BarKind.INFERENCE:
        for name in (bar.label, bar.label.rpartition(" ")[0]):
            if len(name) * _LETTER < width - 6:
                return name
    return ""


def _rectangle(bar: Bar, row: int, scale: float) -> str:
    x, width = _LEFT + bar.start * scale, max(0.5, (bar.end - bar.start) * scale - 1)
    y = _TOP + _ROW * row + 2
    times = f"{duration(bar.start)} to {duration(bar.end)}"
    label = ""
    if name := _label(bar, width):
        label = f'<text x="{x + 3:.1f}" y="{y + 11}" fill="#fff" font-size="10">{escape(name)}</text>'
    return (
        f'<g><title>{escape(bar.label)}: {bar.kind}, {times}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{_ROW - 4}" fill="{_FILL[bar.kind]}" stroke="{_EDGE[bar.kind]}" stroke-width=".75"/>{label}</g>'
    )
