"""`diagnoser evaluations plan`: what would run, for people and programs, and faults with their line."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from diagnoser.cli import cli
from diagnoser.evaluations.suite import read_suite
from diagnoser.model.errors import BadInput, RuleFaults
from diagnoser.model.evaluations import BatchKind, BatchRecord, BatchState, Runtime
from tests.databases import sqlite_store
from tests.trial_runs import trial_run

RUN = CliRunner()
SUITE = """\
name: nightly
checkpoints: [/ckpt/step-1000]
size: 7B
hardware: A100
engine:
  infer: [infer, "{task}", "{first}", "{last}", "{samples}"]
  score: [score, "{samples}", "{scores}"]
tasks:
  - {name: gsm8k, samples: 1319, sample_seconds: 0.4, score_seconds: 30}
  - {name: mmlu, samples: 14042}
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DIAGNOSER_DATABASE_URL", f"sqlite:///{tmp_path}/test.db")
    file = tmp_path / "SUITE.yaml"
    file.write_text(SUITE)
    return str(file)


def test_the_plan_reads_as_a_chart_and_two_sentences(suite: str) -> None:
    """A row a slot, the makespan, the lower bound, and what a job a data set would take."""
    result = RUN.invoke(cli, ["evaluations", "plan", suite, "--gpus-per-node", "2"])
    assert result.exit_code == 0
    assert "node-0 0" in result.stdout
    assert "node-0 1" in result.stdout
    assert "2 trials in" in result.stdout
    assert "no schedule takes less than" in result.stdout


def test_programs_get_json_and_pages_get_svg(suite: str, tmp_path: Path) -> None:
    """All placements, in seconds of the run; the chart in a file."""
    svg = tmp_path / "plan.svg"
    result = RUN.invoke(cli, ["evaluations", "plan", suite, "--nodes", "2", "--json", "--svg", str(svg)])
    plan = json.loads(result.stdout)
    assert plan["lower_bound"] <= plan["makespan"] < plan["in_line"]
    covered = sum(p["last"] - p["first"] for placed in plan["placements"] for p in placed["batch"]["pieces"])
    assert covered == 1319 + 14042
    assert svg.read_text().startswith("<svg")


def test_earlier_runtimes_replace_guesses(suite: str, tmp_path: Path) -> None:
    """A task that took ten times as long a sample makes the plan longer."""
    file = tmp_path / "runtimes.ndjson"
    row = {"task": "mmlu", "size": "7B", "hardware": "A100", "samples": 100, "seconds": 400.0, "load": 30.0}
    file.write_text(json.dumps(row) + "\n\n")
    guessed = json.loads(RUN.invoke(cli, ["evaluations", "plan", suite, "--json"]).stdout)
    known = json.loads(RUN.invoke(cli, ["evaluations", "plan", suite, "--json", "--runtimes", str(file)]).stdout)
    assert known["makespan"] > 5 * guessed["makespan"]
    assert known["start"] == 30.0
    file.write_text(json.dumps(row | {"samples": "x"}))
    error = RUN.invoke(cli, ["evaluations", "plan", suite, "--runtimes", str(file)]).exception
    assert isinstance(error, BadInput)
    assert str(error).startswith(f"{file}:1: samples:")


def test_a_plan_expects_what_earlier_runs_took(suite: str, tmp_path: Path) -> None:
    """From the database, which a plan neither makes nor upgrades; a file wins; it says where they are from."""
    before = RUN.invoke(cli, ["evaluations", "plan", suite]).stdout
    assert "Expected times: of the suite, and guesses by size (there is no database at" in before
    assert not list(tmp_path.glob("*.db"))
    asyncio.run(_run_before(tmp_path))
    plan = json.loads(RUN.invoke(cli, ["evaluations", "plan", suite, "--json"]).stdout)
    assert (plan["runtimes"], plan["start"]) == ("of the database (shards of these tasks that ran before: 1)", 30.0)
    file = tmp_path / "runtimes.ndjson"
    file.write_text("")
    assert (
        f"Expected times: of {file}." in RUN.invoke(cli, ["evaluations", "plan", suite, "--runtimes", str(file)]).stdout
    )
    (tmp_path / "test.db").write_bytes(b"")
    assert (
        "guesses by size (the database has another version)" in RUN.invoke(cli, ["evaluations", "plan", suite]).stdout
    )


