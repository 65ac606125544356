"""Evaluation runs on this machine: real processes, a real database, and what dies on the way."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.evaluations.batch_folder import results, write_order
from diagnoser.evaluations.coordinator import CoordinatorSettings
from diagnoser.evaluations.local import LocalExecutor, _locked
from diagnoser.model.errors import Unavailable
from diagnoser.model.evaluations import BatchKind, BatchState, Node, RunState, ShardState, TrialState
from diagnoser.ports import Command, Order, OrderState, OrderStatus
from tests import trial_runs
from tests.databases import sqlite_store
from tests.trial_runs import NODES, carry_out, check, completions, coordinator, copies, suite, trial_run


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


async def test_a_run_scores_every_trial(store: SqlStore, tmp_path: Path) -> None:
    """Each sample is inferred once and scored once, from a copy of the weights, of which nothing is left."""
    await store.evaluations.add_run(trial_run(tmp_path))
    progress = await carry_out(coordinator(store, LocalExecutor(NODES, copies(tmp_path))), "r1")
    check(progress)
    done = completions(tmp_path)
    assert set(done.values()) == {1} and len(done) == 2 * (12 + 7 + 30)
    assert {line.split()[0] for line in (tmp_path / "done.txt").read_text().splitlines()}.isdisjoint(
        progress.run.suite.checkpoints
    )
    assert list((tmp_path / "weights").glob("*-*")) == [] and list((tmp_path / "weights").glob("*.use")) == []
    assert {batch.node for batch in progress.batches if batch.kind is BatchKind.INFER} == {"east", "west"}
    times = await store.evaluations.runtimes([task.name for task in progress.run.suite.tasks], 100)
    assert all(time.seconds > 0 and time.load > 0 for time in times)
    assert sum(time.score is not None for time in times) == len(progress.trials)


async def test_two_coordinators_do_the_work_of_one(store: SqlStore, tmp_path: Path) -> None:
    """They share a ledger and the nodes, and nothing is carried out twice."""
    await store.evaluations.add_run(trial_run(tmp_path))
    both = [coordinator(store, LocalExecutor(NODES, copies(tmp_path))) for _ in range(2)]
    first, second = await asyncio.gather(*(carry_out(each, "r1") for each in both))
    check(first)
    assert first.trials == second.trials
    assert set(completions(tmp_path).values()) == {1}


def test_an_error_under_the_lock_of_a_batch_is_the_one_that_is_raised(tmp_path: Path) -> None:
    """A fork that finds no resources (EAGAIN) is no lock that somebody else holds."""
    with pytest.raises(BlockingIOError, match="no processes left"), _locked(tmp_path):
        raise BlockingIOError("no processes left")


class DyingNode(LocalExecutor):
    """One of its nodes is gone from the moment on that it has got its third batch, with all that runs there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(NODES, copies(folder))
        self.given: list[Order] = []
        self.killed: list[Order] = []

    async def nodes(self) -> list[Node]:
        return [node for node in NODES if not self.killed or node.name != "west"]

    async def start(self, order: Order) -> None:
        await super().start(order)
        if order.node == "west":
            self.given.append(order)
        if len(self.given) == 3 and not self.killed:
            self.killed = self.given[-1:]
            while (await self.poll([order]))[0].state is not OrderState.LOST:
                with suppress(OSError):
                    os.killpg(_group(order), signal.SIGKILL)
                await asyncio.sleep(0.01)


def _group(order: Order) -> int:
    return int(json.loads((Path(order.folder) / "started").read_text())["pid"])


async def test_a_node_that_dies_costs_what_ran_there(store: SqlStore, tmp_path: Path) -> None:
    """Its shards are carried out by the other one; at most those of the batch that was killed run again."""
    await store.evaluations.add_run(trial_run(tmp_path))
    executor = DyingNode(tmp_path)
    progress = await carry_out(coordinator(store, executor), "r1")
    check(progress)
    (killed,) = executor.killed
    lost = [batch for batch in progress.batches if batch.state is BatchState.LOST]
    assert [batch.id for batch in lost] == [killed.batch]
    later = [batch for batch in progress.batches if batch.started > (lost[0].ended or 0) and batch.node]
    assert {batch.node for batch in later} == {"east"}


