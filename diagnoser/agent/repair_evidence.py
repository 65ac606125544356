"""Gathers what a repair would destroy, before a plan takes a node out or ends a launch that hangs.

It is bounded in seconds and bytes, and holds nothing up: what could not be had is named, and the plan goes on. Of a
node the commands of the agent's own table are run (``snapshots``), by the same way as queries; of a launch that hangs
the flight recorders and stacks are collected once more.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import structlog

from diagnoser.agent import node_query
from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.cluster import Cluster, NodeQuestion, S
from diagnoser.agent.evidence import EvidenceCollector
from diagnoser.agent.plan_spec import PlanSpec
from diagnoser.model import AttemptKey, EvidenceRequest, RequestReason
from diagnoser.model.errors import DiagnoserError
from diagnoser.recovery.node_query import NO_QUERIES, NodeQueryTable

NODE_SECONDS = 75.0
"""For all nodes of a plan together: one that another job has taken meanwhile cannot be asked."""
HANG_SECONDS = 60.0
LOOKBACK_SECONDS = 3600.0
"""Dump files of a launch that hangs which are older show something else."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RepairEvidence(Generic[S]):
    """table: with the commands whose output is kept."""

    client: ApiClient
    cluster: Cluster[S]
    table: NodeQueryTable = NO_QUERIES

    async def of_nodes(self, spec: PlanSpec, nodes: Sequence[str]) -> str:
        """Keep what the nodes say of themselves. Returns what is kept and what is missing; never raises for that."""
        if not self.cluster.can_ask:
            return ""
        if not self.table.snapshots:
            return ""
        questions = [
            NodeQuestion(node, command.id, command.argv, command.timeout_seconds, command.bytes)
            for node in nodes
            for command in self.table.snapshots
        ]
        try:
            async with asyncio.timeout(NODE_SECONDS):
                answers = (await self.cluster.ask(spec, questions)).answers
                notes = [await self._keep(spec, node, answers) for node in nodes]
                return "; ".join(notes)
        except TimeoutError:
            why = f"no answer within {NODE_SECONDS:.0f} s"
        except DiagnoserError as error:
            why = str(error)
        log.warning("repair_evidence_missing", plan=spec.id, why=why)
        return f"no evidence of {', '.join(nodes)} was kept: {why[:200]}"

    async def of_hang(self, spec: PlanSpec, now: float) -> str:
        """The same of the ranks of a launch that hangs, beside the looks at it. now: seconds since the epoch."""
        if not self.cluster.can_collect:
            return ""
        attempt = AttemptKey(spec.job, spec.attempt)
        since = now - LOOKBACK_SECONDS
        asked = EvidenceRequest("", attempt, self.cluster.name, since, RequestReason.SILENCE, now)
        try:
            collection = await EvidenceCollector(self.client, self.cluster).collect(asked, HANG_SECONDS)
        except DiagnoserError as error:
            return f"no evidence of the ranks was kept: {error}"
        return f"evidence of the ranks: {collection.result}"

    async def _keep(self, spec: PlanSpec, node: str, answers: Sequence[Mapping[str, Any]]) -> str:
        """Send what one node said. Raises DiagnoserError, also for a service that is too old to take it."""
        parts = []
        for answer in node_query.answers_of(node, answers):
            parts.append({name: answer[name] for name in ("id", "exit_code", "output")})
        missing = [part["id"] for part in parts if part["exit_code"] is None]
        if len(missing) == len(parts):
            return f"no evidence of {node} was kept: {parts[0]['output'][:200]}"
        await self.client.node_snapshot(AttemptKey(spec.job, spec.attempt), node, parts)
        without = f", without {', '.join(missing)}" if missing else ""
        return f"evidence of {node} is kept{without}"
