"""What the page of a hang draws: strips of ranks, who waits for whom, and which dumps there are. Values only.

A strip shows one state for each rank. Of many ranks, neighbours share a cell: those of one node where the nodes are
known, else equal numbers of them, and the worst state of a cell is shown.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from operator import itemgetter

from diagnoser.hang.flight_recorder import DEFAULT
from diagnoser.hang.report import HangReport
from diagnoser.hang.wait_graph import GroupState, WaitGraph
from diagnoser.model import EvidenceKind, Provenance
from diagnoser.model.hangs import StoredFile
from diagnoser.wording.collapse_ranks import ranges
from diagnoser.wording.phrases import after, joined, ranks_name

CELLS_MAX = 512
"""Most cells of a strip; from more ranks on, several share one."""
BAND = 64
"""Cells beside each other, before the strips go on below."""
_LEAST = 16
"""Cells that a band is wide at least: four ranks do not fill the page."""
FAMILIES_MAX = 8
"""Most strips of groups."""


class RankState(StrEnum):
    """Of a rank, or of its place in a group; the worst first."""

    SUSPECTED = "suspected"
    BEHIND = "behind"
    NO_DUMP = "no dump"
    WAITING = "waiting"
    GOING_ON = "going on"

    @property
    def height(self) -> int:
        """Of its bar, of 20: the state can be told without its colour."""
        return _HEIGHTS[self]


_HEIGHTS = {
    RankState.SUSPECTED: 20,
    RankState.BEHIND: 15,
    RankState.NO_DUMP: 20,
    RankState.WAITING: 9,
    RankState.GOING_ON: 4,
}
_SEVERITY = {state: place for place, state in enumerate(RankState)}


@dataclass(frozen=True, slots=True)
class Cell:
    """Ranks that are drawn as one. x, width: in cells of the band."""

    x: int
    width: int
    state: RankState
    title: str


@dataclass(frozen=True, slots=True)
class Strip:
    """summary: the same in words."""

    name: str
    cells: tuple[Cell, ...]
    summary: str


@dataclass(frozen=True, slots=True)
class Band:
    """Strips of the same ranks, below each other. width: in cells."""

    ranks: str
    width: int
    strips: tuple[Strip, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Ranks that wait for the same others. operation: that of the first of them."""

    waiters: tuple[int, ...]
    awaited: tuple[int, ...]
    operation: str


_States = Mapping[int, tuple[RankState, str]]
"""rank -> its state, and what is known beside it."""


def waiting(graph: WaitGraph) -> list[Wait]:
    """By those who are waited for; the most waiters first."""
    by_awaited: dict[frozenset[int], list[int]] = defaultdict(list)
    for rank, awaited in sorted(graph.waits.items()):
        by_awaited[awaited].append(rank)
    waits = []
    for awaited, ranks in by_awaited.items():
        waits.append(Wait(tuple(ranks), tuple(sorted(awaited)), _operation(graph, ranks[0])))
    return sorted(waits, key=lambda wait: (-len(wait.waiters), wait.waiters))


def _operation(graph: WaitGraph, rank: int) -> str:
    head = graph.heads.get(rank)
    if head is None:
        return ""
    return f"{head.name} number {head.sequence} of {group_name(head.group.description)}"


def group_name(description: str) -> str:
    return "the default group" if description in ("", DEFAULT) else description


def bands(hang: HangReport, nodes: Mapping[int, str]) -> list[Band]:
    """The ranks, and their place in each family of groups; nothing where no dump tells of operations."""
    graph = hang.graph
    if not any((graph.heads, graph.groups)):
        return []
    rows: list[tuple[str, _States]] = [("rank", _of_ranks(hang))]
    for name, groups in _families(graph.groups)[:FAMILIES_MAX]:
        rows.append((name, _of_family(groups, graph)))
    ranks = set[int]()
    for _, states in rows:
        ranks.update(states)
    units = _units(sorted(ranks), nodes)
    is_wide = len(units) > BAND
    width = BAND if is_wide else max(_LEAST, len(units))
    made = []
    for first in range(0, len(units), BAND):
        shown = units[first : first + BAND]
        strips = []
        for name, states in rows:
            strip = _strip(name, states, shown, nodes, merged=is_wide)
            if strip.cells:  # any rank of the band has a place in the strip's groups
                strips.append(strip)
        made.append(Band(ranges(chain.from_iterable(shown)), width, tuple(strips)))
    return made


def families_left_out(hang: HangReport) -> int:
    return max(0, len(_families(hang.graph.groups)) - FAMILIES_MAX)


def _of_ranks(hang: HangReport) -> _States:
    """Each rank as a whole; of those that merely wait, in what."""
    graph, going_on = hang.graph, (RankState.GOING_ON, "waits for nobody")
    states = dict.fromkeys(graph.heads, going_on)
    for state in graph.groups:
        states |= dict.fromkeys(state.group.ranks, going_on)
    for rank in graph.waits:
        states[rank] = RankState.WAITING, _operation(graph, rank)
    states |= dict.fromkeys(graph.not_seen, (RankState.NO_DUMP, ""))
    for suspect in hang.suspects:
        states[suspect.rank] = RankState.SUSPECTED, suspect.kind.value
    return states