async def test_a_shard_that_fails_again_and_again_fails_its_trial(store: SqlStore, tmp_path: Path) -> None:
    """After three tries, with the end of its log; the other trials get their scores."""
    words = ("sh", "-c", "echo starting; echo 'RuntimeError: CUDA out of memory' >&2; exit 3")
    await store.evaluations.add_run(trial_run(tmp_path, trial_runs.without_metrics(suite(tmp_path), *words)))
    progress = await carry_out(coordinator(store, LocalExecutor(NODES, copies(tmp_path))), "r1")
    assert progress.run.state is RunState.ENDED
    for trial in progress.trials:
        assert trial.state is (TrialState.FAILED if trial.task == "task/0" else TrialState.SCORED)
        if trial.task == "task/0":
            assert "exit code 3" in trial.error and "CUDA out of memory" in trial.error
    failed = [record for record in progress.shards if record.state is ShardState.FAILED]
    assert failed and {record.failures for record in failed} == {3}


class PreemptingNode(LocalExecutor):
    """Says of the first batch in which a command failed that its scheduler preempted it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(NODES, copies(folder))
        self.preempted: list[str] = []

    async def poll(self, orders: Sequence[Order]) -> list[OrderStatus]:
        statuses = await super().poll(orders)
        for place, (order, status) in enumerate(zip(orders, statuses, strict=True)):
            has_failed = any(result.code for result in status.results)
            if has_failed and status.state is OrderState.ENDED and not self.preempted:
                self.preempted.append(order.batch)
                statuses[place] = OrderStatus(OrderState.PREEMPTED, status.results)
        return statuses


async def test_a_command_that_failed_in_a_preempted_batch_counts_as_no_failure(store: SqlStore, tmp_path: Path) -> None:
    """The processes of a job end one after the other: its command may have died before its runner did."""
    given = suite(tmp_path, (12,))
    fails_once = ("sh", "-c", 'if mkdir "$0" 2>&-; then exit 1; fi; exec "$@"', str(tmp_path / "failed"))
    tasks = tuple(replace(task, infer=(*fails_once, *task.infer)) for task in given.tasks)
    await store.evaluations.add_run(trial_run(tmp_path, replace(given, tasks=tasks)))
    executor = PreemptingNode(tmp_path)
    progress = await carry_out(coordinator(store, executor), "r1")
    check(progress)
    assert len(executor.preempted) == 1
    assert {record.failures for record in progress.shards} == {0}


def test_a_command_that_was_told_to_end_has_no_result(tmp_path: Path) -> None:
    """A scheduler tells the whole job to end, and its command may be the first to go: the runner ends as it would."""
    for place, code in enumerate(("kill $$", "exit 143", "exit 1")):
        command = Command(("sh", "-c", code), {}, str(tmp_path / f"samples-{place}"))
        folder = tmp_path / str(place)
        order = Order("b", BatchKind.INFER, "n", 0, 1, "", str(folder), str(tmp_path), (command,))
        write_order(order, copies(tmp_path), {})
        done = subprocess.run([sys.executable, "-m", "diagnoser.evaluations.runner", str(folder)])
        found = [result.code for result in results(folder)]
        assert (done.returncode, found) == ((0, [1]) if place == 2 else (143, []))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("no-such-program",), "no-such-program: No such file or directory"),
        (("true",), "it ended well, and wrote nothing"),
        (("sh", "-c", "kill -9 $$"), "exit code -9"),
    ],
)
async def test_why_a_trial_failed_is_told(store: SqlStore, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    """A program that is not there, one that does nothing, and one that is killed."""
    await store.evaluations.add_run(trial_run(tmp_path, trial_runs.without_metrics(suite(tmp_path, (3,)), *words)))
    progress = await carry_out(coordinator(store, LocalExecutor(NODES, copies(tmp_path))), "r1")
    assert all(trial.state is TrialState.FAILED and told in trial.error for trial in progress.trials)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("sh", "-c", "echo no metric >&2; exit 1"), "no metric"),
        (("sh", "-c", "echo oops > $0", "{scores}"), "no JSON"),
        (("sh", "-c", 'echo \'{"pass": "yes"}\' > $0', "{scores}"), "'pass' is no number"),
        (("sh", "-c", "echo '{}' > $0", "{scores}"), "a number for each metric"),
    ],
)
async def test_why_scoring_failed_is_told(store: SqlStore, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    """A scorer that fails, and one whose scores cannot be read; the samples stay."""
    given = suite(tmp_path, (3,))
    await store.evaluations.add_run(trial_run(tmp_path, replace(given, tasks=(replace(given.tasks[0], score=words),))))
    progress = await carry_out(coordinator(store, LocalExecutor(NODES, copies(tmp_path))), "r1")
    assert all(trial.state is TrialState.FAILED and told in trial.error for trial in progress.trials)
    assert {record.state for record in progress.shards} == {ShardState.INFERRED}


async def test_a_cancelled_run_leaves_no_process(store: SqlStore, tmp_path: Path) -> None:
    """Whoever cancels it: the coordinator ends what runs, and returns."""
    await store.evaluations.add_run(trial_run(tmp_path, suite(tmp_path, (500,), seconds=1.0)))
    executor = LocalExecutor(NODES, copies(tmp_path))
    found = coordinator(store, executor)
    progress = await found.step("r1")
    orders = trial_runs.started(tmp_path)
    assert len(orders) == 2
    assert await store.evaluations.end_run("r1", RunState.CANCELLED, 1.0)
    progress = await carry_out(found, "r1")
    assert {batch.state for batch in progress.batches} == {BatchState.CANCELLED}
    held = [Order(**{**order, "commands": ()}) for order in map(_without_places, orders)]
    assert {status.state for status in await executor.poll(held)} <= {OrderState.LOST, OrderState.UNKNOWN}
    await executor.start(held[0])
    assert (await executor.poll(held[:1]))[0].state is not OrderState.RUNNING, "it is not started any more"


def _without_places(order: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in order.items() if name not in ("copies", "environment")}


async def test_a_batch_that_is_late_is_given_to_an_idle_slot_once(store: SqlStore, tmp_path: Path) -> None:
    """The first try hangs on its node; the second one, elsewhere or there, is left alone, however late it is."""
    first, second = tmp_path / "first", tmp_path / "second"
    script = 'if mkdir "$0" 2>&-; then sleep 600; else mkdir "$1"; sleep 0.5; echo 1 > "$2/numbers.txt"; fi'
    words = ("sh", "-c", script, str(first), str(second), "{samples}")
    given = trial_runs.without_metrics(suite(tmp_path, (1,)), *words)
    given = replace(given, checkpoints=given.checkpoints[:1])
    await store.evaluations.add_run(trial_run(tmp_path, given))

    def clock() -> float:  # an hour goes by whenever a try has begun
        return time.time() + 3_600 * (first.exists() + second.exists())

    progress = await carry_out(coordinator(store, LocalExecutor(NODES, copies(tmp_path)), clock=clock), "r1")
    assert progress.trials[0].state is TrialState.SCORED
    inference = [batch.state for batch in progress.batches if batch.kind is BatchKind.INFER]
    assert inference[0] is BatchState.LOST and len(inference) == 2
    assert [record.failures for record in progress.shards] == [1]


class Moody(LocalExecutor):
    """Every other call fails, after or before it did what it was asked for."""

    calls = 0

    async def start(self, order: Order) -> None:
        self.calls += 1
        if self.calls % 3 != 1:
            await super().start(order)
        if self.calls % 3:
            raise Unavailable("the scheduler does not answer")


async def test_an_executor_that_does_not_answer_is_asked_again(store: SqlStore, tmp_path: Path) -> None:
    """Whether it had started the batch or not: each shard runs once."""
    await store.evaluations.add_run(trial_run(tmp_path))
    check(await carry_out(coordinator(store, Moody(NODES, copies(tmp_path))), "r1"))
    assert set(completions(tmp_path).values()) == {1}


async def test_scores_are_computed_again_without_inference(store: SqlStore, tmp_path: Path) -> None:
    """From the samples that are stored, by a coordinator that has no node at all."""
    await store.evaluations.add_run(trial_run(tmp_path))
    before = await carry_out(coordinator(store, LocalExecutor(NODES, copies(tmp_path))), "r1")
    which = [(trial.checkpoint, trial.task) for trial in before.trials]
    assert await store.evaluations.begin_scoring("r1", which, again=True) == len(which)
    after = await carry_out(coordinator(store, LocalExecutor((), copies(tmp_path))), "r1")
    check(after)
    assert after.shards == before.shards
    assert len(after.batches) == len(before.batches) + len(which)


async def test_settings_of_the_service_stay_with_it(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suite's command does not get the password of our database, and sees the GPUs of its slot."""
    monkeypatch.setenv("DIAGNOSER_DATABASE_URL", "postgresql://secret")
    script = 'env > "$0/env.txt"'
    given = trial_runs.without_metrics(suite(tmp_path, (1,)), "sh", "-c", script, "{samples}")
    await store.evaluations.add_run(trial_run(tmp_path, replace(given, gpus=2)))
    settings = CoordinatorSettings(batch_seconds=0.3)
    await carry_out(coordinator(store, LocalExecutor([Node("east", 4)], copies(tmp_path)), settings), "r1")
    found = trial_runs.written(tmp_path, "env.txt")
    assert found and not any("secret" in line for lines in found for line in lines)
    assert {line for lines in found for line in lines if line.startswith("CUDA_VISIBLE")} <= {
        "CUDA_VISIBLE_DEVICES=0,1",
        "CUDA_VISIBLE_DEVICES=2,3",
    }
