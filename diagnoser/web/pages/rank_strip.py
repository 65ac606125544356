"""Who printed when: a row for each rank, from its first line to its last, with warnings and errors. Values only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from diagnoser.logview.log_timeline import ERRORS, WARNINGS, LogTimeline, RankSpan
from diagnoser.model.number_runs import spans
from diagnoser.web.pages.time_scale import TimeScale
from diagnoser.wording.phrases import after, joined, plural, ranks_name
from diagnoser.wording.words import lasting

BINS = 200
"""Columns of the strip."""
ROWS_MAX = 512
"""Most rows; from more ranks on, those of a node share one, or as many neighbours as are needed."""
TABLE_ROWS_MAX = 64
"""Most rows of the table that says the same; of more ranks, those of a node share one."""
_ROW_HEIGHT, _HEIGHT = 12, 400
"""Pixels: of a row, and of the whole strip at most."""
_EARLY = 0.02
"""Share of the width by which a rank fell silent before most others, to be called early."""


@dataclass(frozen=True, slots=True)
class RankRow:
    """Ranks that share a row. first, last: times of the log, None where no line of theirs is held."""

    ranks: tuple[int, ...]
    node: str
    first: float | None
    last: float | None
    errors: int
    warnings: int
    url: str

    @property
    def name(self) -> str:
        return ranks_name(self.ranks) + after(" on ", self.node)

    @property
    def title(self) -> str:
        if self.last is None:
            return f"{self.name}: no line is held"
        counts = []
        if self.errors:
            counts.append(plural(self.errors, "error"))
        if self.warnings:
            counts.append(plural(self.warnings, "warning"))
        return self.name + after(": ", joined(counts))


@dataclass(frozen=True, slots=True)
class RankStrip:
    """rows: from top to bottom, one unit high each, in a box that is ``BINS`` wide. heard, warned, failed: SVG paths of
    their cells. silent: paths of rows without any line. height: of the drawing, in pixels. table: the rows for reading,
    in which many ranks share one. notes: what is odd about who fell silent, in words."""

    rows: tuple[RankRow, ...]
    table: tuple[RankRow, ...]
    heard: str
    warned: str
    failed: str
    silent: str
    height: int
    ranks: int
    notes: tuple[str, ...]
    bins: int = BINS


def rank_strip(log: LogTimeline, scale: TimeScale, rank_nodes: Mapping[int, str], log_path: str) -> RankStrip | None:
    """None where no rank is known. rank_nodes: as registered."""
    found = {span.rank: span for span in log.ranks}
    ranks = sorted({*found, *rank_nodes})
    if not ranks:
        return None
    nodes = dict.fromkeys(ranks, "") | dict(rank_nodes)
    for span in log.ranks:
        if span.node:
            nodes[span.rank] = span.node
    rows = [_row(group, found, nodes, log_path) for group in _groups(ranks, nodes, ROWS_MAX)]
    table = [_row(group, found, nodes, log_path) for group in _groups(ranks, nodes, TABLE_ROWS_MAX)]
    row_of: dict[int, int] = {}
    for place, row in enumerate(rows):
        row_of |= dict.fromkeys(row.ranks, place)
    heat = log.heat(scale.edges(BINS), row_of, len(rows))
    return RankStrip(
        rows=tuple(rows),
        table=tuple(table),
        heard=_heard(rows, scale),
        warned=_path(heat == WARNINGS),
        failed=_path(heat == ERRORS),
        silent="" if log.unnamed or not log.ranks else "".join(_silent(rows)),
        height=min(len(rows) * _ROW_HEIGHT, _HEIGHT),
        ranks=len(ranks),
        notes=tuple(filter(None, (_missing_note(log, ranks), _early_note(log, scale)))),
    )


def _groups(ranks: Sequence[int], nodes: Mapping[int, str], most: int) -> list[tuple[int, ...]]:
    if len(ranks) <= most:
        return [(rank,) for rank in ranks]
    by_node = [tuple(group) for _, group in groupby(ranks, key=lambda rank: nodes[rank])]
    if len(by_node) <= most and all(nodes.values()):
        return by_node
    size = -(-len(ranks) // most)
    return [tuple(ranks[start : start + size]) for start in range(0, len(ranks), size)]


def _row(ranks: tuple[int, ...], found: Mapping[int, RankSpan], nodes: Mapping[int, str], log_path: str) -> RankRow:
    firsts, lasts, errors, warnings = list[float](), list[float](), 0, 0
    for rank in ranks:
        if span := found.get(rank):
            firsts.append(span.first)
            lasts.append(span.last)
            errors += span.errors
            warnings += span.warnings
    names = set(map(nodes.__getitem__, ranks))
    return RankRow(
        ranks=ranks,
        node=names.pop() if len(names) == 1 else "",
        first=min(firsts, default=None),
        last=max(lasts, default=None),
        errors=errors,
        warnings=warnings,
        url=f"{log_path}?ranks={spans(ranks)}",
    )


def _heard(rows: Sequence[RankRow], scale: TimeScale) -> str:
    path = []
    for place, row in enumerate(rows):
        if row.first is not None and row.last is not None:
            left, right = int(scale.x(row.first) * BINS), int(scale.x(row.last) * BINS)
            path.append(_cell(min(left, BINS - 1), place, max(min(right, BINS - 1) - left, 0) + 1))
    return "".join(path)


def _silent(rows: Sequence[RankRow]) -> Iterator[str]:
    for place, row in enumerate(rows):
        if row.last is None:
            yield _cell(0, place, BINS)


def _path(cells: NDArray[np.bool_]) -> str:
    """Neighbours of a row as one."""
    padded = np.pad(cells, ((0, 0), (1, 1))).astype(np.int8)
    rows, columns = (found.tolist() for found in np.nonzero(np.diff(padded, axis=1)))  # where a run begins, or is over
    runs = zip(rows[::2], columns[::2], columns[1::2], strict=True)
    return "".join(_cell(start, row, end - start) for row, start, end in runs)


def _cell(x: int, y: int, width: int) -> str:
    return f"M{x} {y}h{width}v1h-{width}z"


def _missing_note(log: LogTimeline, ranks: Sequence[int]) -> str:
    """Ranks that never printed."""
    if not log.ranks:
        return "No line that was kept names its rank: who printed when is not known."
    missing = sorted({*ranks} - {span.rank for span in log.ranks})
    if not missing:
        return ""
    if log.unnamed:
        return f"{log.unnamed:,} lines that name their rank were only counted: who printed when is not known of all."
    return f"No line came from {ranks_name(missing)}."


def _early_note(log: LogTimeline, scale: TimeScale) -> str:
    """Ranks that stopped before most others. Positions in a log without times tell only who was written first."""
    lasts = sorted(span.last for span in log.ranks)
    if len(lasts) < 2:
        return ""
    if not log.is_timed:
        return ""
    usual = lasts[len(lasts) // 2]
    early = [span for span in log.ranks if scale.x(usual) - scale.x(span.last) > _EARLY]
    if not 0 < len(early) < len(lasts) / 2:
        return ""
    before = usual - max(span.last for span in early)
    how_long = f"{lasting(before)} or more " if before >= 1 else ""
    who = ranks_name([span.rank for span in early]).capitalize()
    return f"{who} fell silent {how_long}before most others."
