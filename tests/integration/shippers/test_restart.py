"""Real shippers over a restart of the service: the diagnosis comes out, with rank and node, and no line is missing."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.service import Service, diagnosis_of, service, until
from tests.integration.shippers.failing_run import BROKEN, JOB, NODE, FailingRun
from tests.integration.shippers.programs import CONFIGS, OTELCOL, OTELCOL_JSON, RSYSLOG, SYSLOG_NG, Program, shipping

TOKEN = "token-of-a-shipper"
SETTINGS = {
    "DIAGNOSER_TOKENS": f"ingest:{TOKEN},admin:token-of-a-person",
    "DIAGNOSER_MAPPING": str(CONFIGS / "mapping.yaml"),
}
PERSON = {"Authorization": "Bearer token-of-a-person"}


def accepted(client: httpx.Client) -> int:
    """Lines that this process of the service has stored."""
    found = re.search(r'diagnoser_ingested_lines_total\{result="accepted"\} (\d+)', client.get("/metrics").text)
    assert found, client.get("/metrics").text[:2000]
    return int(found[1])


def started(process: Service) -> httpx.Client:
    client = process.start()
    client.headers.update(PERSON)
    return client


def check_diagnosis(found: dict[str, Any]) -> None:
    assert (found["type"], found["category"]) == ("ecc_error", "infrastructure")
    assert (found["root_cause"]["rank"], found["root_cause"]["node"]) == (BROKEN, NODE)


@pytest.mark.parametrize(
    "program", [OTELCOL, OTELCOL_JSON, RSYSLOG, SYSLOG_NG], ids=["otelcol", "otelcol-json", "rsyslog", "syslog-ng"]
)
def test_the_diagnosis_comes_out_over_a_restart_of_the_service(tmp_path: Path, program: Program) -> None:
    """The service ends in the middle of the run, and is away while the run fails."""
    if program.missing:
        pytest.skip(program.missing)
    run = FailingRun(tmp_path / "training")
    lines = run.begin()
    with (
        service(tmp_path, **SETTINGS) as process,
        shipping(program, tmp_path / "shipper", f"127.0.0.1:{process.port}", TOKEN, run.folder, NODE) as shipper,
    ):
        client = started(process)
        until(lambda: accepted(client) >= lines, f"{lines} lines arrive: {shipper.log()}", 60)
        process.stop()
        rest = run.fail()
        client = started(process)
        until(lambda: accepted(client) >= rest, f"the other {rest} lines arrive: {shipper.log()}", 60)
        client.post(f"/api/v1/jobs/{JOB}/events", json={"kind": "exit", "code": 1}).raise_for_status()
        found = diagnosis_of(client, JOB, lines + rest)
    check_diagnosis(found)
    assert found["compression"]["lines_in"] == lines + rest
