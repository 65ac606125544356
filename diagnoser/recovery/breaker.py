"""The breaker: how many nodes may be taken out of a cluster or partition before a person is asked.

It counts nodes that plans took out or are about to take out, so that two plans decided at once are both seen. Nodes
that stand in one place count once: a switch that dies is one fault. It does not limit bringing nodes back.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from diagnoser.model import BreakerState, ClusterHistory, NodeActor, NodeEvent, NodeEventKind, Plan, PlanState
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.recovery.incidents import shared_place

HOUR, DAY = 3600.0, 86_400.0
_Share = Annotated[float, Field(gt=0, le=1)]
_OUT = frozenset({NodeEventKind.CORDONED, NodeEventKind.DOWN})


class BreakerLimits(StrictModel):
    """Rails on taking nodes out, as the policy table has them. Shares of the known nodes (0..1).

    least: nodes per window that may be taken out of even the smallest cluster.
    most: nodes per window for even the largest, whatever place they stand in.
    healthy_share: that must stay in service.
    tenant_share: of these nodes, that the jobs of one tenant may take out.
    """

    share_per_hour: _Share = 0.02
    share_per_day: _Share = 0.05
    least: Annotated[int, Field(ge=0)] = 1
    most: Annotated[int, Field(ge=0)] = 20
    healthy_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    tenant_share: _Share = 0.5


def scopes(plan: Plan) -> tuple[str, ...]:
    if not plan.partition:
        return (plan.cluster,)
    return plan.cluster, f"{plan.cluster}:{plan.partition}"


def decide_trip(
    limits: BreakerLimits, plan: Plan, nodes: Collection[str], history: ClusterHistory, now: float
) -> BreakerState | None:
    """Trip a breaker if ``plan`` takes these nodes out too; None if it may. Breakers that have tripped before are not
    looked at here: see ``guardrails.limited``."""
    for count in _counts(limits, plan, nodes, history, history.past, now):
        out = len(count.out)
        if out <= count.allowed:
            continue
        faults = {shared_place(node, count.out, history.places) or node for node in count.out}
        if len(faults) > count.allowed or out > limits.most:
            why = f"{_nodes(out)} would be taken out within one {count.window}; the limit is {count.allowed}"
            return BreakerState(count.scope, True, now, why)
    return _floor(limits, plan, nodes, history, now)


def over_tenant_share(
    limits: BreakerLimits, plan: Plan, nodes: Collection[str], history: ClusterHistory, now: float
) -> str:
    """Say why the plan's tenant may not take these nodes out too, "" if it may.

    Asked before ``decide_trip``: a tenant's share is never more than the breaker allows, so that one tenant alone
    cannot trip it for the others.
    """
    of_tenant = [past for past in history.past if past.tenant == plan.tenant]
    whose = f"tenant {plan.tenant}" if plan.tenant else "jobs of no known tenant"
    for count in _counts(limits, plan, nodes, history, of_tenant, now):
        share = min(count.allowed, max(1, int(limits.tenant_share * count.allowed)))
        out = len(count.out)
        if out > share:
            return f"{_nodes(out)} would be taken out by {whose} within one {count.window}; the limit is {share}"
    return ""


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


@dataclass(frozen=True, slots=True)
class _Count:
    """Nodes of a scope that would be out within a window of time, and how many may be."""

    scope: str
    window: str
    out: Collection[str]
    allowed: int


def _counts(
    limits: BreakerLimits,
    plan: Plan,
    nodes: Collection[str],
    history: ClusterHistory,
    past: Iterable[Plan],
    now: float,
) -> Iterator[_Count]:
    """Count for every limit that holds for the plan, if it takes these nodes out too. past: the plans that count."""
    for scope in scopes(plan):
        of_scope = [old for old in past if scope in scopes(old)]
        fleet = history.fleet.get(scope, 0)
        for window, seconds, share in (("hour", HOUR, limits.share_per_hour), ("day", DAY, limits.share_per_day)):
            out = _nodes_taken(of_scope, now - seconds) | set(nodes)
            allowed = max(limits.least, min(limits.most, int(share * fleet)))
            yield _Count(scope, window, out, allowed)


def _floor(
    limits: BreakerLimits, plan: Plan, nodes: Collection[str], history: ClusterHistory, now: float
) -> BreakerState | None:
    fleet = history.fleet.get(plan.cluster, 0)
    unavailable = {node for node, mark in history.marks.items() if mark.kind in _OUT} | set(nodes)
    if fleet <= 1:
        return None
    if fleet - len(unavailable) >= limits.healthy_share * fleet:
        return None
    why = f"{fleet - len(unavailable)} of {fleet} nodes would stay in service, {limits.healthy_share:.0%} must"
    return BreakerState(plan.cluster, True, now, why)


def _nodes_taken(past: Iterable[Plan], since: float) -> set[str]:
    """Nodes that plans have taken out since then, or may be taking out now."""
    out: set[str] = set()
    for plan in past:
        if max([plan.created, *(change.time for change in plan.history)]) > since:
            out |= set(plan.drained)
            if plan.state is PlanState.SENT:
                out |= set(plan.nodes)
    return out


def handled_by_people(nodes: Sequence[str], history: ClusterHistory, now: float, hours: float) -> dict[str, NodeEvent]:
    """Find those of the nodes that a person cordoned, or uncordoned within the last ``hours``: leave them alone."""
    theirs: dict[str, NodeEvent] = {}
    for node in nodes:
        mark = history.marks.get(node)
        if mark is None:
            continue
        if _is_left_to_person(mark, now - hours * HOUR):
            theirs[node] = mark
    return theirs


def _is_left_to_person(mark: NodeEvent, since: float) -> bool:
    if mark.by is not NodeActor.PERSON:
        return False
    if mark.kind is NodeEventKind.DOWN:
        return False
    return mark.kind is NodeEventKind.CORDONED or mark.time > since


def with_feedback(before: NodeEvent | None, mark: NodeEvent) -> NodeEvent:
    """Add to the event what it says about our own last action on the node."""
    if mark.by is not NodeActor.PERSON:
        return mark
    if mark.feedback:
        return mark
    if mark.kind is NodeEventKind.CORDONED:
        return replace(mark, feedback="node_is_bad")
    if mark.kind is not NodeEventKind.UNCORDONED:
        return mark
    if before is not None and (before.by, before.kind) == (NodeActor.DIAGNOSER, NodeEventKind.CORDONED):
        return replace(mark, feedback="eviction_undone")
    return replace(mark, feedback="node_is_good")
