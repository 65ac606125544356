"""Suspected nodes are asked on a real Slurm. nvidia-smi is a double: there are no GPUs here; all else is real."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnoser.adapters.sql.store import open_store
from diagnoser.model import Mode, Plan, PlanReason, PlanState, TransitionResult, UncordonState
from diagnoser.model.taxonomy import Action
from tests.integration.slurm.cluster import Cluster, until
from tests.integration.slurm.conftest import NAME, Site, site

pytestmark = pytest.mark.xdist_group("slurm")

SUSPECT = "gpu-02"
BLAMED = f"""#!/bin/bash
sleep 1.5
if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then
  echo "Nov 22 01:00:00 {SUSPECT} kernel: NVRM: Xid (PCI:0000:3b:00): 95, pid=7, name=python, Uncontained: FBHUB."
  echo "RuntimeError: CUDA error: uncorrectable ECC error encountered"
  exit 1
fi
echo "Training completed"
"""
NVIDIA_SMI = """#!/bin/sh
# Says what the driver of a node with one GPU says.
case "$*" in
-L) echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1d0c)" ;;
*ecc.errors*) [ "$SLURMD_NODENAME" = "{bad}" ] && echo "0, 00000000:3B:00.0, 3" || echo "0, 00000000:3B:00.0, 0" ;;
*remapped_rows*) echo "00000000:3B:00.0, 0, 0, 0, 0" ;;
*) echo "Field is not a valid field to query."; exit 2 ;;
esac
"""
SOUND = """#!/bin/sh
# In place of the all-gather: every pair passes.
echo '{"ok": true, "seconds": 1.0}'
"""


def executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@contextmanager
def suspected(cluster: Cluster, folder: Path, bad: str, *options: str) -> Iterator[tuple[Site, str]]:
    """(site, job) once the job's own output has blamed a node. bad: whose GPU has errors."""
    tools = cluster.folder / "tools"
    tools.mkdir()
    executable(tools / "nvidia-smi", NVIDIA_SMI.format(bad=bad))
    pairs = executable(tools / "pairs.sh", SOUND)
    variables = {"PATH": f"{tools}:{cluster.environment['PATH']}"}
    check = ("--check", pairs, *options)
    with site(cluster, folder, *check, variables=variables, DIAGNOSER_RECOVERY_MODE="observe") as lab:
        job = cluster.submit(BLAMED, "--nodes=4", "--ntasks-per-node=1")
        until(lambda: lab.plans(job), "there is a plan")
        asyncio.run(send_to_check(lab, lab.plans(job)[0]["id"]))
        yield lab, job


async def send_to_check(lab: Site, plan: str) -> None:
    """Text of the job is no proof: its plan becomes a check of the suspected node."""

    def update(plan: Plan) -> TransitionResult:
        fields: dict[str, Any] = {
            "action": Action.CHECK_AND_RESUBMIT,
            "nodes": (),
            "state": PlanState.SENT,
            "mode": Mode.ACT,
        }
        blamed = replace(plan, suspects=(SUSPECT,), unproven_suspects=(SUSPECT,))
        return TransitionResult(replace(blamed, **fields, reason=PlanReason.UNPROVEN))

    store = await open_store(f"sqlite:///{lab.service.folder}/test.db")
    try:
        await store.plans.change(plan, update)
    finally:
        await store.close()


def waiting_plan(lab: Site, job: str) -> dict[str, Any]:
    until(lambda: lab.plans(job)[0]["state"] == "waiting", "the plan waits for a person")
    return lab.plans(job)[0]


def states(plan: dict[str, Any]) -> dict[str, str]:
    return {query["query"]: query["state"] for query in plan["queries"] if query["node"] == SUSPECT}


def ran(plan: dict[str, Any]) -> list[str]:
    """What was run on nodes, by the name of its job."""
    words = [step["command"].split() for step in plan["steps"]]
    return [line[1].removeprefix("--job-name=diagnoser-") for line in words if line[0] == "srun"]


