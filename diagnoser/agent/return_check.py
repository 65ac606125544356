"""Checks a node that a plan took out, alone, before it is given back.

The queries of the failure that it was taken out for come first, then the node check on this node alone. What the node
answers is judged by the agent's own table. Nothing here changes a node but the loan, which ends as it began: cordoned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from diagnoser.agent import node_query
from diagnoser.agent.cluster import Cluster, NodeQuestion, S
from diagnoser.agent.node_query import Commands
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.plan_spec import failure_type_of, known_types, return_spec
from diagnoser.model import QueryState
from diagnoser.model.errors import BadInput, Denied, Unavailable
from diagnoser.model.taxonomy import FailureType
from diagnoser.recovery.node_query import SITE_CHECK, SITE_CHECK_SECONDS, NodeQueryTable

LOOP_SECONDS = 180.0
"""For the node check on one node."""


@dataclass(frozen=True, slots=True)
class NodeFitness:
    """fault: why the node may not come back, "" where nothing speaks against it. checked: what was looked at."""

    fault: str = ""
    checked: str = ""


@dataclass(frozen=True, slots=True)
class ReturnCheck(Generic[S]):
    """queries: what answers prove. commands: that may be run on a node, by the id of their query."""

    cluster: Cluster[S]
    queries: NodeQueryTable
    commands: Commands

    async def judge(self, node: NodeRecord, since: float) -> NodeFitness:
        """Whatever keeps the node from being checked speaks against it.

        since: what is older in the node's own log does not count, in seconds since the epoch.
        """
        if not node.up:
            return NodeFitness(f"{node.name} is down")
        checks_pairs = self.cluster.can_check and self.cluster.check_is_vouched
        if not (self.cluster.can_ask or checks_pairs):
            return NodeFitness(checked="not checked: this agent can run nothing on nodes")
        try:
            await self.cluster.lend(node)
            try:
                asked = NodeFitness()
                if self.cluster.can_ask:
                    asked = await self._ask(node, since)
                if asked.fault:
                    return asked
                if not checks_pairs:
                    return asked
                looped = await self._loop(node)
                return NodeFitness(looped.fault, "; ".join(filter(None, (asked.checked, looped.checked))))
            finally:
                await self.cluster.end_loan(node)
        except (BadInput, Denied, Unavailable) as error:
            return NodeFitness(f"{node.name} could not be checked: {error}")

    async def _ask(self, node: NodeRecord, since: float) -> NodeFitness:
        types = query_types(self.queries, node.reason)
        questions = node_query.questions_from_table(self.queries, types, [node.name])
        if SITE_CHECK in self.commands:
            script = self.commands[SITE_CHECK]
            questions.append(NodeQuestion(node.name, SITE_CHECK, script, SITE_CHECK_SECONDS))
        answers = (await self.cluster.ask(return_spec(node.name), questions)).answers
        return _fitness(self.queries, node.name, answers, types, since)

    async def _loop(self, node: NodeRecord) -> NodeFitness:
        alone = {"round": 1, "pairs": [[node.name]], "timeout_seconds": LOOP_SECONDS}
        results = await self.cluster.check(return_spec(node.name), alone)
        for result in results.results:
            if not result["ok"]:
                return NodeFitness(f"the node check failed on {node.name} alone: {result['detail']}")
        return NodeFitness(checked="the node check passed on it alone")


def query_types(table: NodeQueryTable, reason: str) -> tuple[FailureType, ...]:
    """List the failures whose queries a node is asked: the one that it was taken out for, else all."""
    named = known_types(failure_type_of(reason))
    return named if table.queries_for(named) else tuple(FailureType)


def _fitness(
    table: NodeQueryTable,
    node: str,
    answers: Sequence[Mapping[str, Any]],
    types: Sequence[FailureType],
    since: float,
) -> NodeFitness:
    """Read what a node said of itself. One that nothing could be asked of is not fit."""
    answered = list[str]()
    for result in node_query.judge_answers(table, answers, types, since):
        if result.state is QueryState.PROVES:
            return NodeFitness(f"{node} shows the fault still ({result.query}): {result.text[:300]}")
        if result.state is QueryState.PROVES_NOTHING:
            answered.append(result.query)
    if answered:
        return NodeFitness(checked=f"asked without a fault: {', '.join(answered)}")
    why = answers[0]["output"][:200] if answers else "no query is known"
    return NodeFitness(f"nothing could be asked of {node}: {why}")
