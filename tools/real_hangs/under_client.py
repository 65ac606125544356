"""Hangs of ranks that torchrun starts below `client.pyz run`, with a real service and no agent."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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
    with tempfile.TemporaryDirectory() as scratch, service(Path(scratch)) as watching:
        watching.start()
        archive = Path(scratch) / "client.pyz"
        archive.write_bytes(built(watching.url).data)
        yield partial(_run, watching, archive)


def _run(watching: Service, archive: Path, case: HangCase, folder: Path) -> HangLabel:
    step_seconds = Random(case.seed).uniform(*STEP_SECONDS)
    runs.prepare(case, folder)
    program = " ".join(runs.command(case, folder, step_seconds))
    torchrun = [str(TORCH.folder / "bin/torchrun"), "--standalone", f"--nproc-per-node={case.ranks}", "--no-python"]
    client = [sys.executable, "-I", str(archive), "run", "--job", case.name, "--node", NODE, "--wait", "0", "--"]
    variables = os.environ | {
        "PATH": f"{TORCH.folder}/bin:{os.environ['PATH']}",
        "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/_dump_",
    }
    with (folder / "output.log").open("wb") as output:
        command = [*client, *torchrun, "bash", "-c", RANK + program]
        job = subprocess.Popen(command, env=variables, stdout=output, stderr=output, start_new_session=True)
    try:
        label = runs.collect(case, folder, step_seconds, lambda rank: NODE)
        _verdict(watching, case, folder).write(folder)
        return label
    finally:
        for pid in folder.glob("pid_*"):  # torchrun gives each rank a session of its own
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def _verdict(watching: Service, case: HangCase, folder: Path) -> ServiceVerdict:
    """The first that names the culprit, else the last there is."""
    last_line, http = (folder / "output.log").stat().st_mtime, watching.client
    assert http is not None

    def current() -> dict[str, Any]:
        answer = http.get("/api/v1/diagnoses", params={"job": case.name}).json()
        return dict(next(iter(answer["items"]), {}))

    with suppress(AssertionError):
        until(
            lambda: (current().get("root_cause") or {}).get("rank") == case.culprit,
            "the culprit is named",
            last_line + VERDICT_SECONDS - time.time(),
        )
    diagnosis, seconds = current(), time.time() - last_line
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
