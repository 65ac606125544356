"""Logs of real jobs: every line arrives once, whatever restarts in between."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.slurm.cluster import Cluster, until
from tests.integration.slurm.conftest import NAME, Site, site

pytestmark = pytest.mark.xdist_group("slurm")

COUNTS = """#!/bin/bash
for n in $(seq 1 {lines}); do echo "launch ${{SLURM_RESTART_COUNT:-0}} step $n loss 2.$n"; sleep {pause}; done
printf "the end without a newline"
"""


def attempts(found: Site, job: str) -> list[dict[str, Any]]:
    answer = found.client.get(f"/api/v1/jobs/slurm-{NAME}-{job}")
    shown: list[dict[str, Any]] = answer.json()["attempts"] if answer.status_code == 200 else []
    return shown


def lines_in(found: Site, job: str) -> list[int]:
    """Lines of each launch that the service has counted, where it has judged the launch."""
    return [one["diagnosis"]["compression"]["lines_in"] if one["diagnosis"] else 0 for one in attempts(found, job)]


def test_every_line_arrives_once_through_restarts(cluster: Cluster, tmp_path: Path) -> None:
    """The agent is killed, then the service is; both come back, and the count of lines is exact."""
    with site(cluster, tmp_path) as found:
        job = cluster.submit(COUNTS.format(lines=450, pause=0.015))
        until(lambda: "step 60 " in cluster.log(job), "the job writes")
        until(lambda: attempts(found, job), "the job is known")
        found.agent.end(signal.SIGKILL)
        until(lambda: "step 200 " in cluster.log(job), "the job goes on")
        found.agent.start()
        until(lambda: "step 260 " in cluster.log(job), "the job goes on")
        found.service.kill()
        until(lambda: "step 330 " in cluster.log(job), "the job goes on")
        found.client = found.service.start()
        until(lambda: cluster.state(job)[0] == "COMPLETED", "the job is complete")
        until(lambda: lines_in(found, job) == [451], f"all lines are counted: {lines_in(found, job)}")


def test_each_launch_gets_its_own_lines(cluster: Cluster, tmp_path: Path) -> None:
    """Also when the next launch goes on in the same file."""
    with site(cluster, tmp_path, DIAGNOSER_RECOVERY_MODE="observe") as found:
        job = cluster.submit(COUNTS.format(lines=5, pause=0.1) + "exit 3\n", "--open-mode=append")
        until(lambda: cluster.state(job)[0] == "FAILED", "the job has failed")
        until(lambda: lines_in(found, job) == [6], "the first launch is judged")
        cluster.run("scontrol", "requeue", job)
        until(lambda: len(attempts(found, job)) == 2, "the second launch is known")
        until(lambda: cluster.state(job)[0] == "FAILED", "it has failed too")
        # The line without an end and the first line after it are one in a file that goes on.
        until(lambda: lines_in(found, job) == [6, 6], f"each launch has its lines: {lines_in(found, job)}")


def test_what_a_person_does_to_a_node_is_told(cluster: Cluster, tmp_path: Path) -> None:
    """Cordoned and uncordoned by a person, with the reason."""
    with site(cluster, tmp_path) as found:

        def last() -> list[tuple[str, str, str]]:
            return [(one["node"], one["kind"], one["by"]) for one in found.get("/nodes", cluster=NAME)]

        cluster.run("scontrol", "update", "nodename=gpu-04", "state=drain", "reason=cables, ask Ida")
        until(lambda: last() == [("gpu-04", "cordoned", "person")], f"the drain is told: {last()}")
        assert found.get("/nodes", cluster=NAME)[0]["reason"] == "cables, ask Ida"
        cluster.run("scontrol", "update", "nodename=gpu-04", "state=resume")
        until(lambda: last() == [("gpu-04", "uncordoned", "person")], f"the resume is told: {last()}")
