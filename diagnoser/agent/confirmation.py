"""Tells whether a node confirms what its shipped log says, before it is taken out on that alone.

A line that was shipped to the service passed through other hands than the kernel's. The agent asks the node itself, by
the read-only queries of its own table that the verdict's type asks for. Pure.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from diagnoser.agent import node_query
from diagnoser.agent.cluster import Done
from diagnoser.model import ProofKind, QueryResult, QueryState
from diagnoser.model.taxonomy import FailureType
from diagnoser.recovery.node_query import LOOKBACK_SECONDS, NodeQueryTable

_DATED = re.compile(r"^\d{4}-\d\d-\d\dT", re.MULTILINE)
"""A line of the kernel's log. One without lines could not be read: a kernel writes some while it starts."""


def unconfirmed_nodes(plan: Mapping[str, Any], nodes: Collection[str]) -> tuple[str, ...]:
    """List the nodes that nothing but their shipped log proves to be at fault."""
    kinds: dict[str, set[str]] = {}
    for proof in plan.get("proofs", ()):
        kinds.setdefault(proof["node"], set()).add(proof.get("kind"))
    return tuple(node for node in nodes if kinds.get(node) == {ProofKind.NODE_LOG})


def evidence_since(job: Mapping[str, Any] | None, attempt: int) -> float:
    """Find from when on a line of a node's own log may have to do with the failure of the attempt, in seconds since the
    epoch; 0.0 where the attempt is not known. By the service's clock: times in shipped lines may be of any zone."""
    known = job or {}
    for launch in known.get("attempts", ()):
        if launch["number"] != attempt:
            continue
        if launch["opened"]:
            return datetime.fromisoformat(launch["opened"]).timestamp() - LOOKBACK_SECONDS
    return 0.0


def judge(
    table: NodeQueryTable,
    types: Collection[FailureType],
    nodes: Sequence[str],
    answers: Sequence[Mapping[str, Any]],
    since: float,
) -> tuple[Done | None, str]:
    """(the refusal to act, what the nodes answered in words).

    A node that proves a fault confirms the plan. One whose own log can be read, and shows none, is not taken out. One
    that cannot be asked is: the proof that the service holds stands, and the plan says that it was not confirmed.

    since: what is older in a node's own log does not count, in seconds since the epoch.
    """
    notes = list[str]()
    for node in nodes:
        given = node_query.answers_of(node, answers)
        results = node_query.judge_answers(table, given, types, since)
        proving = next((result for result in results if result.state is QueryState.PROVES), None)
        if proving:
            notes.append(f"{node} confirms it: {proving.text[:200]}")
            continue
        logs, read = list[str](), {answer["id"] for answer in given if _DATED.search(answer["output"])}
        for result in results:
            if result.query in read and _denies(table, result):
                logs.append(result.query)
        if logs:
            why = f"{node} was asked ({', '.join(logs)}), and its own log does not confirm the fault"
            return Done(False, f"{why}; nothing was done", refused="not_confirmed"), ""
        notes.append(f"not confirmed by {node} itself ({_why_unanswered(results)})")
    return None, "; ".join(notes)


def _why_unanswered(results: Sequence[QueryResult]) -> str:
    """Say why a node neither confirms nor denies the fault."""
    if not results:
        return "no query was run"
    for result in results:
        if result.state is QueryState.NOT_AVAILABLE:
            return f"{result.query}: {result.text[:200]}"
    return "its own log could not be read"


def _denies(table: NodeQueryTable, result: QueryResult) -> bool:
    """Tell whether it is of the kernel's own log, and shows no fault. That a program finds a GPU well now does not
    take back what the kernel has seen."""
    query = table.query(result.query)
    if query is None:
        return False
    if not query.dated:
        return False
    return result.state is QueryState.PROVES_NOTHING
