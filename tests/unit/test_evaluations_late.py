"""Batches of an evaluation that take longer than expected."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnoser.evaluations.batch_folder import read_scores
from diagnoser.evaluations.coordinator import Coordinator, CoordinatorSettings
from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.model.evaluations import (
    BatchKind,
    BatchRecord,
    BatchState,
    EvaluationRun,
    Node,
    RunProgress,
    ShardRecord,
    ShardState,
    Suite,
    TrialShard,
)
from diagnoser.ports import Order, OrderState, OrderStatus

BATCH = BatchRecord("b", "r", BatchKind.INFER, "east", 0, started=1000.0, seconds=10.0)
STATUS = OrderStatus(OrderState.RUNNING)

RUN = EvaluationRun("r1", Suite("s", (), ()), "slurm", "", "", 0.0)


class Cancelled(list[Order]):
    """An executor that notes what it was told to cancel."""

    async def cancel(self, order: Order) -> None:
        self.append(order)


async def state_after(failures: int, seconds: float, executor: Cancelled) -> BatchState:
    shard = ShardRecord(TrialShard("c", "t", 0, 8), ShardState.RUNNING, "b", failures)
    nothing: Any = None
    progress = RunProgress(nothing, (), (shard,), (BATCH,))
    given: Any = executor
    coordinator = Coordinator(nothing, given, lambda: 1000.0 + seconds, lambda: "n")
    order: Any = object()
    return await coordinator._state_of(BATCH, order, STATUS, [Node("east", 8)], progress, {"east"})


async def test_a_late_batch_is_cancelled_once_and_its_second_try_is_left_alone() -> None:
    """Where the expectation was wrong, cancelling it again and again would never end."""
    executor = Cancelled()
    assert await state_after(0, 3600.0, executor) is BatchState.LOST
    assert len(executor) == 1
    assert await state_after(1, 3600.0, executor) is BatchState.RUNNING
    assert len(executor) == 1


async def test_a_batch_in_its_time_goes_on() -> None:
    """Four times what was expected, and a minute."""
    executor = Cancelled()
    assert await state_after(0, 99.0, executor) is BatchState.RUNNING
    assert not executor


async def test_a_scheduler_that_is_gone_for_good_ends_the_coordinator() -> None:
    """After the minutes of its patience, and not for as long as it answers now and then."""
    now = [0.0]
    nothing: Any = None
    settings = CoordinatorSettings(patience=450.0)
    coordinator = Coordinator(nothing, nothing, lambda: now[0], lambda: "n", settings=settings)
    steps: list[str] = []

    async def step(run: str) -> RunProgress:
        steps.append(run)
        if len(steps) == 3:
            return RunProgress(RUN, (), (), ())
        raise Unavailable("squeue: Unable to contact slurm controller")

    async def pause() -> None:
        now[0] += 100.0

    coordinator.step = step  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="no answer for 8 minutes, so the run is left as it is: squeue"):
        await coordinator.carry_out("r1", pause, lambda progress: None)
    assert len(steps) == 8


async def test_a_node_whose_batches_store_nothing_rests_while_others_are_left() -> None:
    """Its commands fail at once: it would take and fail whatever waits, three times each."""
    now = [1000.0]

    class Two:
        async def nodes(self) -> list[Node]:
            return [Node("east", 1), Node("west", 1)]

    given: Any = None
    executor: Any = Two()
    coordinator = Coordinator(given, executor, lambda: now[0], lambda: "n")
    progress = RunProgress(given, (), (), (BATCH,))
    rested = []
    for batch in (BATCH, replace(BATCH, id="c", started=1000.0), replace(BATCH, id="d", node="west", started=1119.0)):
        now[0] = batch.started
        coordinator._count_empty_batch(progress, batch, ())
        rested.append([node.name for node in await coordinator._nodes()])
    assert rested == [["west"], ["west"], ["east", "west"]]
    now[0] = 1121.0
    stored = ShardRecord(TrialShard("c", "t", 0, 8), ShardState.INFERRED, "e")
    coordinator._count_empty_batch(progress, replace(BATCH, id="e"), [stored])
    assert [node.name for node in await coordinator._nodes()] == ["east"]


@pytest.mark.parametrize("text", ['{"loss": NaN}', '{"acc": 1%s}' % ("0" * 400), "[" * 100_000, '{"acc": true}'])
def test_scores_that_are_no_numbers_fail_their_trial_alone(tmp_path: Path, text: str) -> None:
    """They neither end the coordinator nor break the pages of all runs, as a loss that is not finite did."""
    (tmp_path / "scores.json").write_text(text)
    with pytest.raises(BadInput):
        read_scores(tmp_path / "scores.json")
    (tmp_path / "scores.json").write_text('{"acc": 1, "loss": NaN, "\\ud800": 0.5}')
    assert read_scores(tmp_path / "scores.json") == {"acc": 1.0, "?": 0.5}
