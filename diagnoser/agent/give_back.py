"""Gives nodes back that a plan took out."""

from collections.abc import Sequence

from diagnoser.agent.cluster import NodeControl
from diagnoser.agent.nodes import NodeRecord
from diagnoser.model.errors import BadInput


async def give_back(cluster: NodeControl, names: Sequence[str]) -> list[str]:
    """One line a node. None is given back when one of them is not ours. Raises BadInput, Denied, Unavailable."""
    nodes = await cluster.nodes(names)
    faults = [fault for name in names if (fault := _fault(name, nodes.get(name)))]
    if faults:
        raise BadInput("; ".join(faults))
    lines = []
    for name in names:
        attempt = await cluster.run(cluster.uncordon(nodes[name]))
        if attempt.code != 0:
            raise BadInput(f"{name} could not be given back: {attempt.output}")
        lines.append(f"{name}: back in service, was {nodes[name].reason!r}")
    return lines


def _fault(name: str, node: NodeRecord | None) -> str:
    if node is None:
        return f"the cluster has no node {name}"
    if not node.cordoned:
        return f"{name} is not cordoned"
    if node.ours:
        return ""
    return f"{name} was not cordoned by diagnoser" + (f", but for {node.reason!r}" if node.reason else "")
