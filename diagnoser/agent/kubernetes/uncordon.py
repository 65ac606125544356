"""Gives nodes back that a plan took out."""

from collections.abc import Sequence

from diagnoser.agent.kubernetes import names, records
from diagnoser.agent.kubernetes.kube import Kube
from diagnoser.agent.kubernetes.observer import unmarked
from diagnoser.agent.kubernetes.records import NodeRecord
from diagnoser.model.errors import BadInput


async def uncordon(kube: Kube, wanted: Sequence[str]) -> list[str]:
    """One line a node. None is uncordoned when one of them is not ours. Raises BadInput, OutOfScope, Unavailable."""
    nodes: dict[str, NodeRecord | None] = {}
    for name in wanted:
        found = await kube.get(f"/api/v1/nodes/{names.valid(name, 'node')}")
        nodes[name] = records.node(found) if found else None
    faults = [fault for name, node in nodes.items() if (fault := _fault(name, node))]
    if faults:
        raise BadInput("; ".join(faults))
    lines = []
    for name, node in nodes.items():
        assert node is not None, "a node that is not there is a fault"
        answer = await kube.ask("PATCH", f"/api/v1/nodes/{name}", {**unmarked(node), "spec": {"unschedulable": None}})
        if not answer.ok:
            raise BadInput(f"{name} could not be uncordoned: {answer.told}")
        lines.append(f"{name}: uncordoned, was {node.reason!r}")
    return lines


def _fault(name: str, node: NodeRecord | None) -> str:
    if node is None:
        return f"the cluster has no node {name}"
    if not node.cordoned:
        return f"{name} is not cordoned"
    return "" if node.ours else f"{name} was not cordoned by diagnoser"
