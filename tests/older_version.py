"""The version before this one, taken from Git: its service, its client, and its agent on a scheduler in memory."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMIT = "d3f0e5819266204969aaccd0fc273286ac6d546f"
"""That 0.1.0 was cut at: the last one before the work on 0.2.0, and of schema 0033."""
VERSION = "0.1.0"
AGENT = """
import asyncio, sys
from pathlib import Path
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.runtime import AgentOptions, run_agent
from tests.unit.memory_cluster import MemoryCluster, MemoryJob, MemoryScheduler, MemorySource

name, *lines = Path(sys.argv[2]).read_text().splitlines()
nodes = {node: NodeRecord(node) for node in ("n1", "n2", "n3")}
scheduler = MemoryScheduler({name: MemoryJob(name, ("n1", "n2"), state="failed", log=tuple(lines))}, nodes)

def build(client, state):
    return MemoryCluster(scheduler), MemorySource(client, scheduler, state)

asyncio.run(run_agent(AgentOptions(sys.argv[1], "lab", poll=0.3, state=Path(sys.argv[2]).parent), "memory", build))
"""
"""Arguments: address of the service; a file with the name of a job that has failed, and what it printed."""


def missing() -> str:
    """Why the older version cannot be had; "" when it can."""
    found = subprocess.run(["git", "-C", str(ROOT), "cat-file", "-e", COMMIT], capture_output=True, check=False)
    return f"{VERSION} is not in this clone: git fetch --unshallow" if found.returncode else ""


def checkout(folder: Path) -> Path:
    """Write its files to a folder."""
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", COMMIT], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="tar")
    return folder


def start_agent(code: Path, service: str, job: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(code)}
    with job.with_name("agent.log").open("ab") as log:
        command = [sys.executable, "-c", AGENT, service, str(job)]
        return subprocess.Popen(command, cwd=code, env=environment, stdout=log, stderr=log)
