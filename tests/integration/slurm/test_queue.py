"""A job that waits in the queue of a real Slurm: how long, and why, is known once it runs."""

import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.integration.slurm.cluster import Cluster, until
from tests.integration.slurm.conftest import NAME, site

pytestmark = pytest.mark.xdist_group("slurm")


def test_a_launch_tells_how_long_it_waited_and_why(cluster: Cluster, tmp_path: Path) -> None:
    """Another job holds the nodes. The time limit is the job's own."""
    with site(cluster, tmp_path) as lab:
        blocker = cluster.submit("#!/bin/bash\nsleep 600\n", "--nodes=5", "--exclusive")
        until(lambda: cluster.state(blocker)[0] == "RUNNING", "the first job runs")
        waiting = cluster.submit("#!/bin/bash\nsleep 600\n", "--nodes=5", "--exclusive", "--time=30")
        until(lambda: "Resources" in cluster.run("squeue", "-h", "-j", waiting, "-o", "%r"), "Slurm says why it waits")
        looks = lab.agent.folder / f"{NAME}.json"
        until(lambda: '"Resources"' in looks.read_text(), "the agent has seen it wait")
        time.sleep(2)  # Slurm's times are whole seconds: the wait is to be longer than one
        cluster.run("scancel", blocker)
        path = f"/api/v1/jobs/slurm-{NAME}-{waiting}"
        until(lambda: lab.client.get(path).status_code == 200, "the second job is known")
        until(lambda: lab.client.get(path).json()["attempts"][0]["events"], "its start was told")
        [start] = lab.client.get(path).json()["attempts"][0]["events"]
        assert (start["kind"], start["reason"], start["time_limit"]) == ("started", "Resources", 1800.0)
        waited = datetime.fromisoformat(start["time"]) - datetime.fromisoformat(start["submitted"])
        assert waited.total_seconds() >= 1
        assert "in the queue, last for Resources" in lab.client.get(f"/jobs/slurm-{NAME}-{waiting}").text
        cluster.run("scancel", waiting)
