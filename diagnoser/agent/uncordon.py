"""Gives nodes back that a plan took out, and no others: by a command, or as people ask for it on the service's pages.
A node is checked first, and stays out where it fails (``return_check``).

The second way runs beside observer and executor; a request is a lease, and repeating one is harmless.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.claims import CLAIM_SECONDS, claimed_requests
from diagnoser.agent.cluster import NodeControl
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.return_check import NodeFitness, ReturnCheck
from diagnoser.agent.state_file import AgentState
from diagnoser.model.errors import BadInput, Denied, DiagnoserError

RESULT_LENGTH = 1000

log = structlog.get_logger()


async def give_back(
    cluster: NodeControl, names: Sequence[str], check: ReturnCheck[Any] | None = None, since: float = 0.0
) -> list[str]:
    """One line a node. None is given back when one of them is not ours, or not fit. Raises BadInput, Denied,
    Unavailable.

    check: of each node before it is given back, None for none.
    since: when the nodes were taken out, 0.0 where nobody knows; see ``ReturnCheck.judge``.
    """
    nodes = await cluster.nodes(names)
    faults = [fault for name in names if (fault := _fault(name, nodes.get(name)))]
    if faults:
        raise BadInput("; ".join(faults))
    fit = [NodeFitness(checked="not checked")] * len(names)
    if check:
        fit = [await check.judge(nodes[name], since) for name in names]
    unfit = [fitness.fault for fitness in fit if fitness.fault]
    if unfit:
        raise BadInput(f"not given back: {'; '.join(unfit)}")
    current = await cluster.nodes(names)
    for name in names:
        await _uncordon(cluster, nodes[name], current.get(name))
    return [
        f"{name}: back in service, was {nodes[name].reason!r}; {fitness.checked}"
        for name, fitness in zip(names, fit, strict=True)
    ]


async def _uncordon(cluster: NodeControl, checked: NodeRecord, node: NodeRecord | None) -> None:
    """Raises BadInput where somebody else, or another plan, has cordoned the node since it was checked, and where the
    scheduler refuses."""
    name = checked.name
    fault = _fault(name, node)
    if node is None or fault:
        raise BadInput(fault)
    if node.reason != checked.reason:
        raise BadInput(f"{name} was taken out anew while it was checked, for {node.reason!r}")
    attempt = await cluster.run(cluster.uncordon(node))
    if attempt.code != 0:
        raise BadInput(f"{name} could not be given back: {attempt.output}")


def _fault(name: str, node: NodeRecord | None) -> str:
    """Say why the node may not be given back; "" where it may."""
    if node is None:
        return f"the cluster has no node {name}"
    if not node.cordoned:
        return f"{name} is not cordoned"
    if node.ours:
        return ""
    if not node.reason:
        return f"{name} was not cordoned by diagnoser"
    return f"{name} was not cordoned by diagnoser, but for {node.reason!r}"


@dataclass(frozen=True, slots=True)
class Uncordoner:
    """name: of the cluster. dry: change nothing. check: of a node before it is given back. state: where the observer
    finds that it was this agent who gave a node back."""

    client: ApiClient
    cluster: NodeControl
    name: str
    dry: bool
    check: ReturnCheck[Any]
    state: AgentState

    async def run(self) -> None:
        """For ever. Raises Denied."""
        claim = partial(self.client.claim_uncordons, self.name, CLAIM_SECONDS)
        async with asyncio.TaskGroup() as group:  # a check takes minutes: others do not wait for it
            async for request in claimed_requests(claim, self.client.pause, "uncordons_not_claimed"):
                group.create_task(self.answer(request))

    async def answer(self, request: Mapping[str, Any]) -> None:
        """Never raises: where cluster or service are away the lease ends, and the request is handed out anew."""
        node = str(request["node"])
        try:
            state, result = await self._give_back(node, str(request.get("by")), float(request.get("taken_out") or 0.0))
            await self.client.uncordon_result(str(request["id"]), self.name, state, result[:RESULT_LENGTH])
            log.info("uncordon", node=node, by=request.get("by"), state=state, result=result)
        except DiagnoserError as error:
            log.warning("uncordon_left", node=node, why=str(error))

    async def _give_back(self, node: str, by: str, since: float) -> tuple[str, str]:
        """(done or refused, what to tell). Raises Unavailable while the cluster is away."""
        if self.dry:
            return "refused", "this agent changes nothing (--dry-run)"
        try:
            self.state.returned[node] = by
            return "done", "; ".join(await give_back(self.cluster, [node], self.check, since))
        except (BadInput, Denied) as error:
            self.state.returned.pop(node, None)
            return "refused", str(error)
