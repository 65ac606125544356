"""What the site's Prometheus says of nodes: which values are noteworthy, and what a verdict takes from them."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from diagnoser.adapters.prometheus import ANSWER_BYTES, read_series
from diagnoser.diagnosis.node_metrics import apply_metrics
from diagnoser.model import Diagnosis, Facts, NodeAlert, NodeProof, ProofKind
from diagnoser.model.errors import Unavailable
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.rules.node_metrics import MetricSeries, NodeMetric, NodeMetricTable, noteworthy
from tests.rule_files import ANALYZER

TABLE = ANALYZER.knowledge.node_metrics
NODES = ("gpu-001", "gpu-002.cluster.local")


def metric(**limits: Any) -> NodeMetric:
    return NodeMetric(id="m", series="M", says="GPU {gpu}: {value}, limit {limit}, {lasted}", **limits)


def series(*values: float, **labels: str) -> MetricSeries:
    samples = [(15.0 * place, value) for place, value in enumerate(values)]
    return MetricSeries({"Hostname": "gpu-001", "gpu": "3", **labels}, samples)


@pytest.mark.parametrize(
    ("limits", "values", "summary"),
    [
        ({"above": 90.0, "for_seconds": 30.0}, (80, 91, 80, 92, 93, 80), "GPU 3: 93, limit 90, 30 s"),
        ({"above": 90.0, "for_seconds": 30.0}, (80, 91, 80, 91, 80), ""),
        ({"above": 0.0}, (0, float("nan"), 0), ""),
        ({"below": 600.0, "for_seconds": 30.0}, (1400, 500, 345), "GPU 3: 345, limit 600, 30 s"),
        ({"rises_by": 3.0}, (7, 9, 0, 1), "GPU 3: 3, limit 0, 45 s"),
        ({"rises_by": 3.0}, (9, 9, 0, 0), ""),
        ({"changes": True}, (0, 0, 79, 79), "GPU 3: 79, limit 0, 15 s"),
        ({"changes": True}, (79, 79, 0), ""),
        ({"changes": True}, (), ""),
    ],
)
def test_what_is_noteworthy(limits: dict[str, Any], values: Sequence[float], summary: str) -> None:
    """A level that lasts, a counter that rises though it begins anew, a new value: what stood there before is old."""
    found = list(noteworthy(metric(**limits), [series(*values)], NODES, TABLE))
    assert [fact.summary for fact in found] == ([summary] if summary else [])


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"Hostname": "gpu-001.cluster.local"}, "gpu-001"),
        ({"Hostname": "", "instance": "gpu-002:9400"}, "gpu-002.cluster.local"),
        ({"Hostname": "gpu-0011"}, ""),
        ({"Hostname": "gpu-900"}, ""),
        ({"Hostname": "", "job": "gpu-001"}, ""),
    ],
)
def test_only_series_of_the_attempts_nodes_count(labels: dict[str, str], node: str) -> None:
    """By the attempt's own names, whatever else the server answers."""
    found = list(noteworthy(metric(above=90.0), [series(99.0, **labels)], NODES, TABLE))
    assert [fact.node for fact in found] == ([node] if node else [])


def test_a_name_of_a_node_stays_within_its_query() -> None:
    """A name with quotes or operators matches at most more names, whose series do not count."""
    query = NodeMetricTable(node_labels=("node",)).query(metric(above=1.0), ['n"} or up{x="', "a|b"])
    assert query == 'M{node=~"(?:a.b|n...or.up.x..)(?:[.:].*)?"}'


@pytest.mark.parametrize("limits", [{}, {"above": 1.0, "below": 0.0}, {"changes": True, "rises_by": 1.0}])
def test_a_metric_has_one_limit(limits: dict[str, Any]) -> None:
    """Neither none nor two."""
    with pytest.raises(ValueError, match="exactly one"):
        metric(**limits)


ECC = Diagnosis(
    outcome=Outcome.FAILED,
    category=Category.INFRASTRUCTURE,
    type=FailureType.ECC_ERROR,
    confidence=0.9,
    decided_by="rule:xid_95",
    proofs=(NodeProof("gpu-001", ProofKind.NODE_LOG, "Xid 95", "kernel", time=1.0),),
)
XID = NodeAlert("lab", "gpu-001", "prometheus:gpu_xid:3", "gpu_xid", 1.0, 1.0, summary="GPU 3 reported Xid 95")


@pytest.mark.parametrize(
    ("verdict", "alert", "confidence"),
    [
        (ECC, XID, 0.95),
        (ECC, replace(XID, node="gpu-002"), 0.9),
        (ECC, replace(XID, name="infiniband_link_downed"), 0.9),
        (replace(ECC, proofs=()), XID, 0.9),
        (replace(ECC, proofs=(replace(ECC.proofs[0], kind=ProofKind.PERSON),)), XID, 0.9),
    ],
)
def test_a_metric_alone_proves_nothing(verdict: Diagnosis, alert: NodeAlert, confidence: float) -> None:
    """It is noted; surer is only what a kernel line of the same node proves, of a type that the metric goes with."""
    seen = apply_metrics(verdict, Facts(metrics=(alert,)), TABLE)
    assert seen.confidence == pytest.approx(confidence)
    assert (seen.type, seen.proofs) == (verdict.type, verdict.proofs)
    assert seen.notes == (f"{alert.node}: GPU 3 reported Xid 95 (a metric: it proves nothing by itself)",)


def test_a_run_that_ended_well_gets_no_notes() -> None:
    """Nothing is to be explained."""
    well = replace(ECC, outcome=Outcome.COMPLETED)
    assert apply_metrics(well, Facts(metrics=(XID,)), TABLE) == well


async def answer(respond: Callable[[httpx.Request], httpx.Response]) -> Sequence[MetricSeries]:
    async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as client:
        return await read_series(client, "http://p.test/prom/", "secret", "up", 60.0, 90.0)


async def test_a_range_is_asked_for() -> None:
    """With the token, below the path of the address."""
    asked = list[httpx.Request]()

    def respond(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        result = [{"metric": {"gpu": "0"}, "values": [[60, "1"], [75, "NaN"]]}]
        return httpx.Response(200, json={"status": "success", "data": {"resultType": "matrix", "result": result}})

    [one] = await answer(respond)
    assert (one.labels, one.samples[0]) == ({"gpu": "0"}, (60.0, 1.0))
    [request] = asked
    assert (request.url.path, request.headers["authorization"]) == ("/prom/api/v1/query_range", "Bearer secret")
    assert request.content == b"query=up&start=60.0&end=90.0&step=15&timeout=5s"


async def endless() -> AsyncIterator[bytes]:
    for _ in range(ANSWER_BYTES // 1000 + 2):
        yield b" " * 1000
    raise AssertionError("it is read on")


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(302, headers={"location": "http://elsewhere.test"}),
        httpx.Response(500),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}),
        httpx.Response(200, content=endless()),
    ],
)
async def test_what_is_no_answer_is_no_evidence(response: httpx.Response) -> None:
    """Redirects are not followed, and an answer without end is not read to its end."""
    with pytest.raises(Unavailable):
        await answer(lambda _: response)
