"""The page of all nodes that an agent, a scheduler or a check knows: who is out, what failed and runs there, the last
check. A name that only the text of a job gives is no node."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fastapi import Depends, Request
from fastapi.responses import Response
from pydantic import Field

from diagnoser.model import Incident, NodeEvent, Plan
from diagnoser.model.sorting import FLEET_SORTS, WORST_FIRST, Sort
from diagnoser.web.api.nodes import HEARD_SECONDS, OUT
from diagnoser.web.api.params import Name, Search, sort_field
from diagnoser.web.http.authentication import may_read
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.routing import Router, StrictSchema
from diagnoser.web.pages.column_order import ColumnOrder, filled
from diagnoser.web.pages.rendering import Drawn, page_query

SHOWN = 100
"""Nodes of one page."""
MOST = 2_000
"""Incidents of nodes that are looked at, those with most failures."""
CHECKS = 200
"""Checks of plans that are looked at, the newest."""
FAILED_DAYS = 7
DAY = 86_400.0

router = Router(include_in_schema=False)

NodeKey = tuple[str, str]
"""Cluster and node."""


class FleetQuery(StrictSchema):
    """Filters, where in the list, and in which order. out: only nodes that are out of service."""

    q: Search = ""
    cluster: Name = ""
    out: bool = False
    sort: str = sort_field(FLEET_SORTS, WORST_FIRST)
    cursor: str = Field("", pattern=r"^[0-9]{0,6}$")


@dataclass(frozen=True, slots=True)
class NodeChecked:
    """When a check of a plan ended, and whether it found the node at fault."""

    time: float
    is_faulty: bool


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node and all that is known of it. mark: what an agent reported last, None where none did. incident: of its own
    faults in the last days. jobs: that run there now."""

    cluster: str
    node: str
    mark: NodeEvent | None = None
    incident: Incident | None = None
    jobs: int = 0
    check: NodeChecked | None = None

    @property
    def is_out(self) -> bool:
        if self.mark is None:
            return False
        return self.mark.kind in OUT

    @property
    def failures(self) -> int:
        return self.incident.failures if self.incident else 0


@router.get("/nodes", dependencies=[Depends(may_read)])
async def fleet_page(request: Request, core: Core, pages: Drawn) -> Response:
    """Those that are out of service first, then those that failed most, unless sorted otherwise."""
    query = page_query(FleetQuery, request)
    nodes = await _fleet(core)
    listed = sorted_fleet((node for node in nodes if _fits(node, query)), Sort.parse(query.sort))
    chosen = {"q": query.q, "cluster": query.cluster, "out": "true" if query.out else ""}
    filters = filled(chosen)
    order = ColumnOrder("/nodes", filters, Sort.parse(query.sort), WORST_FIRST)
    begin = int(query.cursor or 0)
    end = begin + SHOWN
    return pages.draw(
        "nodes.html",
        nodes=listed[begin:end],
        known=len(nodes),
        found=len(listed),
        out=sum(node.is_out for node in nodes),
        failed=sum(node.failures > 0 for node in nodes),
        in_use=sum(node.jobs > 0 for node in nodes),
        days=FAILED_DAYS,
        clusters=sorted({node.cluster for node in nodes}),
        query=query,
        filters=filters,
        order=order,
        is_first=not begin,
        next_url=order.page(str(end) if end < len(listed) else None),
    )


async def _fleet(core: Core) -> list[FleetNode]:
    store, now = core.store, core.clock()
    marks, incidents, allocated, plans = await asyncio.gather(
        store.nodes.marks(""),
        store.incidents.worst_nodes(now - FAILED_DAYS * DAY, MOST, least=1),
        store.node_facts.allocated(now - HEARD_SECONDS),
        store.plans.checked(CHECKS),
    )
    return fleet(marks, incidents, allocated, plans)


def fleet(
    marks: Iterable[NodeEvent],
    incidents: Iterable[Incident],
    allocated: Mapping[NodeKey, int],
    plans: Sequence[Plan],
) -> list[FleetNode]:
    """Each node once, whoever knows of it. An incident alone makes none: its node may be what a job printed.

    allocated: how many jobs run on each node that a scheduler gave a job. plans: with checks, the newest first.
    """
    of_marks = {(mark.cluster, mark.node): mark for mark in marks}
    of_incidents = {(incident.cluster, incident.node): incident for incident in incidents}
    checks = _checks(plans)
    nodes = []
    for key in sorted({*of_marks, *allocated, *checks}):
        mark, incident = of_marks.get(key), of_incidents.get(key)
        nodes.append(FleetNode(*key, mark, incident, allocated.get(key, 0), checks.get(key)))
    return nodes


def _checks(plans: Iterable[Plan]) -> dict[NodeKey, NodeChecked]:
    """The last one of each node."""
    checks: dict[NodeKey, NodeChecked] = {}
    for plan in plans:
        if plan.check is None:
            continue
        if plan.check.verdict is None:
            continue
        for node in plan.check.nodes:
            checked = NodeChecked(plan.history[-1].time, node in plan.check.faulty)
            checks.setdefault((plan.cluster, node), checked)
    return checks


def sorted_fleet(nodes: Iterable[FleetNode], sort: Sort) -> list[FleetNode]:
    """By state those that are out of service come first, then those that failed most."""
    return sorted(nodes, key=_KEYS[sort.by], reverse=sort.is_descending)


_KEYS = {
    "state": lambda node: (not node.is_out, -node.failures, node.cluster, node.node),
    "node": lambda node: (node.node, node.cluster),
    "cluster": lambda node: (node.cluster, node.node),
    "failures": lambda node: (node.failures, node.cluster, node.node),
    "time": lambda node: (node.mark.time if node.mark else 0.0, node.cluster, node.node),
    "jobs": lambda node: (node.jobs, node.cluster, node.node),
    "checked": lambda node: (node.check.time if node.check else 0.0, node.cluster, node.node),
}


def _fits(node: FleetNode, query: FleetQuery) -> bool:
    if query.out and not node.is_out:
        return False
    if query.cluster not in ("", node.cluster):
        return False
    return query.q.lower() in node.node.lower()
