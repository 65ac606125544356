"""Metrics of a real Prometheus as evidence: they support a node's own kernel line, and prove nothing by themselves."""

import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.service import DEMO_LOG, diagnosis_of, node_fault, send, service, until
from tests.e2e.test_prometheus import needs_promtool
from tests.prometheus_server import needs_prometheus, prometheus_server

XID = "DCGM_FI_DEV_XID_ERRORS"


def openmetrics(now: float, values: Mapping[tuple[str, str], tuple[float, float]]) -> Iterator[str]:
    """values: (metric, node) -> before and since five minutes ago."""
    for (metric, node), (before, since) in values.items():
        yield f"# TYPE {metric} gauge"
        for second in range(int(now) - 1200, int(now) + 600, 15):
            value = before if second < now - 300 else since
            yield f'{metric}{{Hostname="{node}.cluster.local",gpu="3"}} {value} {second}'
    yield "# EOF"


def failed(client: httpx.Client, job: str, node: str) -> None:
    client.post("/api/v1/jobs", json={"id": job, "nodes": [node], "rank_nodes": {"0": node}}).raise_for_status()
    lines = [b"the GPU of gpu-900 is hot\n", *DEMO_LOG.read_bytes().splitlines(keepends=True)]
    send(client, lines, 0, len(lines), job=job)
    client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": 1}).raise_for_status()


def noted(client: httpx.Client, job: str) -> dict[str, Any]:
    """The diagnosis once it has a note on a metric."""
    until(lambda: any("a metric" in note for note in diagnosis_of(client, job)["notes"]), "the metric is noted")
    return diagnosis_of(client, job)


@needs_promtool
@needs_prometheus
def test_metrics_of_the_attempts_own_nodes_are_noted(tmp_path: Path) -> None:
    """With the node's kernel line the verdict is surer; without it only the note is new, and no proof. Metrics of a
    node that the job's log names, but never had, are not noted."""
    now = time.time()
    values = {(XID, "gpu-001"): (0, 95), ("DCGM_FI_DEV_GPU_TEMP", "gpu-900"): (40, 99)}
    values |= {("DCGM_FI_DEV_POWER_USAGE", "gpu-002"): (300, 300), ("DCGM_FI_DEV_MEMORY_TEMP", "gpu-002"): (60, 99)}
    (tmp_path / "metrics.txt").write_text("\n".join(openmetrics(now, values)) + "\n")
    backfill = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "metrics.txt", "tsdb"]
    subprocess.run(backfill, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    with prometheus_server(tmp_path, {"global": {}}) as prometheus:
        plain, reading = tmp_path / "plain", tmp_path / "reading"
        plain.mkdir()
        reading.mkdir()
        with service(plain) as alone:
            node_fault(alone.start(), "gpu-001")
            assert alone.client is not None
            failed(alone.client, "proven", "gpu-001")
            sure = diagnosis_of(alone.client, "proven")
        with service(reading, DIAGNOSER_PROMETHEUS_URL=str(prometheus.base_url)) as running:
            client = running.start()
            node_fault(client, "gpu-001")
            failed(client, "proven", "gpu-001")
            failed(client, "hot", "gpu-002")
            proven, hot = noted(client, "proven"), noted(client, "hot")
            [note] = [note for note in proven["notes"] if "a metric" in note]
            assert note == "gpu-001: GPU 3 reported Xid 95 (a metric: it proves nothing by itself)"
            assert proven["type"] == sure["type"] == "ecc_error"
            assert 1 - proven["confidence"] < 0.6 * (1 - sure["confidence"])
            assert "the memory of GPU 3 was at 99 °C, above 95" in "".join(hot["notes"])
            assert "gpu-900:" not in "".join((*proven["notes"], *hot["notes"]))
            [alert] = client.get("/api/v1/nodes/gpu-002/alerts").json()
            assert (alert["name"], alert["by"]) == ("gpu_memory_temperature", "prometheus")
