"""A failing run whose log comes by the protocols of others, to the real process."""

from pathlib import Path

import pytest

from tests.e2e.service import DEMO_LOG, service, until
from tools.bench.protocols import JSON, PROTOBUF, Encode, loki, loki_json, otlp

MAPPING = """
job:
  - name: job
    match: '^(run)-\\d+$'
    value: 'site-{1}'
"""


@pytest.mark.parametrize(("encode", "kind"), [(loki, PROTOBUF), (loki_json, JSON), (otlp, PROTOBUF)])
def test_the_diagnosis_comes_out(tmp_path: Path, encode: Encode, kind: str) -> None:
    """The log goes to the job that the site's own mapping names; its diagnosis is that of the same log as text."""
    (tmp_path / "mapping.yaml").write_text(MAPPING)
    with service(tmp_path, DIAGNOSER_MAPPING=str(tmp_path / "mapping.yaml")) as server:
        client = server.start()
        path, body = encode("run-7", 0, DEMO_LOG.read_bytes())
        assert client.post(path, content=body, headers={"content-type": kind}).status_code in (200, 204)
        text = client.post(
            "/api/v1/logs?job=text", content=DEMO_LOG.read_bytes(), headers={"content-type": "text/plain"}
        )
        assert text.status_code in (200, 204)
        types = []
        for job in ("site-run", "text"):
            client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": 1}).raise_for_status()
            listed = until(
                lambda job=job: client.get("/api/v1/diagnoses", params={"job": job}).json()["items"], "it is diagnosed"
            )
            types.append(listed[0]["type"])
        assert types[0] == types[1] != "unknown"


def test_a_faulty_mapping_stops_the_start(tmp_path: Path) -> None:
    """For good, and with all of its faults, each with its line."""
    (tmp_path / "mapping.yaml").write_text("presets: [pbs]\nrank: [{match: x}]\n")
    with service(tmp_path, DIAGNOSER_MAPPING=str(tmp_path / "mapping.yaml")) as server:
        with pytest.raises(AssertionError, match=r"mapping.yaml:1: no preset 'pbs'.*\n.*:2: rank: match needs a name"):
            server.start()
        assert server.process
        assert server.process.poll() == 1
