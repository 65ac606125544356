"""The whole loop on a real Slurm of four nodes, all on this machine.

A job prints that its node is broken, and fails: the node stays, for the text of a job drains nothing. Then another
one fails, and the node's own log says so, too: the node is drained, and the job runs elsewhere.

make demo-slurm           keeps serving, so that the page can be looked at, until Ctrl-C
make demo-slurm EXIT=1    ends after the loop
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.e2e.service import service
from tests.integration.slurm import cluster as slurm

NAME = "demo"
MCE = "mce: [Hardware Error]: Machine check events logged"
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
console = Console(width=110 if not sys.stdout.isatty() else None)
begun = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exit", action="store_true", help="end after the loop")
    args = parser.parse_args()
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
                agent.terminate()
                agent.wait(timeout=20)


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
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(command, env=cluster.environment, stdout=log, stderr=log)
    slurm.until(lambda: b"agent_started" in (folder / "agent.log").read_bytes(), "the agent looks")
    tell("the agent watches the cluster")
    return agent


def printed_only(cluster: slurm.Cluster, client: httpx.Client) -> None:
    job = cluster.submit(TRAINING, "--nodes=2", "--ntasks-per-node=1", "--job-name=llm-7b")
    slurm.until(lambda: cluster.state(job)[0] == "FAILED", "the job fails")
    tell(f"job {job} has [red]failed[/red], and has printed a kernel line about {node_of(cluster, job)}")
    plan = wait_for(lambda: plan_in(client, job, "waiting"))
    missing = next(change["why"] for change in plan["history"] if "needs" in change["why"])
    tell(f"[bold]no node is drained[/bold]: {missing}")
    tell("the job is held, and the plan waits for a person, who says no to it: the nodes are well")
    client.post(f"/api/v1/plans/{plan['id']}/refuse", json={"by": "demo"}).raise_for_status()
    slurm.until(lambda: cluster.state(job)[0] == "COMPLETED", "the job is complete")
    tell("it was launched again on the same nodes, and is complete")


def node_of(cluster: slurm.Cluster, job: str) -> str:
    """The node whose name the job's script prints."""
    return cluster.run("scontrol", "show", "job", job).partition("BatchHost=")[2].split()[0]


def output_of(cluster: slurm.Cluster, job: str) -> bytes:
    path = Path(cluster.run("scontrol", "show", "job", job).partition("StdOut=")[2].split()[0])
    return path.read_bytes() if path.exists() else b""


def loop(cluster: slurm.Cluster, client: httpx.Client) -> None:
    job = cluster.submit(TRAINING, "--nodes=2", "--ntasks-per-node=1", "--job-name=vision-2b")
    slurm.until(lambda: cluster.state(job)[0] == "RUNNING", "the job runs")
    tell(f"job {job} trains on {cluster.state(job)[1]}")
    broken = node_of(cluster, job)
    slurm.until(lambda: b"step 8" in output_of(cluster, job), "the job has trained")
    query = {"source": "kernel", "cluster": NAME, "node": broken}
    client.post("/api/v1/logs", params=query, content=MCE, headers={"content-type": "text/plain"}).raise_for_status()
    tell(f"the kernel log of {broken} says: {MCE}")
    slurm.until(lambda: cluster.state(job)[0] == "FAILED", "the job fails")
    failed = time.monotonic()
    tell(f"job {job} has [red]failed[/red]")
    plan = wait_for(lambda: plan_in(client, job, "reached", "not_reached"))
    verdict = client.get(f"/api/v1/diagnoses/{plan['diagnosis']}").json()
    tell(f"[bold]{verdict['type']}[/bold] on {plan['nodes'][0]}: {verdict['root_cause']['text'][:70]}")
    for step in plan["steps"]:
        tell(f"  $ {step['command']}  -> exit {step['exit_code']}")
    slurm.until(lambda: cluster.state(job)[0] == "RUNNING", "the job runs again")
    tell(
        f"[green]it runs again[/green] on {cluster.state(job)[1]}, {time.monotonic() - failed:.1f} s after the failure"
    )
    slurm.until(lambda: cluster.state(job)[0] == "COMPLETED", "the job is complete")
    tell("it is complete; the nodes:")
    console.print(cluster.run("sinfo", "-N", "-o", "%N %T %E"), highlight=False)
    subprocess.run(
        [Path(sys.executable).with_name("diagnoser"), "agent", "slurm-resume", plan["nodes"][0]],
        env=cluster.environment,
        check=True,
    )


def plan_in(client: httpx.Client, job: str, *states: str) -> dict[str, Any] | None:
    plans = client.get("/api/v1/plans", params={"job": f"slurm-{NAME}-{job}"}).json()["items"]
    return next((one for one in plans if one["state"] in states), None)


def wait_for(look: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    while (found := look()) is None:
        time.sleep(0.1)
    return found


def tell(text: str) -> None:
    console.print(f"[dim]{time.monotonic() - begun:5.1f} s[/dim]  {text}", highlight=False)


if __name__ == "__main__":
    main()
