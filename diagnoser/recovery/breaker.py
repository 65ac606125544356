"""The breaker: how many nodes may be taken out of a cluster or partition before a person is asked.

It counts nodes that plans took out or are about to take out, so that two plans decided at once are both seen. It does
not limit bringing nodes back.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from diagnoser.model import BreakerState, ClusterHistory, Job, NodeActor, NodeEvent, NodeEventKind, Plan, PlanState

HOUR, DAY = 3600.0, 86_400.0
DEFAULT_CLUSTER = "default"
"""Name of the cluster of jobs that do not name theirs."""


def cluster_of(job: Job | None) -> str:
    """The cluster of a job that may not be known, or may not name one."""
    if job is None:
        return DEFAULT_CLUSTER
    return job.cluster or DEFAULT_CLUSTER


_OUT = frozenset({NodeEventKind.CORDONED, NodeEventKind.DOWN})


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """Shares of the known nodes (0..1). least: nodes per window that may be taken out of even the smallest cluster.

    most: nodes per window for even the largest. healthy: share that must stay in service. tenant: share of these nodes
    that the jobs of one tenant may take out.
    """

    hour: float = 0.02
    day: float = 0.05
    least: int = 1
    most: int = 20
    healthy: float = 0.5
    tenant: float = 0.5


def scopes(plan: Plan) -> tuple[str, ...]:
    return (plan.cluster, f"{plan.cluster}:{plan.partition}") if plan.partition else (plan.cluster,)


def decide_trip(
    limits: BreakerLimits, plan: Plan, nodes: Collection[str], history: ClusterHistory, now: float
) -> BreakerState | None:
    """The breaker that trips if ``plan`` takes these nodes out too; None if it may. Breakers that have tripped before
    are not looked at here: see ``ClusterHistory.open``."""
    for scope, share, window, name in _windows(limits, plan):
        out = _nodes_taken([past for past in history.past if scope in scopes(past)], now - window) | set(nodes)
        allowed = _allowed(limits, share, history.fleet.get(scope, 0))
        if len(out) > allowed:
            why = f"{_nodes(len(out))} would be taken out within one {name}; the limit is {allowed}"
            return BreakerState(scope, True, now, why)
    return _floor(limits, plan, nodes, history, now)


def over_tenant_share(
    limits: BreakerLimits, plan: Plan, nodes: Collection[str], history: ClusterHistory, now: float
) -> str:
    """Why the plan's tenant may not take these nodes out too, "" if it may.

    Asked before ``decide_trip``: a tenant's share is never more than the breaker allows, so that one tenant alone
    cannot trip it for the others.
    """
    own = [past for past in history.past if past.tenant == plan.tenant]
    for scope, share, window, name in _windows(limits, plan):
        out = _nodes_taken([past for past in own if scope in scopes(past)], now - window) | set(nodes)
        allowed = _allowed(limits, share, history.fleet.get(scope, 0))
        own_share = min(allowed, max(1, int(limits.tenant * allowed)))
        if len(out) > own_share:
            whose = f"tenant {plan.tenant}" if plan.tenant else "jobs of no known tenant"
            return f"{_nodes(len(out))} would be taken out by {whose} within one {name}; the limit is {own_share}"
    return ""


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _windows(limits: BreakerLimits, plan: Plan) -> Iterator[tuple[str, float, float, str]]:
    """(scope, share of its nodes, seconds, their name) of every limit that holds for the plan."""
    for scope in scopes(plan):
        yield scope, limits.hour, HOUR, "hour"
        yield scope, limits.day, DAY, "day"


def _floor(
    limits: BreakerLimits, plan: Plan, nodes: Collection[str], history: ClusterHistory, now: float
) -> BreakerState | None:
    fleet = history.fleet.get(plan.cluster, 0)
    unavailable = {node for node, mark in history.marks.items() if mark.kind in _OUT} | set(nodes)
    if fleet <= 1 or fleet - len(unavailable) >= limits.healthy * fleet:
        return None
    why = f"{fleet - len(unavailable)} of {fleet} nodes would stay in service, {limits.healthy:.0%} must"
    return BreakerState(plan.cluster, True, now, why)


def _allowed(limits: BreakerLimits, share: float, fleet: int) -> int:
    return max(limits.least, min(limits.most, int(share * fleet)))


def _nodes_taken(past: Iterable[Plan], since: float) -> set[str]:
    """Nodes that plans have taken out since then, or may be taking out now."""
    out: set[str] = set()
    for plan in past:
        if _last_change(plan) > since:
            out |= set(plan.drained)
            if plan.state is PlanState.SENT:
                out |= set(plan.nodes)
    return out


def _last_change(plan: Plan) -> float:
    return max([plan.created, *(change.time for change in plan.history)])


def handled(nodes: Sequence[str], history: ClusterHistory, now: float, hours: float) -> dict[str, NodeEvent]:
    """Those of the nodes that a person cordoned, or uncordoned within the last ``hours``: leave them alone."""
    marks = {node: history.marks[node] for node in nodes if node in history.marks}
    return {
        node: mark
        for node, mark in marks.items()
        if mark.by is NodeActor.PERSON
        and (mark.kind is NodeEventKind.CORDONED or mark.time > now - hours * HOUR)
        and mark.kind is not NodeEventKind.DOWN
    }


def with_feedback(before: NodeEvent | None, mark: NodeEvent) -> NodeEvent:
    """The event with what it says about our own last action on the node."""
    if mark.by is not NodeActor.PERSON or mark.feedback:
        return mark
    ours = before is not None and before.by is NodeActor.DIAGNOSER and before.kind is NodeEventKind.CORDONED
    if mark.kind is NodeEventKind.UNCORDONED:
        return replace(mark, feedback="eviction_undone" if ours else "node_is_good")
    return replace(mark, feedback="node_is_bad") if mark.kind is NodeEventKind.CORDONED else mark
