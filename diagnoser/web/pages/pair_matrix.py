"""The pairs of a node check as a matrix: who was tested with whom, in which round, and how it went. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diagnoser.model import NodeCheck, PairResult

NODES_SHOWN = 16


@dataclass(frozen=True, slots=True)
class PairCell:
    """The last test of two nodes together. round: counted from 1."""

    round: int
    result: PairResult


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """nodes: rows and columns, the node that the page is of first, then those that failed or were tested with it.

    left_out: how many other nodes were tested. cells: by row and column, in both orders.
    """

    nodes: tuple[str, ...]
    left_out: int
    cells: Mapping[tuple[str, str], PairCell]

    def cell(self, row: str, column: str) -> PairCell | None:
        return self.cells.get((row, column))


def pair_matrix(check: NodeCheck, node: str) -> PairMatrix | None:
    """None for a check in which no pair was tested."""
    rounds = [*check.rounds, *((check.results,) if check.results else ())]
    cells: dict[tuple[str, str], PairCell] = {}
    failed = set[str]()
    for number, results in enumerate(rounds, 1):
        for result in results:
            cells |= dict.fromkeys(_pairs(result.nodes), PairCell(number, result))
            if not result.ok:
                failed.update(result.nodes)
    if not cells:
        return None
    tested = list(dict.fromkeys(name for pair in cells for name in pair))
    met = {column for row, column in cells if row == node}
    order = sorted(tested, key=lambda name: (name != node, name not in failed, name not in met, name))
    return PairMatrix(tuple(order[:NODES_SHOWN]), max(0, len(order) - NODES_SHOWN), cells)


def _pairs(nodes: Sequence[str]) -> list[tuple[str, str]]:
    return [(row, column) for row in nodes for column in nodes if row != column]
