"""The order of the list of nodes, and a place in it."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from diagnoser.model import NodeActor, NodeEvent, NodeEventKind
from diagnoser.model.errors import BadInput
from diagnoser.model.sorting import Sort

OUT = frozenset({NodeEventKind.CORDONED, NodeEventKind.DOWN})
_KEYS: Mapping[str, Callable[[NodeEvent], tuple[Any, ...]]] = {
    "cluster": lambda mark: (),
    "node": lambda mark: (mark.node,),
    "state": lambda mark: (mark.kind not in OUT, -mark.time),
    "time": lambda mark: (mark.time,),
}


def sorted_marks(marks: Iterable[NodeEvent], sort: Sort, after: str = "") -> list[NodeEvent]:
    """after: ``place_of`` the last one already seen. By state those that are out of service come first, the newest
    change first. Raises BadInput."""

    def key(mark: NodeEvent) -> tuple[Any, ...]:
        return (*_KEYS[sort.by](mark), mark.cluster, mark.node)

    ordered = sorted(marks, key=key, reverse=sort.is_descending)
    if not after:
        return ordered
    seen = key(_at(after))
    return [mark for mark in ordered if (key(mark) < seen if sort.is_descending else key(mark) > seen)]


def place_of(mark: NodeEvent) -> str:
    """A cursor. It holds what orders the node, which may change between two pages."""
    return json.dumps([mark.kind, mark.time, mark.cluster, mark.node], separators=(",", ":"))


def _at(place: str) -> NodeEvent:
    try:
        kind, time, cluster, node = json.loads(place)
        return NodeEvent(str(cluster), str(node), NodeEventKind(kind), NodeActor.PERSON, float(time))
    except (ValueError, TypeError, RecursionError):
        raise BadInput("cursor: it is not that of a page of nodes") from None
