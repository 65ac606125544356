"""Evaluation as a part of the service: checkpoints are evaluated as they come, and trials that fail are diagnosed."""

import os
import sys
from pathlib import Path
from typing import Any

import yaml

from tests import preloaded
from tests.e2e.service import Service, service, until
from tests.trial_runs import INFER, SCORE

OUT_OF_MEMORY = """
import sys
print("step 1", flush=True)
sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 is full")
"""


def suite(folder: Path) -> Path:
    """One task that works and one that does not, of what the job "train" saves."""
    (folder / "infer.py").write_text(INFER)
    (folder / "fails.py").write_text(OUT_OF_MEMORY)
    (folder / "score.py").write_text(SCORE)
    words = [sys.executable, "infer.py", "{checkpoint}", "{task}", "{first}", "{last}", "{samples}", "0"]
    score = [sys.executable, "score.py", "{samples}", "{scores}"]
    fails = [sys.executable, "fails.py", "{first}", "{last}", "{samples}"]
    given = {
        "name": "nightly",
        "follow": {"job": "train", "every": 100},
        "engine": {"infer": [*words, str(folder / "done.txt")], "score": score},
        "tasks": [{"name": "maths", "samples": 4}, {"name": "code", "samples": 2, "infer": fails}],
    }
    (folder / "suite.yaml").write_text(yaml.safe_dump(given))
    return folder / "suite.yaml"


def save(running: Service, step: int) -> None:
    """A checkpoint that the job reports as verified."""
    path = running.folder / f"step-{step}.bin"
    path.write_text(f"weights of {step}")
    event = {"kind": "checkpoint", "step": step, "path": str(path), "phase": "verified", "time": 1_790_000_000 + step}
    assert running.client is not None
    answer = running.client.post("/api/v1/jobs/train/events", json=event)
    assert answer.is_success, answer.text


def follow(running: Service, path: Path, exit_code: int = 0) -> str:
    """What it prints when all that is due is evaluated."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIAGNOSER_")}
    environment["DIAGNOSER_DATABASE_URL"] = f"sqlite:///{running.folder}/test.db"
    words = ["evaluations", "run", str(path), "--once", "--node", "here=1", "--server", running.url]
    places = ["--folder", str(running.folder / "runs"), "--weights", ""]
    ended = preloaded.run([*words, *places], environment)
    assert ended.returncode == exit_code, ended.stdout + ended.stderr
    return ended.stdout


def test_checkpoints_are_evaluated_as_they_come_and_failed_trials_are_diagnosed(tmp_path: Path) -> None:
    """Each once, also by a second follower; the page has scores by step, and leads to the diagnosis of what failed."""
    with service(tmp_path) as running:
        client, path = running.start(), suite(tmp_path)
        save(running, 100)
        assert "scored" in follow(running, path, exit_code=1) and follow(running, path) == ""
        for step in (150, 200):
            save(running, step)
        follow(running, path, exit_code=1)
        runs: list[dict[str, Any]] = client.get("/api/v1/evaluations").json()
        assert [Path(run["checkpoints"][0]).stem for run in runs] == ["step-200", "step-100"]
        assert "2 checkpoints" in client.get("/evaluations").text
        job = f"trial-{runs[0]['id']}-0-code"
        found = until(lambda: client.get("/api/v1/diagnoses", params={"job": job}).json()["items"], "a diagnosis")
        assert found[0]["type"] == "out_of_memory_error", found
        assert f'href="/jobs/{job}"' in client.get(f"/evaluations/{runs[0]['id']}").text
