"""The pages of nodes: which are out of service and why, and what is known of one of them."""

from dataclasses import dataclass

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from diagnoser.model import Incident, NodeEvent, NodeEventKind, QueryResult
from diagnoser.model.errors import NotFound
from diagnoser.ports import DiagnosisFilter, DiagnosisRecord, IncidentFilter, Store
from diagnoser.web.api.nodes import HISTORY, NodePath
from diagnoser.web.api.params import Name
from diagnoser.web.authentication import Provided, may_read
from diagnoser.web.ui import Drawn

SHOWN = 500
"""Nodes of one list: those that are out of service come first."""
FAILURES = 20
"""Failures on one node that its page shows; the list of diagnoses has the others."""
OUT = frozenset({NodeEventKind.CORDONED, NodeEventKind.DOWN})

router = APIRouter(include_in_schema=False, dependencies=[Depends(may_read)])


@dataclass(frozen=True, slots=True)
class NodeView:
    """What is known of one node of a cluster. checks: what it answered when plans had it checked, the newest first."""

    cluster: str
    node: str
    events: list[NodeEvent]
    incidents: list[Incident]
    failures: list[DiagnosisRecord]
    checks: list[tuple[DiagnosisRecord, list[QueryResult]]]


@router.get("/nodes")
async def nodes_page(services: Provided, pages: Drawn) -> Response:
    marks = await services.store.node_marks("")
    marks.sort(key=lambda mark: (mark.kind not in OUT, -mark.time))
    out = sum(mark.kind in OUT for mark in marks)
    return pages.draw("nodes.html", marks=marks[:SHOWN], out=out, left_out=max(0, len(marks) - SHOWN), kinds_out=OUT)


@router.get("/nodes/{node}")
async def node_page(node: NodePath, services: Provided, pages: Drawn, cluster: Name = "") -> Response:
    """Without a cluster the node of that name in each, where events or incidents tell of it."""
    clusters = [cluster] if cluster else await _clusters_of(services.store, node)
    views = [await _view(services.store, name, node) for name in clusters]
    known = [view for view in views if view.events or view.incidents]
    records = known[0].failures if known else await services.store.diagnoses(DiagnosisFilter(node=node), "", FAILURES)
    if not known and not records:
        raise NotFound(f"nothing is known of a node {node!r}")
    return pages.draw("node.html", node=node, views=known, records=records, kinds_out=OUT, most=FAILURES)


async def _clusters_of(store: Store, node: str) -> list[str]:
    marks = {mark.cluster for mark in await store.node_marks("") if mark.node == node}
    return sorted(marks | {incident.cluster for incident in await store.incidents(IncidentFilter(node=node), "", 100)})


async def _view(store: Store, cluster: str, node: str) -> NodeView:
    incidents = await store.incidents(IncidentFilter(node=node), "", 100)
    failures = await store.diagnoses(DiagnosisFilter(node=node), "", FAILURES)
    answered = [(record, _answers(record, node)) for record in failures]
    return NodeView(
        cluster=cluster,
        node=node,
        events=await store.node_history(cluster, node, HISTORY),
        incidents=[incident for incident in incidents if incident.cluster == cluster],
        failures=failures,
        checks=[(record, answers) for record, answers in answered if answers],
    )


def _answers(record: DiagnosisRecord, node: str) -> list[QueryResult]:
    check = record.plan.check if record.plan else None
    return [answer for answer in check.queries if answer.node == node] if check else []
