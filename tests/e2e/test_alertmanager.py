"""Alerts about nodes from a real Alertmanager, through its webhook, to the diagnosis of a job that ran there."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tests.e2e.service import diagnosis_of, service, until
from tests.e2e.test_node_logs import end, run
from tests.integration.test_alert_receivers import alertmanager

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus-alertmanager") is None,
    reason="needs Alertmanager: apt-get install prometheus-alertmanager",
)
TELLS, ALL = "secret-of-the-alertmanager", "secret-of-an-administrator"
SETTINGS = """
route: {{receiver: diagnoser, group_wait: 0s, group_interval: 1s, repeat_interval: 1h, group_by: [alertname, instance]}}
receivers:
  - name: diagnoser
    webhook_configs:
      - url: {url}/api/v1/alertmanager?cluster=east
        http_config: {{authorization: {{credentials: {secret}}}}}
"""


def fire(url: str, ago: float, lasting: float = 600.0) -> None:
    """As Prometheus tells Alertmanager. Without an end it would fire on."""
    began = datetime.now(UTC) - timedelta(seconds=ago)
    alert = {
        "labels": {"alertname": "GpuXid", "instance": "n44.hpc.example:9400", "gpu": "3", "severity": "critical"},
        "annotations": {"summary": "GPU 3 reports Xid 79"},
        "startsAt": began.isoformat(),
        "endsAt": (began + timedelta(seconds=lasting)).isoformat(),
    }
    httpx.post(f"{url}/api/v2/alerts", json=[alert]).raise_for_status()


def test_an_alert_of_the_real_alertmanager_reaches_the_diagnosis(tmp_path: Path) -> None:
    """It fires before the job ends: its line is the root on that node, it proves nothing, and its end is shown."""
    with service(tmp_path, DIAGNOSER_TOKENS=f"alerts:{TELLS},admin:{ALL}") as process:
        client = process.start()
        client.headers["authorization"] = f"Bearer {ALL}"
        run(client, "j", "n44")
        with alertmanager(tmp_path, SETTINGS.format(url=process.url, secret=TELLS)) as url:
            fire(url, ago=60)

            def alerts() -> list[dict[str, object]]:
                listed: list[dict[str, object]] = client.get("/api/v1/nodes/n44/alerts?cluster=east").json()
                return listed

            (told,) = until(alerts, "the alert has arrived")
            end(client, "j")
            found = diagnosis_of(client)
            fire(url, ago=60, lasting=59)
            until(lambda: alerts()[0]["ended"] is not None, "the end of the alert has arrived")
            assert len(alerts()) == 1
        page = client.get("/nodes/n44?cluster=east").text
        reading = httpx.get(
            f"{process.url}/api/v1/nodes/n44/alerts", headers={"authorization": f"Bearer {TELLS}"}
        ).status_code
    assert (told["name"], told["ended"], told["by"]) == ("GpuXid", None, "alerts-1")
    root = found["root_cause"]
    assert (found["type"], root["node"], root["source"]) == ("gpu_lost", "n44", "alertmanager")
    assert root["text"].startswith("Alertmanager: GpuXid (critical): GPU 3 reports Xid 79 {")
    assert found["proofs"] == []
    assert "GPU 3 reports Xid 79" in page
    assert reading == 403
