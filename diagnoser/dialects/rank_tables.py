"""Where programs say on which node each rank runs: sentences, ranges, maps, and tables with a header."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

from diagnoser.dialects import node_lists

MACHINE = (
    r"(?!(?i:x86|i[3-6]86|aarch|arm64|amd64|ppc|v\d|cuda|localhost))"
    r"(?:[A-Za-z](?=[\w.-]{0,90}(?:\d|[-_][a-z]\b))[\w.-]{0,90}\w|\d{1,3}(?:\.\d{1,3}){3})"
)
"""A machine's name, which has a number or a letter for one; or its address."""
_RANKS = r"\[?(?P<ranks>\d{1,6}(?:(?: ?- ?|\.\.\.?|, ?| to )\d{1,6}){0,64})\]?"
_IS_ON = r"(?: ?(?:->|=>|@)| (?:is |runs |running |started |placed |lives )?(?:on|at|in)\b)"


@dataclass(frozen=True, slots=True)
class PlacementForm:
    """pattern: groups ``ranks`` and ``node``. examples: (line, ranks, node)."""

    pattern: str
    examples: tuple[tuple[str, tuple[int, ...], str], ...]


def _form(pattern: str, *examples: tuple[str, tuple[int, ...], str]) -> PlacementForm:
    return PlacementForm(pattern, examples)


FORMS = (
    _form(
        rf"(?i)^\W{{0,4}}ranks?[ :=#]{{1,2}}{_RANKS} ?[:=] {{0,4}}(?P<node>(?-i:{MACHINE}))\W{{0,2}}$",
        ("Rank 4..7: node-b", (4, 5, 6, 7), "node-b"),
    ),
    _form(
        rf"(?i)\branks?[ :=#]{{1,2}}{_RANKS}(?: (?:out )?of \d{{1,6}})?{_IS_ON} {{0,2}}(?:(?:host|node)[ =:]{{1,2}})?"
        rf"(?P<node>(?-i:{MACHINE}))(?![\w/])",
        ("rank 2 -> cn0004", (2,), "cn0004"),
        ("hello from rank 3 of 4 @ n017", (3,), "n017"),
        ("ranks 0, 1 on host gpu-07", (0, 1), "gpu-07"),
    ),
    _form(
        rf"(?i)\brank[ :=#]{{1,2}}(?P<ranks>\d{{1,6}}) \((?:host|node)?[ =:]{{0,2}}(?P<node>(?-i:{MACHINE}))\)",
        ("Rank 3 (gpu-07) initialized", (3,), "gpu-07"),
    ),
    _form(
        rf"(?i)\b(?:processor|host(?:name)?|node)[ =:]{{1,2}}(?P<node>(?-i:{MACHINE}))[ ,;:]{{1,3}}"
        rf"(?:(?:global|world|mpi)[ _])?ranks?[ =:]{{1,2}}{_RANKS}",
        ("Hello world from processor cn0004, rank 2 out of 4 processors", (2,), "cn0004"),
        ("host=gpu-07 rank=3 local_rank=0", (3,), "gpu-07"),
        ("node gpu-07: ranks 0-3", (0, 1, 2, 3), "gpu-07"),
    ),
    _form(
        rf"(?i)^\W{{0,4}}(?P<node>(?-i:{MACHINE}))(?: ?(?:->|=>|:|=)) {{0,2}}ranks?[ :=]{{1,2}}{_RANKS}\W{{0,3}}$",
        ("gpu-07: ranks [0, 1]", (0, 1), "gpu-07"),
    ),
    _form(
        rf"(?i)\b(?:rank|worker|task|trainer|process)[ :=#]{{1,2}}(?P<ranks>\d{{1,6}}) (?:on|at) (?:(?:host|node) )?"
        rf"(?P<node>(?-i:{MACHINE})):? .{{0,40}}?(?:fail|die[ds]|crash|abort|exited|killed|lost|raised)",
        ("worker 3 on gpu-07 died with exit code 1", (3,), "gpu-07"),
    ),
)
_HINT = re.compile(r"(?i)rank|(?:worker|task|trainer|process)[ :=#]{1,2}\d+ (?:on|at) ")
_RULE = re.compile(r"[\s|+=│┃─━╇╪├┤┼-]+")
_CELLS = re.compile(r"[^\s|│┃]+")
_RANK_CELL = re.compile(r"(?i)(?:global[_-]?|world[_-]?|mpi[_-]?)?rank(?:_?id)?|#rank")
_NODE_CELL = re.compile(r"(?i)(?:host|node|machine)(?:[_-]?(?:name|id|ip))?|hosts|nodes|ip|address")
_MOST_CELLS = 12
_MOST_RANKS, _MOST_OF_LINE = 65_536, 1_024
_MACHINE = re.compile(MACHINE)


