"""Hangs of ranks that torchrun starts below `client.pyz run`, with a real service and no agent."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from diagnoser.web.api.client_archive import built
from tests.e2e.service import Service, service, until
from tests.environments import TORCH
from tools.real_hangs import runs
from tools.real_hangs.runs import HangCase, HangLabel, Launcher
from tools.real_hangs.score import ServiceVerdict

NODE = "gpu-001"
STEP_SECONDS = 0.4, 1.9
VERDICT_SECONDS = 90.0
RANK = "SLURM_PROCID=$RANK exec "
"""Makes a process that torchrun starts one rank of the trainer."""


@contextmanager
def launcher() -> Iterator[Launcher]:
    with tempfile.TemporaryDirectory() as scratch, watching(Path(scratch)) as (watcher, archive):
        yield partial(_run, watcher, archive)


@contextmanager
def watching(scratch: Path) -> Iterator[tuple[Service, Path]]:
    """A service, and the client that it serves."""
    with service(scratch) as watcher:
        watcher.start()
        archive = scratch / "client.pyz"
        archive.write_bytes(built(watcher.url).data)
        yield watcher, archive


@contextmanager
def job(archive: Path, folder: Path, trainer: list[str], ranks: int, variables: Mapping[str, str]) -> Iterator[None]:
    """Ranks of the trainer below torchrun and the client, until the end of the context. folder: theirs, and the job's
    name."""
    torchrun = [str(TORCH.folder / "bin/torchrun"), "--standalone", f"--nproc-per-node={ranks}", "--no-python"]
    client = [sys.executable, "-I", str(archive), "run", "--job", folder.name, "--node", NODE, "--wait", "0", "--"]
    environment = {**os.environ, "PATH": f"{TORCH.folder}/bin:{os.environ['PATH']}", **variables}
    with (folder / "output.log").open("wb") as output:
        command = [*client, *torchrun, "bash", "-c", RANK + " ".join(trainer)]
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield
    finally:
        for pid in folder.glob("pid_*"):  # torchrun gives each rank a session of its own
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _run(watcher: Service, archive: Path, case: HangCase, folder: Path) -> HangLabel:
    step_seconds = Random(case.seed).uniform(*STEP_SECONDS)
    runs.prepare(case, folder)
    trainer = runs.command(case, folder, step_seconds)
    dumps = {"TORCH_FR_DUMP_TEMP_FILE": f"{folder}/_dump_"}
    with job(archive, folder, trainer, case.ranks, dumps):
        label = runs.collect(case, folder, step_seconds, lambda rank: NODE)
        _verdict(watcher, case, folder).write(folder)
        return label


def current(watcher: Service, name: str) -> dict[str, Any]:
    """The newest diagnosis of a job, empty where there is none."""
    assert watcher.client is not None
    answer = watcher.client.get("/api/v1/diagnoses", params={"job": name}).json()
    return dict(next(iter(answer["items"]), {}))


def _verdict(watcher: Service, case: HangCase, folder: Path) -> ServiceVerdict:
    """The first that names the culprit, else the last there is."""
    last_line = (folder / "output.log").stat().st_mtime
    with suppress(AssertionError):
        until(
            lambda: (current(watcher, case.name).get("root_cause") or {}).get("rank") == case.culprit,
            "the culprit is named",
            last_line + VERDICT_SECONDS - time.time(),
        )
    diagnosis, seconds = current(watcher, case.name), time.time() - last_line
    root, advice = diagnosis.get("root_cause") or {}, diagnosis.get("recovery") or {}
    return ServiceVerdict(
        outcome=diagnosis.get("outcome", ""),
        type=diagnosis.get("type", ""),
        rank=root.get("rank"),
        node=root.get("node"),
        seconds=round(seconds, 1),
        plans=[str(advice.get("action"))],
        drained=[],
    )
