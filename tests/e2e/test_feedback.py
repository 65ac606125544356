"""A failure that nobody knew is named by a person, and recognised when it comes again."""

from pathlib import Path
from typing import Any

import httpx

from tests.e2e.service import diagnosis_of, send, service

UNKNOWN = [
    "mosaic-feeder: catalogue snapshot {n} differs from the quilt manifest of {host}, giving up\n",
    "mosaic-feeder: quilt stitching stopped after {n} patches\n",
]
OTHER = ["lantern: wick governor found no paraffin in vessel {n}, giving up\n"]


def log(lines: list[str], n: int, host: str) -> list[bytes]:
    routine = [f"step {number} loss 2.{number:03d}\n" for number in range(1, 30)]
    return [line.encode() for line in routine + [line.format(n=n, host=host) for line in lines]]


def fail(client: httpx.Client, job: str, lines: list[bytes]) -> dict[str, Any]:
    """A job that writes ``lines`` and exits with 1: its diagnosis."""
    send(client, lines, 0, len(lines), job=job)
    client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": 1}).raise_for_status()
    return diagnosis_of(client, job, len(lines))


def test_a_confirmed_failure_decides_the_same_failure_and_no_other(tmp_path: Path) -> None:
    """Undecided, then named by a person; the same failure on other hosts is decided by it, another one is not."""
    with service(tmp_path) as running:
        client = running.start()
        first = fail(client, "quilt-1", log(UNKNOWN, 4711, "gpu-017"))
        assert (first["decided_by"], first["correction"]) == ("heuristic:likely_line", None)
        said = {"verdict": "corrected", "type": "dataloader_killed", "comment": "rebuild the manifest"}
        answer = client.post(f"/api/v1/diagnoses/{first['id']}/feedback", json=said)
        assert answer.status_code == 200, answer.text
        assert answer.json()["correction"]["type"] == "dataloader_killed"

        again = fail(client, "quilt-2", log(UNKNOWN, 82, "gpu-201"))
        assert (again["type"], again["decided_by"]) == ("dataloader_killed", f"incident:{first['id']}")
        assert again["mitigation"] == "rebuild the manifest"
        assert again["recovery"]["reason"] and not again["grounds"]["stable"]
        policy = client.get(f"/api/v1/diagnoses/{again['id']}/policy").json()
        assert policy["action"] == again["recovery"]["action"]

        other = fail(client, "lantern-1", log(OTHER, 5, "gpu-017"))
        assert other["decided_by"].partition(":")[0] == "heuristic"

        (near, *_) = client.get(f"/api/v1/diagnoses/{again['id']}/similar").json()["items"]
        assert (near["job"], near["type"], near["by"]) == ("quilt-1", "dataloader_killed", "anonymous")
        assert 'diagnoser_feedback_total{category="framework",verdict="corrected"} 1.0' in client.get("/metrics").text
        found = client.get("/api/v1/jobs/quilt-2/attempts/1/search", params={"q": "quilt manifests"}).json()["items"]
        assert "quilt manifest of gpu-201" in found[0]["text"]
