"""Plans whose nodes may be taken out."""

import itertools
from dataclasses import replace

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import NodeProof, Plan, ProofKind, TransitionResult
from diagnoser.recovery.plan_states import claim

_NUMBERS = itertools.count()
XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, GPU has fallen off the bus."


def node_log(*nodes: str) -> tuple[NodeProof, ...]:
    """A line in each node's own log."""
    return tuple(NodeProof(node, ProofKind.NODE_LOG, XID, source="kernel", line=7) for node in nodes)


def proven(plan: Plan, *others: str) -> Plan:
    """The plan with a proof for each of its nodes. others: further nodes that the scheduler gave the attempt."""
    return replace(plan, allocation=(*plan.nodes, *others), proofs=node_log(*plan.nodes))


async def take(store: SqlStore, executor: str, cluster: str, now: float, lease: float = 60.0) -> Plan | None:
    """The plan that this executor gets from the store, whatever speaks for it."""
    token = f"{executor}-{now}-{next(_NUMBERS)}"
    result = await store.plans.claim(
        cluster,
        now,
        lambda plan, _: TransitionResult(claim(plan, executor=executor, token=token, until=now + lease, now=now)),
    )
    return result.plan if result else None
