"""A week of failures of a synthetic site, replayed in minutes: which are closed without a person?

    python -m tools.bench.replay [FAILURES]

The real service gets them from the real agent, whose scheduler is in memory, once at the default policy and once at
``act``. Types are drawn by the GPU time that each cost in the paper (Table 3), the logs are labelled ones of that type
from ../shared/corpus. Machines of the first four types are broken: their kernel says so or they are down; those of the
next three are broken as well, and only a node check finds it. Limits of an hour or a day are those of the week.
"""

import asyncio
import json
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import yaml

from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.runtime import AgentOptions, run_agent
from diagnoser.agent.state_file import AgentState
from diagnoser.impact.closing import CLOSING_WORDS
from diagnoser.model.taxonomy import GPU_TIME_SHARE, FailureType
from tests.corpus import CORPUS
from tests.e2e.service import ROOT, service
from tests.unit.memory_cluster import PREFIX, MemoryCluster, MemoryJob, MemoryScheduler, MemorySource

FAILURES, NODES, NODES_OF_A_JOB, USERS, SEED = 100, 1000, 4, 25, 37
PACE, LAUNCH, PATIENCE = 0.5, 2.0, 300.0
"""Seconds between two failures, from a launch to its failure, and until the last plan has ended."""
DAYS, HOURS = 7, 7 * 24
BEFORE = "whole-site"
"""A job on all nodes, of before the week."""
_T = FailureType
KERNEL: Mapping[FailureType, str] = {
    _T.NVLINK_ERROR: "NVRM: Xid (PCI:0000:1b:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on "
    "link 3(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    _T.ECC_ERROR: "NVRM: Xid (PCI:0000:1b:00): 95, pid=4711, name=python, Uncontained: FBHUB. RST: Yes, D-RST: No",
    _T.NETWORK_ERROR: "mlx5_core 0000:5e:00.0 mlx5_0: Port: 1 Link DOWN",
}
FOUND_BY_CHECK = frozenset({_T.CUDA_ERROR, _T.NCCL_TIMEOUT_ERROR, _T.NCCL_REMOTE_ERROR})
_TEXT = {"content-type": "text/plain"}


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that is to fail. job: without digits: names that differ in digits only are one training run."""

    job: str
    type: FailureType
    log: tuple[str, ...]
    user: str


class PacedSource(MemorySource):
    """Looks now and then, as at a real scheduler."""

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def drawn(count: int, seed: int) -> list[Failure]:
    draw, logs = random.Random(seed), _logs()
    types = draw.choices(list(GPU_TIME_SHARE), list(GPU_TIME_SHARE.values()), k=count)
    return [
        Failure(f"run-{_letters(number)}", kind, draw.choice(logs[kind]), f"user-{number % USERS}")
        for number, kind in enumerate(types)
    ]


def _logs() -> Mapping[FailureType, Sequence[tuple[str, ...]]]:
    logs = defaultdict[FailureType, list[tuple[str, ...]]](list)
    for folder in (CORPUS / "dev", CORPUS / "real-dev"):
        for line in (folder / "labels.jsonl").read_text().splitlines():
            label = json.loads(line)
            if label["outcome"] in (None, "failed"):
                text = (folder / f"{label['id']}.log").read_text(errors="replace")
                logs[FailureType(label["type"])].append(tuple(text.split("\n")))
    return logs


def _letters(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def week_policy(folder: Path) -> Path:
    """Write the shipped policy with the limits of a week, for what a week would count in many hours."""
    policy = yaml.safe_load((ROOT / "rules" / "policy.yaml").read_text())
    ledger, breaker = policy["ledger"], policy["breaker"]
    ledger |= {name: ledger[name] * HOURS for name in ("requeues_per_hour", "tenant_requeues_per_hour")}
    share = breaker["share_per_day"] * DAYS
    breaker |= {"share_per_hour": share, "share_per_day": share, "most": breaker["most"] * DAYS}
    rules = folder / "rules"
    rules.mkdir()
    (rules / "policy.yaml").write_text(yaml.safe_dump(policy, sort_keys=False))
    return rules


async def fail(scheduler: MemoryScheduler, http: httpx.AsyncClient, failure: Failure) -> None:
    """Launch a job on healthy nodes, and let it fail."""
    busy = {node for job in scheduler.jobs.values() if job.state == "running" for node in job.nodes}
    idle = [
        node.name for node in scheduler.all_nodes.values() if node.up and not node.cordoned and node.name not in busy
    ]
    nodes = tuple(idle[:NODES_OF_A_JOB])
    job = MemoryJob(failure.job, nodes, log=failure.log, user=failure.user)
    scheduler.jobs[job.name] = job
    await asyncio.sleep(LAUNCH)
    broken = nodes[0]
    if failure.type in KERNEL:
        query = {"source": "kernel", "cluster": "lab", "node": broken}
        line = f"{KERNEL[failure.type]}\n"
        (await http.post("/api/v1/logs", params=query, content=line, headers=_TEXT)).raise_for_status()
    if failure.type is _T.NODE_FAILURE:
        scheduler.all_nodes[broken] = replace(scheduler.all_nodes[broken], up=False)
    if failure.type in FOUND_BY_CHECK or failure.type in KERNEL:
        scheduler.bad |= {broken}
    scheduler.jobs[job.name] = replace(job, state="failed")


async def replay(url: str, folder: Path, failures: Sequence[Failure]) -> dict[str, Any]:
    """The report of impact once no plan can move any more without a person."""
    nodes = {f"gpu-{number:03}": NodeRecord(f"gpu-{number:03}") for number in range(NODES)}
    before = MemoryJob(BEFORE, tuple(nodes), state="done")  # a site knows its nodes: shares of them may be taken out
    scheduler = MemoryScheduler({BEFORE: before}, nodes)

    def build(client: ApiClient, state: AgentState) -> tuple[MemoryCluster, MemorySource]:
        return MemoryCluster(scheduler), PacedSource(client, scheduler, state)

    agent = asyncio.create_task(run_agent(AgentOptions(url, "lab", poll=0.5, state=folder), "memory", build))
    async with httpx.AsyncClient(base_url=url, timeout=120) as http, asyncio.TaskGroup() as jobs:
        await asyncio.sleep(LAUNCH)
        for failure in failures:
            jobs.create_task(fail(scheduler, http, failure))
            await asyncio.sleep(PACE)
    async with httpx.AsyncClient(base_url=url, timeout=120) as http, asyncio.timeout(PATIENCE):
        await _settle(http, scheduler)
        report: dict[str, Any] = (await http.get("/api/v1/impact")).json()
    agent.cancel()
    await asyncio.gather(agent, return_exceptions=True)
    return report


async def _settle(http: httpx.AsyncClient, scheduler: MemoryScheduler) -> None:
    """Until every failed launch has a verdict, and no plan can move without a person."""
    jobs = [PREFIX + name for name in scheduler.jobs if name != BEFORE]
    while True:
        await asyncio.sleep(2.0)
        moving = (await http.get("/api/v1/plans", params={"state": "sent"})).json()["items"]
        answers = [(await http.get(f"/api/v1/jobs/{job}")).json() for job in jobs]
        if not moving and all(answer["attempts"][0]["diagnosis"] for answer in answers):
            return


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else FAILURES
    if not CORPUS.is_dir():
        raise SystemExit("needs the labelled logs at ../shared/corpus")
    failures = drawn(count, SEED)
    for mode in ("policy", "act"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            settings = {"DIAGNOSER_RULES_DIR": str(week_policy(folder)), "DIAGNOSER_RECOVERY_MODE": mode}
            with service(folder, **settings) as running:
                running.start()
                report = asyncio.run(replay(running.url, folder, failures))
        _show(mode, report)


def _show(mode: str, report: Mapping[str, Any]) -> None:
    print(f"{mode}: {report['share']['automatic']} of {report['recovery']['failures']}")  # noqa: T201
    failures = {cost["name"]: cost["failures"] for cost in report["cost_by_category"]}
    for group in report["by_category"]:
        print(f"  {group['name']}: {group['automatic']} of {failures[group['name']]}")  # noqa: T201
    for closing, words in CLOSING_WORDS.items():
        print(f"  {words}: {report['closings'][closing]}")  # noqa: T201


if __name__ == "__main__":
    main()
