"""`evaluations run`, `status`, `score` and `cancel`, as a person runs them."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import preloaded
from tests.trial_runs import INFER, SCORE


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Two tasks of a tiny model."""
    (tmp_path / "weights.bin").write_text("weights-1")
    (tmp_path / "infer.py").write_text(INFER)
    (tmp_path / "score.py").write_text(SCORE)
    words = [sys.executable, "-I", "-S", "infer.py", "{checkpoint}", "{task}", "{first}", "{last}", "{samples}"]
    given = {
        "name": "nightly",
        "checkpoints": [str(tmp_path / "weights.bin")],
        "engine": {
            "infer": [*words, "0.01", str(tmp_path / "done.txt")],
            "score": [sys.executable, "-I", "-S", "score.py", "{samples}", "{scores}"],
        },
        "tasks": [{"name": "code", "samples": 9}, {"name": "maths", "samples": 4}],
    }
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": "/no/such/file", "DIAGNOSER_DATABASE_URL": f"sqlite:///{folder}/test.db"}


def call(folder: Path, *given: object, code: int = 0) -> str:
    done = preloaded.run(["evaluations", *given], environment(folder))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if not code else done.stdout + done.stderr


def run(folder: Path, *given: object, code: int = 0) -> Any:
    """What it prints is one JSON object, whatever is logged."""
    places = ("--folder", folder / "runs", "--weights", folder / "memory", "--node", "here=2", "--json")
    done = preloaded.run(["evaluations", "run", *given, *places], environment(folder))
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def begun(folder: Path, suite: Path) -> preloaded.Preloaded:
    """A run that has begun a batch."""
    words = ("evaluations", "run", str(suite), "--folder", str(folder / "runs"), "--weights", "", "--node", "here=1")
    started = preloaded.Preloaded(words, environment(folder), folder / "run.log")
    limit = time.monotonic() + 120
    while not list(folder.glob("runs/*/batches/*/started")):
        assert time.monotonic() < limit and started.poll() is None, (folder / "run.log").read_text()
        time.sleep(0.05)
    return started


def test_a_suite_is_run_looked_at_and_scored_again(tmp_path: Path, suite: Path) -> None:
    """Each score is there; scored again without a GPU, and with another scorer, the samples are the same."""
    done = run(tmp_path, suite)
    assert done["state"] == "ended" and done["samples"] == 13 and done["gpu_seconds"] > 0
    scores = {trial["task"]: trial["scores"] for trial in done["trials"]}
    assert scores == {
        "code": {"samples": 9, "distinct": 9, "sum": 36},
        "maths": {"samples": 4, "distinct": 4, "sum": 6},
    }
    assert "nightly" in call(tmp_path, "status") and "distinct 9" in call(tmp_path, "status", done["run"])
    before = (tmp_path / "done.txt").read_text()
    other = tmp_path / "other.yaml"
    (tmp_path / "other.py").write_text(SCORE.replace("sum(numbers)", "-sum(numbers)"))
    other.write_text(suite.read_text().replace("score.py", "other.py"))
    again = json.loads(call(tmp_path, "score", done["run"], "--suite", other, "--task", "code", "--json"))
    assert {trial["task"]: trial["scores"]["sum"] for trial in again["trials"]} == {"code": -36, "maths": 6}
    assert (tmp_path / "done.txt").read_text() == before


def test_a_run_with_a_failed_trial_ends_with_1(tmp_path: Path, suite: Path) -> None:
    """With the end of the log of what failed."""
    (tmp_path / "infer.py").write_text("raise SystemExit('CUDA out of memory')")
    done = run(tmp_path, suite, code=1)
    assert {trial["state"] for trial in done["trials"]} == {"failed"}
    assert all("CUDA out of memory" in trial["error"] for trial in done["trials"])


def test_a_killed_run_is_resumed(tmp_path: Path, suite: Path) -> None:
    """By its id; what it had running has gone on."""
    suite.write_text(suite.read_text().replace("'0.01'", "'0.2'"))
    started = begun(tmp_path, suite)
    started.send_signal(signal.SIGKILL)
    started.wait()
    (listed,) = [json.loads(line) for line in call(tmp_path, "status", "--json").splitlines()]
    assert listed["state"] == "running"
    done = run(tmp_path, "--resume", listed["run"])
    assert done["state"] == "ended" and {trial["state"] for trial in done["trials"]} == {"scored"}
    lines = (tmp_path / "done.txt").read_text().splitlines()
    assert sum(int(line.split()[3]) - int(line.split()[2]) for line in lines) == 13


def test_a_run_can_be_cancelled(tmp_path: Path, suite: Path) -> None:
    """What it has running is ended, by another process than its coordinator."""
    suite.write_text(suite.read_text().replace("'0.01'", "'60'"))
    started = begun(tmp_path, suite)
    (folder,) = tmp_path.glob("runs/*")
    assert json.loads(call(tmp_path, "cancel", folder.name, "--json"))["state"] == "cancelled"
    assert started.wait(180) == 1, "its coordinator ends as well"
    assert not (tmp_path / "done.txt").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("run",), "name either a suite, or a run to --resume"),
        (("run", "SUITE", "--node", "a=0"), "must be NAME=GPUS"),
        (("run", "SUITE", "--slurm"), "name the nodes"),
        (("run", "SUITE", "--node", "a=1", "--node", "a=1"), "named twice"),
        (("run", "--resume", "none"), "there is no run 'none'"),
        (("run", "SUITE", "--slurm", "--kubernetes"), "name either --slurm or --kubernetes"),
        (("run", "no-such.yaml"), "no-such.yaml: No such file"),
        (("status", "none"), "there is no run 'none'"),
        (("score", "none"), "there is no run 'none'"),
    ],
)
def test_what_cannot_be_done_is_told(tmp_path: Path, suite: Path, given: tuple[str, ...], told: str) -> None:
    """In one line, and nothing is run."""
    named = [str(suite) if word == "SUITE" else word for word in given]
    if given[0] == "run":
        named += ["--folder", str(tmp_path / "runs")]
    assert told in call(tmp_path, *named, code=1)
    assert not list(tmp_path.glob("runs/*/batches"))


def test_a_run_that_cannot_begin_is_not_stored(tmp_path: Path, suite: Path) -> None:
    """Nobody has to cancel it."""
    given = ("run", suite, "--folder", tmp_path / "runs", "--kubernetes", "--image=eval:1", "--run-as=1000:1000")
    told = call(tmp_path, *given, f"--host-path={tmp_path}", code=1)
    assert "no credentials for a Kubernetes API server" in told
    assert call(tmp_path, "status", "--json") == ""