async def _run_before(folder: Path) -> None:
    store = await sqlite_store(folder / "test.db")
    await store.evaluations.add_run(trial_run(folder))
    batch = BatchRecord("b1", "r1", BatchKind.INFER, "gpu-01", 0, 0.0)
    assert await store.evaluations.start_batch(batch, [])
    took = Runtime("mmlu", "7B", "A100", 100, 400.0, 30.0)
    assert await store.evaluations.record_batch(
        replace(batch, state=BatchState.ENDED, ended=1.0), runtimes={"r1": took}
    )
    await store.close()


def test_a_large_pool_is_drawn_in_a_file_only(suite: str) -> None:
    """A terminal does not show 256 rows."""
    result = RUN.invoke(cli, ["evaluations", "plan", suite, "--nodes", "32"])
    assert "--svg" in result.stdout


def test_faults_of_the_file_end_the_command(suite: str, tmp_path: Path) -> None:
    """With line and field; a missing file by its name; nodes that are too small by the GPUs that are missing."""
    Path(suite).write_text(SUITE.replace("samples: 1319", "samples: 0"))
    error = RUN.invoke(cli, ["evaluations", "plan", suite]).exception
    assert isinstance(error, RuleFaults)
    assert str(error.faults[0]).startswith(f"{suite}:9: tasks.0.samples")
    missing = RUN.invoke(cli, ["evaluations", "plan", str(tmp_path / "none.yaml")]).exception
    assert "none.yaml: No such file" in str(missing)
    Path(suite).write_text(SUITE + "gpus: 8\n")
    assert "8 GPUs" in str(RUN.invoke(cli, ["evaluations", "plan", suite, "--gpus-per-node", "4"]).exception)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the programs that are installed: none but those that a test puts there."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def init(folder: Path, engine: str, task: str) -> Result:
    words = ["evaluations", "init", str(folder / "SUITE.yaml"), "--engine", engine, "--checkpoint", "/ckpt/step-1"]
    return RUN.invoke(cli, [*words, "--task", task], catch_exceptions=False)


@pytest.mark.parametrize(
    ("engine", "program", "task"),
    [
        ("lm_eval", "lm_eval", "sums"),
        ("opencompass", "opencompass", "sums"),
        ("inspect_ai", "inspect", "sums.py"),
        ("inspect_ai", "inspect", "my/all.py@sums"),
    ],
)
def test_a_suite_for_an_installed_engine_is_written(
    engine: str, program: str, task: str, tmp_path: Path, programs: Path
) -> None:
    """With where the engine is, and a task's path as its name; it is not written over."""
    (programs / program).touch(0o755)
    assert init(tmp_path, engine, f"{task}=7").exit_code == 0
    text = (tmp_path / "SUITE.yaml").read_text()
    (written,) = read_suite("SUITE.yaml", text).tasks
    assert (written.name, written.samples) == ("sums", 7)
    assert str(programs) in text and (task == "sums" or task in written.infer)
    with pytest.raises(BadInput, match="is there already"):
        init(tmp_path, engine, f"{task}=7")


@pytest.mark.parametrize(
    ("task", "why"), [("gsm8k", "NAME=SAMPLES"), ("gsm8k=1319", "no lm_eval on the PATH"), ("=7", "SUITE.yaml:")]
)
def test_a_suite_without_its_engine_or_size_is_not_written(task: str, why: str, tmp_path: Path, programs: Path) -> None:
    """The reason is one that a person can act on."""
    if why == "SUITE.yaml:":
        (programs / "lm_eval").touch(0o755)
    with pytest.raises((BadInput, RuleFaults), match=why):
        init(tmp_path, "lm_eval", task)
    assert not (tmp_path / "SUITE.yaml").exists()
