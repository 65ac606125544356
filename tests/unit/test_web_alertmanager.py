"""The webhook that Alertmanager tells alerts to."""

from pathlib import Path
from typing import Any

import pytest

from diagnoser.ingest import Batch
from diagnoser.model import Job
from diagnoser.model.access import Credential, Scope, StoredToken, hash_of
from diagnoser.model.errors import Unavailable
from tests.serving import NOW, serving
from tests.unit.test_ingest_alerts import XID, labelled

URL = "/api/v1/alertmanager"
SECRET = "dgn_" + "a" * 43


def body(*alerts: dict[str, Any]) -> dict[str, Any]:
    return {"version": "4", "receiver": "diagnoser", "status": "firing", "alerts": list(alerts)}


async def test_an_alert_reaches_the_page_of_its_node(tmp_path: Path) -> None:
    """Under the name that the scheduler gives the node; repeats change nothing, and the end is taken."""
    async with serving(tmp_path) as web:
        batches: list[Batch] = []

        async def take(batch: Batch, *rest: Any) -> None:
            batches.append(batch)

        web.ingest.accept_batch = take  # type: ignore[assignment, method-assign]
        await web.store.jobs.register(Job("j", nodes=("gpu-017.lab",), created=NOW), 1)
        first = await web.client.post(URL, json=body(XID, labelled(job="prometheus")))
        again = await web.client.post(URL, json=body(XID))
        ended = await web.client.post(URL, json=body(XID | {"status": "resolved", "endsAt": "2026-09-21T14:13:15Z"}))
        page = (await web.client.get("/nodes/gpu-017.lab")).text
        listed = (await web.client.get("/api/v1/nodes/gpu-017.lab/alerts")).json()
    assert first.json() == {"alerts": 1, "new": 1, "left_out": 1}
    assert [answer.json()["new"] for answer in (again, ended)] == [0, 0]
    assert [target.job for batch in batches for target in batch.blocks] == ["~node//gpu-017"]
    assert "GPU 3 reports Xid 79" in page and "Alerts of monitoring" in page
    assert [(alert["name"], alert["ended"], alert["by"]) for alert in listed] == [
        ("GpuXid", 1_789_999_995.0, "anonymous")
    ]


async def test_what_could_not_be_stored_is_told_again(tmp_path: Path) -> None:
    """Alertmanager tries again after 503; until the line is durable the alert is not known."""
    async with serving(tmp_path) as web:
        web.ingest.error = Unavailable("the disk is full")
        assert (await web.client.post(URL, json=body(XID))).status_code == 503
        web.ingest.error = None
        assert (await web.client.post(URL, json=body(XID))).json()["new"] == 1


async def test_a_token_of_one_cluster_speaks_of_its_nodes_only(tmp_path: Path) -> None:
    """The label does not count then; a query that names another cluster is refused."""
    async with serving(tmp_path) as web:
        token = Credential("east-am", Scope.ALERTS, cluster="east")
        await web.store.tokens.add(StoredToken(token, hash_of(SECRET)))
        web.client.headers["authorization"] = f"Bearer {SECRET}"
        assert (await web.client.post(URL, json=body(labelled(node="n1", cluster="west")))).status_code == 200
        assert [alert.by for alert in await web.store.node_facts.alerts("east", "n1", 9)] == ["east-am"]
        assert (await web.client.post(f"{URL}?cluster=west", json=body(XID))).status_code == 403
        assert (await web.client.get("/api/v1/nodes/n1/alerts")).status_code == 403


@pytest.mark.parametrize("faulty", [{}, {"version": "3", "alerts": []}, {"version": "4", "alerts": [{}]}, []])
async def test_what_is_no_webhook_is_a_bad_request(tmp_path: Path, faulty: Any) -> None:
    """It says what is wrong."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(URL, json=faulty)
    assert answer.status_code == 400 and answer.json()["detail"]
