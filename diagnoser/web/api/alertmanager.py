"""Alerts of Prometheus' Alertmanager about nodes, as its webhook tells them."""

from collections import defaultdict
from dataclasses import replace
from typing import Annotated

from fastapi import Query

from diagnoser.ingest import RecordDefaults
from diagnoser.ingest.alerts import WebhookMessage, node_alerts, node_lines
from diagnoser.model import NodeAlert
from diagnoser.model.jobs import DEFAULT_CLUSTER, stored_cluster
from diagnoser.recovery.trust import match_scheduler_names
from diagnoser.web.api.plans import ClusterField
from diagnoser.web.http.access import own_cluster
from diagnoser.web.http.authentication import ALERTS, Caller
from diagnoser.web.http.dependencies import Core, Intake
from diagnoser.web.http.routing import ApiRouter, Schema

router = ApiRouter("recovery")


class Receipt(Schema):
    """alerts: about nodes. new: of these, how many were not known. left_out: those about nothing of ours."""

    alerts: int
    new: int
    left_out: int


@router.post("/alertmanager", dependencies=ALERTS, summary="Receive alerts from Alertmanager")
async def receive(
    body: WebhookMessage,
    core: Core,
    intake: Intake,
    caller: Caller,
    cluster: Annotated[
        ClusterField, Query(description="Cluster of the nodes; else that of the token, else that of the label")
    ] = "",
) -> Receipt:
    """Alertmanager's webhook, format version 4. Each alert about a node is shown on the node's page, and becomes a line
    of the node's log, which diagnoses of jobs on that node in that time read. It proves nothing about the node by
    itself. Repeats change nothing. Errors other than 5xx and 429 make Alertmanager drop the message: alerts about other
    things are therefore counted, not refused."""
    now, bound = core.clock(), own_cluster(caller, cluster)
    told, left_out = node_alerts(body, intake.mapping, cluster=bound, by=caller.name, received=now)
    alerts = await _as_known(core, told)
    new = await core.store.node_facts.unknown_alerts(alerts)
    if new:
        await _take(intake, new, now, caller.name)  # first: what is not durable is told again
    await core.store.node_facts.record_alerts(alerts)
    return Receipt(alerts=len(alerts), new=len(new), left_out=left_out)


async def _take(intake: Intake, alerts: list[NodeAlert], now: float, sender: str) -> None:
    """Lines in the logs of the nodes. Jobs of a cluster without a name have their node logs under none. What the token
    may say was decided by its scope and cluster."""
    named = [replace(alert, cluster="" if alert.cluster == DEFAULT_CLUSTER else alert.cluster) for alert in alerts]
    defaults = RecordDefaults(vouched=True, sender=sender)
    await intake.ingest.accept_batch(node_lines(named), "alertmanager", defaults, now)


async def _as_known(core: Core, alerts: list[NodeAlert]) -> list[NodeAlert]:
    """The alerts under the names that the scheduler gives their nodes: monitoring may say ``gpu-017.cluster.local``."""
    by_cluster: dict[str, list[NodeAlert]] = defaultdict(list)
    for alert in alerts:
        by_cluster[stored_cluster(alert.cluster)].append(alert)
    known = []
    for cluster, members in by_cluster.items():
        allocated = await core.store.node_facts.nodes_like(cluster, {alert.node for alert in members})
        for alert in members:
            (node,) = match_scheduler_names((alert.node,), allocated)
            known.append(replace(alert, cluster=cluster, node=node))
    return known
