"""A scheduler that is gone in the middle of an evaluation: people are alerted, and the run can be gone on with."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from diagnoser.model.evaluations import RunProgress, Suite
from tests import trial_runs
from tests.databases import sqlite_store
from tests.e2e.service import Service
from tests.integration.slurm.cluster import Cluster, until
from tests.ports import free_port
from tests.receiver import Receiver, running
from tests.trial_runs import BARE, check, completions

ROOT = Path(__file__).parents[3]


def test_a_controller_that_does_not_answer_is_alerted_of_and_the_run_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    """The command ends and says how to go on; after that no sample is lost, and none was inferred twice."""
    suite_file = tmp_path / "suite.yaml"
    suite_file.write_text(_text(tmp_path, trial_runs.suite(tmp_path, (40, 30), 0.1)))
    words = [sys.executable, "-m", "diagnoser", "evaluations", "run", "--slurm", "--gres", "", "--node", "gpu-01=1"]
    words += ["--weights", "", "--folder", str(tmp_path / "runs"), "--json", "--patience", "0.1"]
    receiver = Receiver()
    settings = {"DIAGNOSER_ALERTMANAGER_URL": f"http://127.0.0.1:{receiver.server_port}"}
    service = Service(tmp_path, free_port(), settings)
    with running(receiver):
        service.start()
        try:
            own = {"DIAGNOSER_DATABASE_URL": f"sqlite:///{tmp_path}/test.db", "PYTHONPATH": str(ROOT)}
            environment = cluster.environment | own
            run = [*words, str(suite_file), "--server", service.url]
            with subprocess.Popen(run, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                until(lambda: process.poll() or list(tmp_path.glob("runs/*/batches/*/started")), "a batch runs")
                cluster.end("slurmctld")  # politely: else it forgets the job, and drains the node that runs it
                _, errors = process.communicate(timeout=180)
            (folder,) = (tmp_path / "runs").iterdir()
            assert process.returncode and f"evaluations run --resume {folder.name}" in errors.decode()
            until(lambda: _alerts(receiver, f"evaluation-{folder.name}"), "people are alerted")
        finally:
            service.stop()
        cluster.start_controller()
        until(lambda: cluster.run("sinfo", "-h", check=False), "the controller answers")
        subprocess.run([*words, "--resume", folder.name], env=environment, check=True, timeout=600)
    check(asyncio.run(_progress(tmp_path, folder.name)))
    assert set(completions(tmp_path).values()) == {1}


def _text(folder: Path, suite: Suite) -> str:
    """The suite as a file, with programs that are files: their braces would be placeholders."""
    tasks = []
    for task in suite.tasks:
        known = {"sample_seconds": task.sample_seconds, "score_seconds": task.score_seconds}
        commands = {"infer": _command(folder, "infer", task.infer), "score": _command(folder, "score", task.score)}
        tasks.append({"name": task.name.replace("/", "-"), "samples": task.samples, **known, **commands})
    engine = {name: tasks[0][name] for name in ("infer", "score")}
    return yaml.safe_dump({"name": "small", "checkpoints": list(suite.checkpoints), "engine": engine, "tasks": tasks})


def _command(folder: Path, name: str, words: Sequence[str]) -> list[str]:
    before, code, given = words[: len(BARE)], words[len(BARE) + 1], words[len(BARE) + 2 :]
    (folder / f"{name}.py").write_text(code)
    return [*before, str(folder / f"{name}.py"), *given]


def _alerts(receiver: Receiver, job: str) -> list[object]:
    """Alerts of Alertmanager that name the job."""
    return [alert for _, body in receiver.requests for alert in json.loads(body) if job in json.dumps(alert)]


async def _progress(folder: Path, run: str) -> RunProgress:
    store = await sqlite_store(folder / "test.db")
    progress = await store.evaluations.progress(run)
    await store.close()
    assert progress is not None
    return progress
