"""Gives nodes back that a plan took out."""

from collections.abc import Sequence

from diagnoser.agent.slurm.commands import COMMAND_SECONDS, Slurm
from diagnoser.agent.slurm.records import NodeRecord, valid_node
from diagnoser.agent.slurm.steps import OURS
from diagnoser.model.errors import BadInput


async def resume(slurm: Slurm, names: Sequence[str]) -> list[str]:
    """One line a node. Nothing is resumed when one of them is not ours. Raises BadInput, Unavailable."""
    nodes = await slurm.nodes()
    faults = [fault for name in names if (fault := _fault(name, nodes.get(valid_node(name))))]
    if faults:
        raise BadInput("; ".join(faults))
    lines = []
    for name in names:
        done = await slurm.runner(("scontrol", "update", f"nodename={name}", "state=resume"), COMMAND_SECONDS)
        if done.code != 0:
            raise BadInput(f"{name} could not be resumed: {done.told}")
        lines.append(f"{name}: resumed, was {nodes[name].reason!r}")
    return lines


def _fault(name: str, node: NodeRecord | None) -> str:
    if node is None:
        return f"Slurm knows no node {name}"
    if not node.drained:
        return f"{name} is not drained"
    return "" if node.reason.startswith(OURS) else f"{name} was not drained by diagnoser, but for {node.reason!r}"
