"""A run that stands still on a real Slurm: its ranks are asked before anything ends it, and one of them is named."""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from diagnoser.adapters.sql.store import open_store
from diagnoser.model import AttemptKey, EvidenceRequest, RequestReason
from tests.environments import TORCH
from tests.integration.slurm.cluster import Cluster, until
from tests.integration.slurm.conftest import NAME, Site, site
from tests.integration.slurm.test_node_queries import executable

pytestmark = pytest.mark.xdist_group("slurm")

RANKS, ASLEEP = 4, 2
TRAINER = f"""
import os, time
RANK = int(os.environ["SLURM_PROCID"])

def all_reduce(seconds):
    time.sleep(seconds)

def load_batch(seconds):
    time.sleep(seconds)

for step in range(1, 21 if RANK == 0 else 2):
    print(f"rank {{RANK}}: step {{step}}/1000 loss {{3 - step / 100:.3f}}", flush=True)
    time.sleep(0.3)
load_batch(600) if RANK == {ASLEEP} else all_reduce(600)
"""
NCCLRAS = """#!/bin/sh
# In place of NCCL's own: there are no GPUs here.
echo "RAS: Job summary: 1 communicator, asked by $(id -un)"
"""


def stuck_job(cluster: Cluster) -> str:
    """A job of four ranks on two nodes, one of which sleeps; as soon as all have begun."""
    trainer = cluster.folder / "jobs" / "trainer.py"
    trainer.write_text(TRAINER)
    script = f"#!/bin/bash\nsrun --ntasks={RANKS} --ntasks-per-node=2 python3 {trainer}\n"
    job = cluster.submit(script, "--nodes=2", "--ntasks-per-node=2")
    until(lambda: cluster.log(job).count("step 1/") == RANKS, "all ranks have begun")
    return job


def known(lab: Site, path: str) -> bool:
    """Whether its launch has begun, for the service."""
    answer = lab.client.get(f"/api/v1{path}")
    return answer.status_code == 200 and bool(answer.json()["attempts"])


def hung(lab: Site, path: str) -> dict[str, Any]:
    """The verdict on the first launch once it says so; {} until then."""
    diagnosis: dict[str, Any] = lab.get(path)["attempts"][0]["diagnosis"] or {}
    return diagnosis if diagnosis.get("outcome") == "hung" else {}


async def ask(lab: Site, job: str) -> None:
    """The service suspects that the run hangs."""
    key = AttemptKey(f"slurm-{NAME}-{job}")
    request = EvidenceRequest("0" * 26, key, NAME, time.time(), RequestReason.SILENCE, time.time())
    store = await open_store(f"sqlite:///{lab.service.folder}/test.db")
    try:
        assert await store.evidence.request(request)
    finally:
        await store.close()


async def result(lab: Site, job: str) -> str:
    store = await open_store(f"sqlite:///{lab.service.folder}/test.db")
    try:
        requests = await store.evidence.requests(AttemptKey(f"slurm-{NAME}-{job}"))
        return requests[0][1] if requests else ""
    finally:
        await store.close()


def collected(lab: Site, job: str) -> str:
    """What came of the request."""
    try:
        until(lambda: asyncio.run(result(lab, job)), "evidence is collected", 120.0)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{lab.agent.log()[-4000:]}") from None
    return asyncio.run(result(lab, job))


def test_the_rank_that_sleeps_is_named_by_the_stacks(cluster: Cluster, tmp_path: Path) -> None:
    """The service notices that the steps have ended, and asks; py-spy and ncclras run as the job's user, within the
    job, which goes on; the diagnosis says who holds up the others, and where."""
    if TORCH.missing:
        pytest.skip(TORCH.missing)  # py-spy is installed beside torch
    tools = cluster.folder / "tools"
    tools.mkdir()
    shutil.copy(TORCH.folder / "bin/py-spy", tools / "py-spy")
    (tools / "py-spy").chmod(0o755)
    executable(tools / "ncclras", NCCLRAS)
    variables = {"PATH": f"{tools}:{cluster.environment['PATH']}"}
    with site(cluster, tmp_path, "--collect-evidence", variables=variables) as lab:
        job = stuck_job(cluster)
        path = f"/jobs/slurm-{NAME}-{job}"
        until(lambda: known(lab, path), "the job is known")
        told = collected(lab, job)
        files = lab.get(f"{path}/attempts/1/evidence")
        assert {file["rank"] for file in files if file["kind"] == "stacks"} == set(range(RANKS)), told
        assert {file["provenance"] for file in files} == {"runtime"}
        assert any(file["kind"] == "ras" for file in files), told
        report = lab.get(f"{path}/attempts/1/hang")
        assert [suspect["rank"] for suspect in report["suspects"]] == [ASLEEP]
        until(lambda: hung(lab, path), "the run is diagnosed")
        root, nodes = hung(lab, path)["root_cause"], lab.get(path)["nodes"]
        assert (root["rank"], root["node"] in nodes, root["source"]) == (ASLEEP, True, "stack_dump")
        assert cluster.state(job)[0] == "RUNNING"
        until(lambda: "diagnoser" not in cluster.run("scontrol", "show", "step", job), "the collector has ended")


def test_dumps_of_a_job_are_read_from_the_operator_s_folder_only(cluster: Cluster, tmp_path: Path) -> None:
    """Of the job's user and launch; what a job makes a dump look like leads nowhere, and nothing runs on its nodes."""
    dumps = cluster.folder / "dumps"
    dumps.mkdir()
    dumps.chmod(0o1777)
    secret = cluster.folder / "secret"
    secret.write_text("Thread 7 (idle)\n    key (s.py:1)\n")
    with site(cluster, tmp_path, "--dumps", f"{dumps}/{{job}}/_dump_*") as lab:
        job = stuck_job(cluster)
        path = f"/jobs/slurm-{NAME}-{job}"
        until(lambda: known(lab, path), "the job is known")
        stacks = 'Thread 7 (idle): "MainThread"\n    all_reduce (t.py:4)\n'
        folder = dumps / job
        script = f"mkdir -p {folder} && cd {folder} && printf '{stacks}' > _dump_0 && mkfifo _dump_1"
        cluster.run("bash", "-c", f"{script} && ln -s {secret} _dump_2", user=cluster.job_user)
        shutil.copy(secret, folder / "_dump_3")
        asyncio.run(ask(lab, job))
        told = collected(lab, job)
        files = lab.get(f"{path}/attempts/1/evidence")
        owned = [0] if cluster.job_user else [0, 3]
        assert [file["rank"] for file in files] == owned, told
        assert told.count("not a plain file") == 2
        assert not cluster.job_user or "not a file of the job's user" in told
