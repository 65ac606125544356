"""Nodes as every scheduler shows them, and what is new about them. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from diagnoser.agent.plan_spec import OURS

REASON_LENGTH = 500
NO_RETURNS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node. cordoned: no new job starts there. reason: why it is out of service.

    record: the scheduler's own line about a node that is down. address, gpus: for the node check, where it needs them.
    version: of the object, for changes that must not cross another's. places: ``switch:leaf-07``, as the cluster tells.
    """

    name: str
    up: bool = True
    cordoned: bool = False
    reason: str = ""
    record: str = ""
    address: str = ""
    gpus: int = 0
    version: str = ""
    places: tuple[str, ...] = ()

    @property
    def takes_jobs(self) -> bool:
        return self.up and not self.cordoned

    @property
    def ours(self) -> bool:
        """Whether a plan cordoned it."""
        return self.reason.startswith(OURS)


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node as it was last reported. kind: up, cordoned or down. ours: the cordon was."""

    kind: str = "up"
    ours: bool = False


def node_status(node: NodeRecord) -> NodeStatus:
    """A node that is cordoned and down is cordoned: somebody knows about it."""
    if node.cordoned:
        return NodeStatus("cordoned", node.ours)
    if node.up:
        return NodeStatus()
    return NodeStatus("down")


def is_down(name: str, nodes: Mapping[str, NodeRecord]) -> bool:
    """A node that the cluster does not know (any more) is down, too."""
    if name not in nodes:
        return True
    return not nodes[name].up


def node_events(
    before: Mapping[str, NodeStatus], nodes: Iterable[NodeRecord], returned: Mapping[str, str] = NO_RETURNS
) -> Iterator[tuple[NodeRecord, NodeStatus, dict[str, object] | None]]:
    """(node, how it is now, event) for each that changed. Our own cordon is no event: the plan reports it.

    returned: node that this agent gave back -> who asked for it.
    """
    for node in nodes:
        old, new = before.get(node.name, NodeStatus()), node_status(node)
        if old == new:
            continue
        if new.ours:
            yield node, new, None
            continue
        reason = node.reason
        if new.kind == "cordoned":
            kind, by = "cordoned", "person"
        elif old.ours and node.name in returned:
            kind, by, reason = "uncordoned", "diagnoser", f"{returned[node.name]} asked for it, and it was checked"
        elif old.kind == "cordoned":
            kind, by = "uncordoned", "person"
        elif new.kind == "down":
            kind, by = "down", "diagnoser"
        else:
            kind, by = "resumed", "diagnoser"
        yield node, new, {"kind": kind, "by": by, "reason": reason[:REASON_LENGTH]}
