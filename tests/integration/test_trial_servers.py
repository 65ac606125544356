"""Suites with a model server: real processes, and what dies on the way."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.evaluations.local import LocalExecutor
from diagnoser.model.evaluations import BatchKind, BatchState, Node, Server, Suite, TrialState
from tests import trial_runs
from tests.databases import sqlite_store
from tests.trial_runs import BARE, FAST, SERVE, carry_out, check, completions, coordinator, copies, judged, trial_run

ONE = [Node("east", 1)]
CLIENT = """
import os, sys, urllib.request
task, first, last, samples, url, ledger, mark = sys.argv[1:]
assert url == os.environ["DIAGNOSER_TRIAL_URL"] and os.environ["DIAGNOSER_TRIAL_PORT"] in url
def ask(path):
    with urllib.request.urlopen(url + path) as answer:
        return answer.read().decode()
weights = ask("/models")
with open(samples + "/numbers.txt", "w") as file:
    file.writelines(f"{number}\\n" for number in range(int(first), int(last)))
with open(ledger, "a") as file:
    file.write(f"- {task} {first} {last} {weights}\\n")
if task == "task/1" and not os.path.exists(mark):
    open(mark, "w").close()
    ask("/die")
"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


def suite(folder: Path, server: str = SERVE) -> Suite:
    """Three tasks of two checkpoints; the first try of the second task ends the server."""
    given = trial_runs.suite(folder)
    words = ("{task}", "{first}", "{last}", "{samples}", "{url}", str(folder / "done.txt"), str(folder / "mark"))
    tasks = tuple(replace(task, infer=(*BARE, "-c", CLIENT, *words)) for task in given.tasks)
    command = (*BARE, "-c", server, "{port}", "{checkpoint}", str(folder / "servers.txt"))
    return replace(given, tasks=tasks, server=Server(command, seconds=180))


def processes(folder: Path, name: str = "servers.txt") -> list[int]:
    """Of all servers that were started, with their workers."""
    with suppress(FileNotFoundError):
        return [int(number) for number in (folder / name).read_text().split()]
    return []


def living(folder: Path) -> list[int]:
    started = processes(folder) + processes(folder, "judges.txt")
    return [number for number in started if _lives(number)]


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_server_serves_the_pieces_of_its_slot_and_is_started_again_when_it_dies(
    store: SqlStore, tmp_path: Path
) -> None:
    """One for each checkpoint, and one in place of the one that died; none is left, nor what it had started."""
    await store.evaluations.add_run(trial_run(tmp_path, suite(tmp_path)))
    progress = await carry_out(
        coordinator(store, LocalExecutor(ONE, copies(tmp_path)), replace(FAST, batch_seconds=60)), "r1"
    )
    check(progress)
    assert len(processes(tmp_path)) == 2 * 3
    assert living(tmp_path) == []
    loads = [record.load or 0.0 for record in progress.inferred]
    assert sum(load > 0.05 for load in loads) >= 3 and len(loads) >= 6  # on a busy machine, a copy may take as long


@pytest.mark.parametrize("killed", ["server", "keeper", "runner"])
async def test_whatever_is_killed_nothing_is_lost_or_done_twice(store: SqlStore, tmp_path: Path, killed: str) -> None:
    """By kill -9, while a server is up: none is left behind, and each sample is in the scores once."""
    given = suite(tmp_path)
    (tmp_path / "mark").touch()
    await store.evaluations.add_run(trial_run(tmp_path, given))
    executor = LocalExecutor(ONE, copies(tmp_path))
    coordinating = coordinator(store, executor, replace(FAST, batch_seconds=60))
    await coordinating.step("r1")
    until = time.monotonic() + 30
    while not processes(tmp_path):
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
    server = processes(tmp_path)[0]
    (order, *_) = trial_runs.started(tmp_path)
    os.kill({"server": server, "keeper": parent(server), "runner": trial_runs.runner_of(order)}[killed], signal.SIGKILL)
    progress = await carry_out(coordinating, "r1")
    check(progress)
    assert living(tmp_path) == []
    assert set(completions(tmp_path).values()) == {1}
    inference = [batch.state for batch in progress.batches if batch.kind is BatchKind.INFER]
    assert (BatchState.LOST in inference) == (killed == "runner")


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("server", "seconds", "why"),
    [
        ("raise SystemExit('CUDA out of memory')", 60, "CUDA out of memory"),
        ("import time; time.sleep(600)", 0.3, "in 4 starts"),
    ],
)
async def test_a_server_that_does_not_get_ready_fails_its_trials(
    store: SqlStore, tmp_path: Path, server: str, seconds: float, why: str
) -> None:
    """With the end of its log, after a bounded number of starts."""
    given = suite(tmp_path, server)
    assert given.server is not None
    given = replace(
        given, server=replace(given.server, seconds=seconds), tasks=given.tasks[:1], checkpoints=given.checkpoints[:1]
    )
    await store.evaluations.add_run(trial_run(tmp_path, given))
    progress = await carry_out(coordinator(store, LocalExecutor(ONE, copies(tmp_path))), "r1")
    assert [trial.state for trial in progress.trials] == [TrialState.FAILED]
    assert why in progress.trials[0].error


async def test_a_judge_gets_all_answers_of_its_task_once_they_are_there(store: SqlStore, tmp_path: Path) -> None:
    """For both checkpoints behind one start of its server, after the batch that was killed; nothing is judged twice."""
    (tmp_path / "mark").touch()
    await store.evaluations.add_run(trial_run(tmp_path, judged(tmp_path, suite(tmp_path))))
    progress = await carry_out(
        coordinator(store, LocalExecutor(ONE, copies(tmp_path)), replace(FAST, batch_seconds=60)), "r1"
    )
    check(progress)
    assert set(completions(tmp_path).values()) == {1} and len(completions(tmp_path)) == 2 * (12 + 7 + 30 + 30)
    assert len(processes(tmp_path, "judges.txt")) == 2 * 2
    assert living(tmp_path) == [] and list((tmp_path / "weights").glob("*-*")) == []


async def test_without_its_answers_a_judged_trial_fails(store: SqlStore, tmp_path: Path) -> None:
    """No judge is started, and the error names the task; other trials get their scores."""
    given = trial_runs.suite(tmp_path, (3, 2))
    first, second = given.tasks
    given = judged(tmp_path, replace(given, tasks=(first, replace(second, infer=("false",)))))
    await store.evaluations.add_run(trial_run(tmp_path, given))
    progress = await carry_out(coordinator(store, LocalExecutor(ONE, copies(tmp_path))), "r1")
    scored, failed, judged_trial = progress.trials[:3]
    assert (scored.state, failed.state, judged_trial.state) == (
        TrialState.SCORED,
        TrialState.FAILED,
        TrialState.FAILED,
    )
    assert judged_trial.error == "it comes after task/1, which failed"
    assert processes(tmp_path, "judges.txt") == []