def read(texts: Iterable[str]) -> dict[int, str]:
    """rank -> node, as lines say; a later one wins, for a job may be launched again elsewhere."""
    nodes = dict[int, str]()
    for _, placed in statements(texts):
        nodes.update(placed)
    return dict(list(nodes.items())[:_MOST_RANKS])


def statements(texts: Iterable[str]) -> Iterator[tuple[int, dict[int, str]]]:
    """(index, rank -> node) of each line that says where ranks run; a header, or a line about a node, places none."""
    table: _Table | None = None
    for index, text in enumerate(texts):
        if table and table.takes(text):
            yield index, dict(table.row(text))
            continue
        table = _header(text)
        placed = dict(_sentence(text)) if _HINT.search(text) else {}
        if placed or table:
            yield index, placed


def _is_number(cell: str) -> bool:
    """Whether a cell may be a rank."""
    return cell.isdecimal() and len(cell) <= 6


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """At first need, for ``_HINT`` stands in front of them."""
    return re.compile(pattern)


def _sentence(text: str) -> Iterator[tuple[int, str]]:
    for form in FORMS:
        match = _compiled(form.pattern).search(text)
        if match and node_lists.is_host_name(match["node"]):
            for rank in islice(ranks_of(match["ranks"]), _MOST_OF_LINE):
                yield rank, match["node"]
            return


def ranks_of(text: str) -> Iterator[int]:
    """``0..3``, ``0-3``, ``0 to 3`` and ``0, 2`` -> ranks, one at a time: a range may hold 10^6."""
    for part in text.split(","):
        bounds = [int(number) for number in re.findall(r"\d{1,6}", part)]
        if bounds:
            yield from range(bounds[0], bounds[-1] + 1)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table that has begun. rank, node: which cells they are."""

    rank: int
    node: int
    cells: int

    def takes(self, text: str) -> bool:
        """Whether the line is a part of it."""
        return _RULE.fullmatch(text) is not None or bool(list(self.row(text)))

    def row(self, text: str) -> Iterator[tuple[int, str]]:
        cells = _CELLS.findall(text)[: _MOST_CELLS + 1]
        if len(cells) < self.cells:
            return
        rank, node = cells[self.rank], cells[self.node]
        if _is_number(rank) and _MACHINE.fullmatch(node):
            yield int(rank), node


def _header(text: str) -> _Table | None:
    """A table whose header names a rank and a node: ``rank  host  pid``."""
    if "rank" not in text.lower():
        return None
    cells = _CELLS.findall(text[:400])
    if not 2 <= len(cells) <= _MOST_CELLS:
        return None
    rank, node = _first(cells, _RANK_CELL), _first(cells, _NODE_CELL)
    if min(rank, node) < 0:
        return None
    return _Table(rank, node, max(rank, node) + 1)


def _first(cells: Sequence[str], name: re.Pattern[str]) -> int:
    return next((place for place, cell in enumerate(cells) if name.fullmatch(cell)), -1)