def test_a_node_whose_gpu_counts_errors_is_drained_without_pairs(cluster: Cluster, tmp_path: Path) -> None:
    """Its own answer is the proof on the plan; the job runs again elsewhere, and the reservation is gone."""
    with suspected(cluster, tmp_path, SUSPECT) as (lab, job):
        plan = lab.ended_plan(job)
        assert (plan["state"], plan["drained"]) == ("reached", [SUSPECT]), plan
        (proof,) = plan["proofs"]
        assert (proof["node"], proof["kind"], proof["source"]) == (SUSPECT, "query", "gpu_ecc")
        assert proof["text"] == "0, 00000000:3B:00.0, 3"
        assert ran(plan) == ["ask"]
        assert states(plan)["gpu_present"] == states(plan)["gpu_row_remap"] == "proves_nothing"
        assert states(plan)["gpu_recovery_action"] == "not_available"
        until(lambda: cluster.state(job)[0] == "COMPLETED", "the job is complete")
        assert cluster.run("scontrol", "show", "reservation") == "No reservations in the system"


def test_a_node_that_nothing_proves_waits_for_a_person(cluster: Cluster, tmp_path: Path) -> None:
    """Clean answers, then pairs that pass: no node is drained, and the job runs again once a person has refused."""
    with suspected(cluster, tmp_path, "none") as (lab, job):
        until(lambda: lab.plans(job)[0]["reason"] == "unproven" and lab.plans(job)[0]["state"] == "waiting", "waits")
        plan = lab.plans(job)[0]
        assert (plan["nodes"], plan["proofs"], plan["drained"]) == ([SUSPECT], [], [])
        assert "proves" not in states(plan).values()
        assert states(plan)["gpu_ecc"] == "proves_nothing"
        assert ran(plan) == ["ask", "check", "check"]
        assert cluster.state(job)[0] == "PENDING"
        lab.client.post(f"/api/v1/plans/{plan['id']}/refuse", json={"by": "ida"})
        until(lambda: cluster.state(job)[0] == "COMPLETED", "the job is complete")
        assert not cluster.node(SUSPECT)[0].startswith("drain")


def test_a_person_s_yes_takes_the_unproven_node_out(cluster: Cluster, tmp_path: Path) -> None:
    """After the check has proven nothing; the nodes are not checked anew."""
    with suspected(cluster, tmp_path, "none") as (lab, job):
        lab.client.post(f"/api/v1/plans/{waiting_plan(lab, job)['id']}/approve", json={"by": "ida"})
        plan = lab.ended_plan(job)
        assert (plan["state"], plan["drained"]) == ("reached", [SUSPECT]), plan
        assert ran(plan) == ["ask", "check", "check"]


def give_back(lab: Site, node: str) -> dict[str, Any]:
    """The request to give a node back, once the agent has answered it."""
    path = f"/nodes/{node}/uncordon"
    assert lab.client.post(f"/api/v1{path}", json={"cluster": NAME}).status_code == 200

    def asked() -> dict[str, Any]:
        newest: dict[str, Any] = lab.get(f"{path}s", cluster=NAME)[0]
        return newest

    until(lambda: asked()["state"] != "open", "the agent has answered")
    return asked()