def _families(groups: Iterable[GroupState]) -> list[tuple[str, list[GroupState]]]:
    """Groups of one description that share no rank: those of tensor parallelism, say, make one strip."""
    families: list[tuple[str, list[GroupState]]] = []
    for state in groups:
        name = group_name(state.group.description)
        for family, states in families:
            if family == name and _share_no_rank(state, states):
                states.append(state)
                break
        else:
            families.append((name, [state]))
    return families


def _share_no_rank(state: GroupState, others: Iterable[GroupState]) -> bool:
    ranks = set(state.group.ranks)
    return all(ranks.isdisjoint(other.group.ranks) for other in others)


def _of_family(groups: Iterable[GroupState], graph: WaitGraph) -> _States:
    states: dict[int, tuple[RankState, str]] = {}
    for state in groups:
        not_seen = set(state.not_seen) - state.behind.keys()
        for rank in state.group.ranks:
            if rank in not_seen:
                states[rank] = RankState.NO_DUMP, ""
            else:
                states[rank] = _in_group(rank, state, graph)
    return states


def _in_group(rank: int, state: GroupState, graph: WaitGraph) -> tuple[RankState, str]:
    """Where a rank that left a dump is in its group."""
    if rank in state.behind:
        return RankState.BEHIND, f"at {state.behind[rank]}, others at {state.highest}"
    head = graph.heads.get(rank)
    if head is not None and head.group == state.group:
        return RankState.WAITING, f"in {head.name} number {head.sequence}"
    if state.highest < 0:
        return RankState.GOING_ON, ""
    return RankState.GOING_ON, f"at {state.highest}"


def _units(ranks: Sequence[int], nodes: Mapping[int, str]) -> list[tuple[int, ...]]:
    units: list[tuple[int, ...]] = [(rank,) for rank in ranks]
    if len(units) <= CELLS_MAX:
        return units
    if set(ranks) <= nodes.keys():
        by_node: dict[str, list[int]] = defaultdict(list)
        for rank in ranks:
            by_node[nodes[rank]].append(rank)
        units = list(map(tuple, by_node.values()))
    share = -(-len(units) // CELLS_MAX)  # rounded up
    return [tuple(chain.from_iterable(units[first : first + share])) for first in range(0, len(units), share)]


@dataclass(slots=True)
class _Run:
    """Neighbouring cells that are drawn as one."""

    x: int
    width: int
    ranks: list[int]
    state: RankState
    detail: str

    def goes_on(self, x: int, state: RankState, detail: str) -> bool:
        """Tell whether a rank is shown right behind, and looks the same."""
        if x != self.x + self.width:
            return False
        return (state, detail) == (self.state, self.detail)


def _strip(
    name: str, states: _States, units: Sequence[tuple[int, ...]], nodes: Mapping[int, str], *, merged: bool
) -> Strip:
    """merged: neighbours of one state are drawn as one."""
    runs: list[_Run] = []
    counts: Counter[RankState] = Counter()
    for x, unit in enumerate(units):
        ranks = [rank for rank in unit if rank in states]
        if not ranks:
            continue
        counts.update(states[rank][0] for rank in ranks)
        state, detail = _worst(ranks, states)
        if merged and runs and runs[-1].goes_on(x, state, detail):
            runs[-1].width += 1
            runs[-1].ranks += ranks
        else:
            runs.append(_Run(x, 1, ranks, state, detail))
    cells = [Cell(run.x, run.width, run.state, _title(run, nodes)) for run in runs]
    counted = ", ".join(f"{counts[state]} {state}" for state in RankState if counts[state])
    return Strip(name, tuple(cells), f"{name}: {counted}")


def _worst(unit: Sequence[int], states: _States) -> tuple[RankState, str]:
    """The worst state of some ranks, in how many of them, and what all of these have in common."""
    worst = min((states[rank][0] for rank in unit), key=_SEVERITY.__getitem__)
    details = [states[rank][1] for rank in unit if states[rank][0] is worst]
    parts = []
    if len(details) < len(unit):
        parts.append(f"{len(details)} of {len(unit)}")
    if len(set(details)) == 1:
        parts.append(details[0])
    return worst, joined(parts)


def _title(run: _Run, nodes: Mapping[int, str]) -> str:
    title = ranks_name(run.ranks)
    hosts = {nodes.get(rank, "") for rank in run.ranks}
    if len(hosts) == 1:
        title += after(" on ", hosts.pop())
    if run.detail:
        return f"{title}: {run.state} ({run.detail})"
    return f"{title}: {run.state}"


def dumps_by_origin(files: Iterable[StoredFile]) -> list[tuple[tuple[EvidenceKind, Provenance], list[StoredFile]]]:
    by_origin: dict[tuple[EvidenceKind, Provenance], list[StoredFile]] = defaultdict(list)
    for file in files:
        by_origin[file.kind, file.provenance].append(file)
    return sorted(by_origin.items(), key=itemgetter(0))
