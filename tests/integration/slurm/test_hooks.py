"""The prolog and epilog of deploy/slurm, run by a real slurmctld, on a site without an agent."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.service import ROOT, service
from tests.integration.slurm import cluster as slurm
from tests.integration.slurm.cluster import until
from tests.integration.slurm.conftest import NAME

pytestmark = pytest.mark.xdist_group("slurm")

TOKEN = "0123456789abcdef0123456789abcdef"
HOOKS = {"PrologSlurmctld": "prolog_slurmctld.sh", "EpilogSlurmctld": "epilog_slurmctld.sh"}


def installed(folder: Path, url: str) -> list[str]:
    """The hooks as a site has them: with its address and the place of its token. The lines of slurm.conf for them."""
    folder.chmod(0o755)
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    if slurm.ROOT:
        shutil.chown(folder / "token", "slurm")
    for name in HOOKS.values():
        text = (ROOT / "deploy" / "slurm" / name).read_text()
        text = text.replace("https://diagnoser.example", url).replace("/etc/diagnoser/token", str(folder / "token"))
        text = text.replace("\n", f"\nexport SLURM_CONF=$(cat {folder}/conf)\n", 1)  # it is not in /etc here
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return [f"{setting}={folder / name}" for setting, name in HOOKS.items()]


def told(client: httpx.Client, job: str) -> tuple[list[str], list[dict[str, Any]]]:
    """(nodes, events) that the service has of a job."""
    answer = client.get(f"/api/v1/jobs/slurm-{NAME}-{job}")
    if answer.status_code == 404:
        return [], []
    found = answer.raise_for_status().json()
    events = [event for attempt in found["attempts"] for event in attempt["events"]]
    kept = ("kind", "code", "signal")
    return found["nodes"], [{key: event[key] for key in kept if event.get(key) is not None} for event in events]


@pytest.mark.parametrize(
    ("script", "end"),
    [("exit 3", {"kind": "exit", "code": 3}), ("kill -9 $$", {"kind": "exit", "signal": 9})],
)
def test_the_service_hears_from_the_controller_how_a_job_starts_and_ends(
    tmp_path: Path, script: str, end: dict[str, Any]
) -> None:
    """With its node and its exit code or signal; the job itself knows nothing of it."""
    if why := slurm.missing():
        pytest.skip(f"needs a real Slurm: {why}")
    with (
        service(tmp_path, DIAGNOSER_TOKENS=f"agent:{TOKEN}") as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        client = server.start()
        client.headers["authorization"] = f"Bearer {TOKEN}"
        with slurm.running(NAME, 2, settings=installed(Path(folder), server.url)) as cluster:
            (Path(folder) / "conf").write_text(cluster.environment["SLURM_CONF"])
            job = cluster.submit(f"#!/bin/sh\n{script}\n")
            until(lambda: len(told(client, job)[1]) == 2, "start and end are told")
            nodes, events = told(client, job)
        assert sorted(events, key=lambda event: str(event["kind"])) == [end, {"kind": "started"}]
        assert nodes == ["gpu-01"]