def test_a_node_whose_fault_is_still_there_never_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    """An agent that is killed while it checks leaves it out of service; once it is repaired it is given back."""
    with suspected(cluster, tmp_path, SUSPECT) as (lab, job):
        assert lab.ended_plan(job)["drained"] == [SUSPECT]
        until(lambda: cluster.node(SUSPECT)[0] == "drained", "nothing runs there")
        for _ in range(2):
            answer = give_back(lab, SUSPECT)
            assert answer["state"] == "refused", answer
            assert f"{SUSPECT} shows the fault still (gpu_ecc): 0, 00000000:3B:00.0, 3" in answer["result"]
            assert cluster.node(SUSPECT)[0] == "drained"
            assert cluster.run("scontrol", "show", "reservation") == "No reservations in the system"

        tool = cluster.folder / "tools" / "nvidia-smi"
        executable(tool, "#!/bin/sh\nsleep 60\n")
        lab.client.post(f"/api/v1/nodes/{SUSPECT}/uncordon", json={"cluster": NAME})
        until(lambda: "diagnoser-ask" in cluster.run("squeue", "-h", "-o", "%j"), "it is asked")
        lab.agent.end(signal.SIGKILL)
        cluster.run("scancel", "--name=diagnoser-ask", "--full")
        late = cluster.submit("#!/bin/sh\ntrue\n", f"--nodelist={SUSPECT}")
        time.sleep(5.0)
        assert cluster.state(late)[0] == "PENDING"

        executable(tool, NVIDIA_SMI.format(bad="none"))
        asyncio.run(forget_requests(lab))
        lab.agent.start(PATH=f"{tool.parent}:{cluster.environment['PATH']}")
        answer = give_back(lab, SUSPECT)
        assert answer["state"] == "done", answer
        assert "gpu_ecc" in answer["result"] and "the node check passed on it alone" in answer["result"]
        until(lambda: cluster.state(late)[0] == "COMPLETED", "it takes jobs again")
        until(lambda: lab.get(f"/nodes/{SUSPECT}/events", cluster=NAME)[0]["by"] == "diagnoser", "it is on probation")


async def forget_requests(lab: Site) -> None:
    """As ten minutes later."""
    store = await open_store(f"sqlite:///{lab.service.folder}/test.db")
    try:
        for request in await store.node_facts.uncordons(NAME, SUSPECT, 9):
            await store.node_facts.finish_uncordon(request.id, NAME, 0.0, UncordonState.REFUSED, "too late")
    finally:
        await store.close()


def test_the_site_s_own_script_is_asked_as_well(cluster: Cluster, tmp_path: Path) -> None:
    """It runs on the node; its exit code is the proof, and its first line says why."""
    words = f'#!/bin/sh\n[ "$SLURMD_NODENAME" = {SUSPECT} ] && echo "ib0 at 2x" && exit 1\n'
    script = executable(cluster.folder / "nhc.sh", words)
    with suspected(cluster, tmp_path, "none", "--node-check-script", script) as (lab, job):
        plan = lab.ended_plan(job)
        assert plan["drained"] == [SUSPECT], plan
        assert [(proof["source"], proof["text"]) for proof in plan["proofs"]] == [("site_check", "ib0 at 2x")]
        assert lab.get(f"/jobs/slurm-{NAME}-{job}")["attempts"]


def test_a_person_asks_nodes_by_their_names(cluster: Cluster) -> None:
    """`check --nodes` runs all queries there by srun, names each node's fault, and leaves the cluster as it was."""
    tools = cluster.folder / "tools"
    tools.mkdir()
    executable(tools / "nvidia-smi", NVIDIA_SMI.format(bad=SUSPECT))
    environment = {**cluster.environment, "PATH": f"{tools}:{cluster.environment['PATH']}"}
    program = str(Path(sys.executable).with_name("diagnoser"))
    expected = {
        ("gpu-01",): (0, ["gpu-01: no fault by gpu_present, gpu_ecc"]),
        ("gpu-01", SUSPECT): (1, ["gpu-01: no fault", f"{SUSPECT}: FAULT, gpu_ecc: 0, 00000000:3B:00.0, 3"]),
        ("gpu-77",): (0, ["gpu-77: nothing could be asked"]),
    }
    for nodes, (status, words) in expected.items():
        options = [word for node in nodes for word in ("--nodes", node)]
        command = [program, "check", *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        for line, expects in zip(done.stdout.splitlines(), words, strict=True):
            assert expects in line
    assert cluster.run("scontrol", "show", "reservation") == "No reservations in the system"
    until(cluster.is_idle, "all nodes are idle")
