"""The whole loop on a real Slurm of four nodes, all on this machine.

A job prints that its node is broken, and fails: the node stays, for the text of a job drains nothing. Then another
one fails, and the node's own log says so, too: the agent asks the node itself, the node is drained, and the job runs
elsewhere. No machine is broken here: dmesg is a double that prints what the kernel of a broken node says.

make demo-slurm           keeps serving, so that the page can be looked at, until Ctrl-C
make demo-slurm EXIT=1    ends after the loop
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from waits import console, end_on_sigterm, stop
from waits import until as wait_until

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.e2e.service import service
from tests.integration.slurm import cluster as slurm

NAME = "demo"
MCE = "mce: Uncorrected hardware memory error in user-access at 7f2c1000"
WAIT_SECONDS = 300
"""Longest wait for one thing, also on a machine that does much else."""
DMESG = """#!/bin/sh
# In place of the kernel's log of this node: what the demo says that it holds.
cat {folder}/kernel-$SLURMD_NODENAME.log
"""
TRAINING = f"""#!/bin/bash
echo "launch ${{SLURM_RESTART_COUNT:-0}} on $SLURM_JOB_NODELIST"
for step in $(seq 1 8); do echo "step $step loss 2.$((90 - step))"; sleep 0.3; done
if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then
  sleep 2
  echo "$SLURMD_NODENAME kernel: {MCE}"
  echo "RuntimeError: CUDA error: uncorrectable ECC error encountered"
  exit 1
fi
echo "Training completed"
"""
begun = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exit", action="store_true", help="end after the loop")
    args = parser.parse_args()
    end_on_sigterm()
    tell("starting a Slurm of four nodes (a minute)")
    if why := slurm.missing():
        raise SystemExit(f"This needs Slurm. {why}")
    with tempfile.TemporaryDirectory(prefix="diagnoser-demo-") as folder, slurm.running(NAME, 4) as cluster:
        tell(f"Slurm runs with {', '.join(cluster.nodes)} (its files: {cluster.folder})")
        with service(Path(folder), DIAGNOSER_RECOVERY_MODE="act", DIAGNOSER_EXIT_GRACE_SECONDS="1") as served:
            client = served.start()
            tell(f"the service runs at {served.url}")
            agent = start_agent(cluster, served.url, Path(folder))
            try:
                printed_only(cluster, client)
                loop(cluster, client)
                if not args.exit:
                    tell(f"look at {served.url} until Ctrl-C")
                    agent.wait()
            except KeyboardInterrupt:
                tell("stopping")
            finally:
                stop(agent)


def start_agent(cluster: slurm.Cluster, url: str, folder: Path) -> subprocess.Popen[bytes]:
    program = Path(sys.executable).with_name("diagnoser")
    command = [
        program,
        "agent",
        "slurm",
        "--server",
        url,
        "--cluster",
        NAME,
        "--state",
        folder / "agent",
        "--poll",
        "1",
    ]
    tools = cluster.folder / "tools"
    tools.mkdir()
    (tools / "dmesg").write_text(DMESG.format(folder=cluster.folder))
    (tools / "dmesg").chmod(0o755)
    environment = {**cluster.environment, "PATH": f"{tools}:{cluster.environment.get('PATH', os.defpath)}"}
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        until(lambda: b"agent_started" in (folder / "agent.log").read_bytes(), "the agent looks")
    except BaseException:
        stop(agent)
        raise
    tell("the agent watches the cluster")
    return agent


def printed_only(cluster: slurm.Cluster, client: httpx.Client) -> None:
    job = cluster.submit(TRAINING, "--nodes=2", "--ntasks-per-node=1", "--job-name=llm-7b")
    until(lambda: cluster.state(job)[0] == "FAILED", "the job fails")
    tell(f"job {job} has [red]failed[/red], and has printed a kernel line about {node_of(cluster, job)}")
    plan = wait_for_plan(client, job, "waiting")
    missing = next(change["why"] for change in plan["history"] if "needs" in change["why"])
    tell(f"[bold]no node is drained[/bold]: {missing}")
    tell("the job is held, and the plan waits for a person, who says no to it: the nodes are well")
    client.post(f"/api/v1/plans/{plan['id']}/refuse", json={"by": "demo"}).raise_for_status()
    until(lambda: cluster.state(job)[0] == "COMPLETED", "the job is complete")
    tell("it was launched again on the same nodes, and is complete")


def node_of(cluster: slurm.Cluster, job: str) -> str:
    """The node whose name the job's script prints."""
    return cluster.run("scontrol", "show", "job", job).partition("BatchHost=")[2].split()[0]


