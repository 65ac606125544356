"""Hangs on a real Slurm, one node a rank, with a real service and agent that may act on them."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.environments import TORCH
from tests.integration.slurm import cluster as slurm
from tests.integration.slurm.cluster import Cluster, until
from tests.integration.slurm.conftest import NAME, Site, site
from tools.real_hangs import runs
from tools.real_hangs.runs import SIZES, HangCase, HangLabel, Launcher
from tools.real_hangs.score import ServiceVerdict

STEP_SECONDS = 0.4, 1.9
VERDICT_SECONDS, PLAN_SECONDS, AGAIN_SECONDS = 90.0, 15.0, 90.0
"""After the last line of the job, after the verdict, and after the last line until it runs again."""
SCRIPT = """#!/bin/bash
cd {dumps}/$SLURM_JOB_ID
[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || exec touch again
srun bash -c 'echo $SLURMD_NODENAME > node_$SLURM_PROCID; exec {command}'
"""


@contextmanager
def launcher() -> Iterator[Launcher]:
    """On one cluster, of as many nodes as the largest case has ranks."""
    with slurm.running(NAME, max(SIZES)) as cluster, tempfile.TemporaryDirectory() as scratch:
        tools = cluster.folder / "tools"
        for folder in (tools, _dumps(cluster)):
            folder.mkdir()
        (tools / "py-spy").symlink_to(TORCH.folder / "bin/py-spy")
        options = ("--collect-evidence", "--dumps", f"{_dumps(cluster)}/{{job}}/_dump_*")
        variables = {"PATH": f"{tools}:{cluster.environment['PATH']}"}
        with site(cluster, Path(scratch), *options, variables=variables) as lab:
            yield partial(_run, lab)


def _run(lab: Site, case: HangCase, folder: Path) -> HangLabel:
    """The job runs as who runs this: it reads the torch environment."""
    cluster, step_seconds = lab.cluster, Random(case.seed).uniform(*STEP_SECONDS)
    script = cluster.folder / "job.sh"
    command = " ".join(runs.command(case, Path(), step_seconds))
    script.write_text(SCRIPT.format(dumps=_dumps(cluster), command=command))
    placed = (f"--nodes={case.ranks}", "--ntasks-per-node=1", "-o", f"{cluster.folder}/jobs/%j.log")
    job = cluster.run("sbatch", "--parsable", "--hold", *placed, str(script))
    working = _dumps(cluster) / job
    runs.prepare(case, working)
    cluster.run("scontrol", "release", job)
    try:
        label = runs.collect(case, working, step_seconds, partial(_node, working))
        verdict = _verdict(lab, job, case.culprit)
    finally:
        folder.mkdir(parents=True)
        shutil.copy(cluster.folder / "jobs" / f"{job}.log", folder / "output.log")
        end_job(cluster, job)
    for path in working.iterdir():
        if path.is_file() and path.name != runs.LABEL:
            shutil.copy2(path, folder)
    verdict.write(folder)
    label.write(folder)
    return label


def _node(working: Path, rank: int) -> str:
    return (working / f"node_{rank}").read_text().strip()


def _dumps(cluster: Cluster) -> Path:
    return cluster.folder / "dumps"


def _verdict(lab: Site, job: str, culprit: int) -> ServiceVerdict:
    """The first that names the culprit, else the last there is."""
    last_line = (lab.cluster.folder / "jobs" / f"{job}.log").stat().st_mtime

    def current() -> dict[str, Any]:
        attempts = lab.get(f"/jobs/slurm-{NAME}-{job}")["attempts"]
        found: dict[str, Any] = (attempts[0]["diagnosis"] if attempts else None) or {}
        return found

    def named() -> bool:
        return (current().get("root_cause") or {}).get("rank") == culprit

    with suppress(AssertionError):
        until(named, "the culprit is named", last_line + VERDICT_SECONDS - time.time())
    diagnosis, seconds = current(), time.time() - last_line
    with suppress(AssertionError):
        until(lambda: [plan for plan in lab.plans(job) if plan["state"] != "pending"], "a plan is made", PLAN_SECONDS)
    again = _dumps(lab.cluster) / job / "again"
    if any(plan["reason"] in ("one_look", "may_act") for plan in lab.plans(job)):
        with suppress(AssertionError):
            until(again.exists, "the job runs again", last_line + AGAIN_SECONDS - time.time())
    root, plans = diagnosis.get("root_cause") or {}, [f"{plan['action']} {plan['state']}" for plan in lab.plans(job)]
    drained = [node for node in lab.cluster.nodes if lab.cluster.node(node)[0].startswith("drain")]
    return ServiceVerdict(
        outcome=diagnosis.get("outcome", ""),
        type=diagnosis.get("type", ""),
        rank=root.get("rank"),
        node=root.get("node"),
        seconds=round(seconds, 1),
        again=round(again.stat().st_mtime - last_line, 1) if again.exists() else None,
        plans=plans,
        drained=drained,
    )


def end_job(cluster: Cluster, job: str) -> None:
    """Ends the job, and puts its nodes back to work."""
    cluster.run("scancel", "--signal=KILL", "--full", job, check=False)
    cluster.run("scancel", job, check=False)
    for node in cluster.nodes:
        if cluster.node(node)[0].startswith("drain"):
            cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
    idle = ("sinfo", "-h", "-N", "-t", "idle", "-o", "%N")
    until(lambda: len(cluster.run(*idle, check=False).split()) == len(cluster.nodes), "all nodes are idle again")
