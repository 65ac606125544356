"""Batches of an evaluation that take longer than expected."""

from typing import Any

from diagnoser.evaluations.coordinator import Coordinator
from diagnoser.model.evaluations import (
    BatchKind,
    BatchRecord,
    BatchState,
    Node,
    RunProgress,
    ShardRecord,
    ShardState,
    TrialShard,
)
from diagnoser.ports import Order, OrderState, OrderStatus

BATCH = BatchRecord("b", "r", BatchKind.INFER, "east", 0, started=1000.0, seconds=10.0)
STATUS = OrderStatus(OrderState.RUNNING)


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
    return await coordinator._state_of(BATCH, order, STATUS, [Node("east", 8)], progress, True)


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