def output_of(cluster: slurm.Cluster, job: str) -> bytes:
    path = Path(cluster.run("scontrol", "show", "job", job).partition("StdOut=")[2].split()[0])
    return path.read_bytes() if path.exists() else b""


def loop(cluster: slurm.Cluster, client: httpx.Client) -> None:
    job = cluster.submit(TRAINING, "--nodes=2", "--ntasks-per-node=1", "--job-name=vision-2b")
    until(lambda: cluster.state(job)[0] == "RUNNING", "the job runs")
    tell(f"job {job} trains on {cluster.state(job)[1]}")
    broken = node_of(cluster, job)
    until(lambda: b"step 8" in output_of(cluster, job), "the job has trained")
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace(".", ",")
    (cluster.folder / f"kernel-{broken}.log").write_text(f"{now} {MCE}\n")
    query = {"source": "kernel", "cluster": NAME, "node": broken}
    client.post("/api/v1/logs", params=query, content=MCE, headers={"content-type": "text/plain"}).raise_for_status()
    tell(f"the kernel log of {broken} says: {MCE}")
    until(lambda: cluster.state(job)[0] == "FAILED", "the job fails")
    failed = time.monotonic()
    tell(f"job {job} has [red]failed[/red]")
    plan = wait_for_plan(client, job, "reached")
    verdict = client.get(f"/api/v1/diagnoses/{plan['diagnosis']}").json()
    tell(f"[bold]{verdict['type']}[/bold] on {plan['nodes'][0]}: {verdict['root_cause']['text'][:70]}")
    for step in plan["steps"]:
        tell(f"  $ {step['command']}  -> exit {step['exit_code']}")
    until(lambda: cluster.state(job)[0] == "RUNNING", "the job runs again")
    tell(
        f"[green]it runs again[/green] on {cluster.state(job)[1]}, {time.monotonic() - failed:.1f} s after the failure"
    )
    until(lambda: cluster.state(job)[0] == "COMPLETED", "the job is complete")
    tell("it is complete; the nodes:")
    console.print(cluster.run("sinfo", "-N", "-o", "%N %T %E"), highlight=False)
    subprocess.run(
        [Path(sys.executable).with_name("diagnoser"), "agent", "slurm-resume", plan["nodes"][0]],
        env=cluster.environment,
        check=True,
    )


def wait_for_plan(client: httpx.Client, job: str, state: str) -> dict[str, Any]:
    """The job's plan once it is in this state. Ends the demo where it comes to another end, or takes too long."""
    latest: dict[str, Any] = {}

    def is_there() -> bool:
        plans = client.get("/api/v1/plans", params={"job": f"slurm-{NAME}-{job}"}).json()["items"]
        latest.update(plans[0] if plans else {})
        if latest.get("state") not in (state, None, "advised", "waiting", "sent"):
            raise SystemExit(f"the plan of job {job} is {latest['state']}: {latest['history'][-1]['why']}")
        return bool(latest.get("state") == state)

    until(is_there, f"the plan of job {job} is {state}")
    return latest


def until(holds: Callable[[], object], what: str) -> None:
    wait_until(holds, what, WAIT_SECONDS)


def tell(text: str) -> None:
    console.print(f"[dim]{time.monotonic() - begun:5.1f} s[/dim]  {text}", highlight=False)


if __name__ == "__main__":
    main()
