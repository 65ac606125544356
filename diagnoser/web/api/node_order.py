"""The order of the list of nodes, and which of them are out of service."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from diagnoser.model import NodeEvent, NodeEventKind
from diagnoser.model.sorting import Sort

OUT = frozenset({NodeEventKind.CORDONED, NodeEventKind.DOWN})
_KEYS: Mapping[str, Callable[[NodeEvent], tuple[Any, ...]]] = {
    "cluster": lambda mark: (),
    "node": lambda mark: (mark.node,),
    "state": lambda mark: (mark.kind not in OUT, -mark.time),
    "time": lambda mark: (mark.time,),
}


def sorted_marks(marks: Iterable[NodeEvent], sort: Sort) -> list[NodeEvent]:
    """By state those that are out of service come first, the newest change first."""

    def key(mark: NodeEvent) -> tuple[Any, ...]:
        return (*_KEYS[sort.by](mark), mark.cluster, mark.node)

    return sorted(marks, key=key, reverse=sort.is_descending)
