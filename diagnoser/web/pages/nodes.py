"""The page of one node: what is known of it, and the buttons to note something and to give it back."""

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Depends
from fastapi.responses import Response

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import (
    NodeCheck,
    NodeEvent,
    PairResult,
    QueryResult,
    UncordonRequest,
    UncordonState,
)
from diagnoser.model.errors import NotFound
from diagnoser.model.jobs import DEFAULT_CLUSTER
from diagnoser.model.queries import DiagnosisFilter, IncidentFilter
from diagnoser.model.work import DiagnosisRecord
from diagnoser.web.api.nodes import HEARD_SECONDS, HISTORY, OUT, NodePath, write_note
from diagnoser.web.api.params import Name
from diagnoser.web.api.uncordon import OPEN_SECONDS, not_ours, request_uncordon
from diagnoser.web.http.authentication import may_read
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.forms import Pressed, see_other
from diagnoser.web.pages.rendering import Drawn

NODES_SHOWN = 16


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """nodes: rows and columns, the node that the page is of first, then those that failed or were tested with it.

    left_out: how many other nodes were tested. cells: by row and column, in both orders, the last test of the two
    together and its round, counted from 1.
    """

    nodes: tuple[str, ...]
    left_out: int
    cells: Mapping[tuple[str, str], tuple[PairResult, int]]


def pair_matrix(check: NodeCheck, node: str) -> PairMatrix | None:
    """None for a check in which no pair was tested."""
    rounds = list(check.rounds)
    if check.results:
        rounds.append(check.results)
    cells: dict[tuple[str, str], tuple[PairResult, int]] = {}
    failed = set[str]()
    for number, results in enumerate(rounds, 1):
        for result in results:
            cells |= dict.fromkeys(itertools.permutations(result.nodes, 2), (result, number))
            if not result.ok:
                failed.update(result.nodes)
    if not cells:
        return None
    tested = set(itertools.chain.from_iterable(cells))
    order = sorted(tested, key=lambda name: (name != node, name not in failed, (node, name) not in cells, name))
    return PairMatrix(tuple(order[:NODES_SHOWN]), max(0, len(order) - NODES_SHOWN), cells)


FAILURES = 20
"""Failures on one node that its page shows; the list of diagnoses has the others."""
RUNS = 20
NOTES = ALERTS = 50

router = Router(include_in_schema=False)


Checked = tuple[DiagnosisRecord, list[QueryResult], PairMatrix | None]
"""What a check of a plan found of the node: its answers, and the pairs that were tested."""


@router.get("/nodes/{node}", dependencies=[Depends(may_read)])
async def node_page(node: NodePath, core: Core, pages: Drawn, cluster: Name = "") -> Response:
    """Without a cluster the node of that name in each, where events or incidents tell of it; else in that of jobs that
    name none."""
    store, now = core.store, core.clock()
    records = await store.diagnoses.page(DiagnosisFilter(node=node, cluster=cluster), "", FAILURES)
    clusters = [cluster]
    if not cluster:
        named = {mark.cluster for mark in await store.nodes.marks("") if mark.node == node}
        for incident in await store.incidents.page(IncidentFilter(node=node), "", 100):
            named.add(incident.cluster)
        clusters = sorted(named) or [DEFAULT_CLUSTER]
    known = list(filter(None, [await _view(store, name, node, records, now) for name in clusters]))
    if not known and not records:
        raise NotFound(f"nothing is known of a node {node!r}")
    return pages.draw("node.html", node=node, views=known, records=records, kinds_out=OUT, most=FAILURES)


@router.post("/nodes/{node}/note")
async def note(node: NodePath, form: Pressed, core: Core) -> Response:
    """For whoever repairs it; then back to the page."""
    await write_note(core, form.caller, form.text("cluster"), node, form.text("text"))
    return _to(node, form.text("cluster"))


@router.post("/nodes/{node}/uncordon")
async def uncordon(node: NodePath, form: Pressed, core: Core) -> Response:
    """Ask the agent to give the node back, then back to the page, which says how far that is."""
    await request_uncordon(core, form.caller, form.text("cluster"), node, form.text("comment"), by_person=True)
    return _to(node, form.text("cluster"))


async def _view(
    store: SqlStore, cluster: str, node: str, failures: list[DiagnosisRecord], now: float
) -> dict[str, Any]:
    """What is known of one node of a cluster, nothing where nothing is; all lists begin with the newest.

    running, ran: launches there now and before. uncordon: whether it is for the service to give it back; asked: the
    last request to do so, None where there is none of late.
    """
    incidents = await store.incidents.page(IncidentFilter(node=node), "", 100)
    events, notes, alerts, asked, running, ran = await asyncio.gather(
        store.nodes.history(cluster, node, HISTORY),
        store.node_facts.notes(cluster, node, NOTES),
        store.node_facts.alerts(cluster, node, ALERTS),
        store.node_facts.uncordons(cluster, node, 1),
        store.node_facts.running_on(cluster, [node], now - HEARD_SECONDS),
        store.node_facts.ran_on(cluster, node, RUNS),
    )
    last = next(iter(events), None)
    request = _open_request(asked, last)
    is_asked = False
    if request and request.state is UncordonState.OPEN:
        is_asked = request.created > now - OPEN_SECONDS
    here = [incident for incident in incidents if incident.cluster == cluster]
    known = {"events": events, "incidents": here, "notes": notes, "alerts": alerts, "running": running, "ran": ran}
    if not any(known.values()):
        return {}
    return known | {
        "cluster": cluster,
        "checks": list(_checks(failures, cluster, node)),
        "uncordon": not not_ours(node, last),
        "asked": request,
        "is_asked": is_asked,
    }


def _open_request(asked: Iterable[UncordonRequest], last: NodeEvent | None) -> UncordonRequest | None:
    """The newest request to give the node back, unless something has happened to the node since. asked: the newest
    first. last: what happened."""
    for request in asked:
        if last is None or request.created >= last.time - OPEN_SECONDS:
            return request
    return None


def _checks(failures: Iterable[DiagnosisRecord], cluster: str, node: str) -> Iterator[Checked]:
    """Checks of plans for these failures that asked the node, or tested it."""
    for record in failures:
        plan = record.plan
        if plan is None:
            continue
        if plan.check is None:
            continue
        if plan.cluster not in ("", cluster):
            continue
        answers = [answer for answer in plan.check.queries if answer.node == node]
        matrix = pair_matrix(plan.check, node)
        if answers or matrix:
            yield record, answers, matrix


def _to(node: str, cluster: str) -> Response:
    """Redirects, so that a reload does not repeat the action."""
    return see_other(f"/nodes/{quote(node, safe='')}?{urlencode({'cluster': cluster})}")
