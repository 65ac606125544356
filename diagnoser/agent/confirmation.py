"""Whether a node confirms what its shipped log says, before it is taken out on that alone.

A line that was shipped to the service passed through other hands than the kernel's. The agent asks the node itself, by
the read-only queries of its own table that the verdict's type asks for. Pure.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from diagnoser.agent.cluster import Done
from diagnoser.model import ProofKind, QueryResult, QueryState
from diagnoser.model.taxonomy import FailureType
from diagnoser.recovery.node_query import LOOKBACK_SECONDS, Answer, NodeQueryTable


@dataclass(frozen=True, slots=True)
class ShippedProof:
    """What only a node's shipped log says about it. since: what is older in the node's own log does not count, in
    seconds since the epoch."""

    node: str
    since: float


def shipped_proofs(plan: Mapping[str, Any], nodes: Collection[str]) -> tuple[ShippedProof, ...]:
    """A proof for each of these nodes that nothing but its shipped log proves to be at fault."""
    by_node: dict[str, list[Mapping[str, Any]]] = {}
    for proof in plan.get("proofs", ()):
        if proof["node"] in nodes:
            by_node.setdefault(proof["node"], []).append(proof)
    return tuple(
        ShippedProof(node, min(map(_time, proofs)) - LOOKBACK_SECONDS)
        for node, proofs in by_node.items()
        if all(proof.get("kind") == ProofKind.NODE_LOG for proof in proofs)
    )


def query_requests(table: NodeQueryTable, failure_type: str, proofs: Iterable[ShippedProof]) -> list[dict[str, Any]]:
    """The queries to run, in the form in which the service asks for them too."""
    queries = table.queries_for(_types(failure_type))
    return [
        {"node": proof.node, "id": query.id, "argv": query.argv, "timeout_seconds": query.timeout_seconds}
        for proof in proofs
        for query in queries
    ]


def judge(
    table: NodeQueryTable, failure_type: str, proofs: Sequence[ShippedProof], answers: Sequence[Mapping[str, Any]]
) -> tuple[Done | None, str]:
    """(the refusal to act, what the nodes answered in words).

    A node that proves a fault confirms the plan. One whose own log can be read, and shows none, is not taken out. One
    that cannot be asked is: the proof that the service holds stands, and the plan says that it was not confirmed.
    """
    notes = list[str]()
    for proof in proofs:
        results = _results(table, failure_type, proof, answers)
        proving = next((result for result in results if result.state is QueryState.PROVES), None)
        if proving:
            notes.append(f"{proof.node} confirms it: {proving.text[:200]}")
        elif logs := [result.query for result in results if _denies(table, result)]:
            why = f"{proof.node} was asked ({', '.join(logs)}), and its own log does not confirm the fault"
            return Done(False, f"{why}; nothing was done", refused="not_confirmed"), ""
        else:
            unanswered = (result for result in results if result.state is QueryState.NOT_AVAILABLE)
            why = next((f"{result.query}: {result.text[:200]}" for result in unanswered), "no query was run")
            notes.append(f"not confirmed by {proof.node} itself ({why})")
    return None, "; ".join(notes)


def _results(
    table: NodeQueryTable, failure_type: str, proof: ShippedProof, answers: Iterable[Mapping[str, Any]]
) -> list[QueryResult]:
    types = _types(failure_type)
    return [
        table.judge(
            QueryResult(proof.node, answer["id"]),
            Answer(text=answer["output"], exit_code=answer["exit_code"]),
            types,
            proof.since,
        )
        for answer in answers
        if answer["node"] == proof.node
    ]


def _denies(table: NodeQueryTable, result: QueryResult) -> bool:
    """Whether it is the kernel's own log, was read, and shows no fault. That a program finds a GPU well now does not
    take back what the kernel has seen."""
    query = table.query(result.query)
    return query is not None and query.dated and result.state is QueryState.PROVES_NOTHING


def _types(failure_type: str) -> tuple[FailureType, ...]:
    return tuple(known for known in FailureType if known == failure_type)


def _time(proof: Mapping[str, Any]) -> float:
    """0.0 where it is not known: then every line of the node's log counts."""
    return datetime.fromisoformat(proof["time"]).timestamp() if proof.get("time") else 0.0
