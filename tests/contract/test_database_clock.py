"""Replicas go by the clock of the database that they share, however wrong their own are."""

import time

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from diagnoser.adapters.clock import DatabaseClock
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.localize.hang_detection import ExpectedSilence
from diagnoser.model import AttemptKey, Stage
from diagnoser.model.errors import Unavailable
from diagnoser.observability.metrics import Metrics
from tests.contract.conftest import BOTH
from tests.contract.records import append
from tests.scripted_worker import scripted_worker
from tests.unit.test_worker import IDLE, Bench


class Machine:
    """Its clocks, the database's, and how long each half of a question to that takes."""

    def __init__(self) -> None:
        self.wall, self.boot, self.theirs, self.there, self.back = 5000.0, 70.0, 5000.0, 0.0, 0.0
        self.is_away = False
        self.skews: list[float] = []
        self.clock = DatabaseClock(self.read, self.skews.append, lambda: self.wall, lambda: self.boot)

    def after(self, seconds: float, jump: float = 0.0) -> None:
        self.boot, self.wall, self.theirs = self.boot + seconds, self.wall + seconds + jump, self.theirs + seconds

    async def read(self) -> float:
        if self.is_away:
            raise Unavailable("refused")
        self.after(self.there)
        answer = self.theirs
        self.after(self.back)
        return answer


async def test_a_jump_of_the_own_clock_changes_nothing_also_while_the_database_is_away() -> None:
    """The monotonic clock carries the database's time on."""
    machine = Machine()
    await machine.clock.compare()
    machine.is_away = True
    for jump in (-3600.0, 7200.0):
        machine.after(100.0, jump)
        assert machine.clock() == machine.theirs
    with pytest.raises(Unavailable):
        await machine.clock.compare()
    assert machine.clock() == machine.theirs


@pytest.mark.parametrize(("there", "back"), [(8.0, 0.0), (0.0, 8.0), (4.0, 4.0)])
async def test_the_way_to_the_database_is_no_jump(there: float, back: float) -> None:
    """After a quick answer, one that took eight seconds moves nothing; a first one is off by no more than it took."""
    machine = Machine()
    machine.there, machine.back = there, back
    await machine.clock.compare()
    assert abs(machine.clock() - machine.theirs) <= 8.0
    machine.there = machine.back = 0.0
    await machine.clock.compare()
    machine.there, machine.back = there, back
    await machine.clock.compare()
    assert machine.clock() == machine.theirs


async def test_a_difference_is_logged_once_and_measured() -> None:
    """When it begins and when it is over, so that somebody sets the clock that is wrong."""
    machine = Machine()
    machine.after(1.0, jump=-90.0)
    with capture_logs() as logs:
        for _ in range(3):
            await machine.clock.compare()
        machine.after(1.0, jump=90.0)
        await machine.clock.compare()
    assert [line["event"] for line in logs] == ["clock_differs", "clock_agrees"]
    assert machine.skews == [-90.0, -90.0, -90.0, 0.0]


class Replica(Bench):
    """A worker on a store of its own, on a machine whose clock is wrong."""

    def __init__(self, store: SqlStore, skew: float) -> None:
        super().__init__(store, config=IDLE)
        self.limit = ExpectedSilence(Stage.TRAIN, 0.0, 1.0, 11.0, 60.0, 11.0)
        metrics = Metrics(CollectorRegistry())
        self.shared = DatabaseClock(store.db.clock, metrics.clock_skew.set, lambda: time.time() + skew)
        self.worker = scripted_worker(store, self, self, self.shared, IDLE, metrics)


@pytest.mark.parametrize("url", BOTH[1:], indirect=True)
async def test_a_replica_whose_clock_is_an_hour_ahead_takes_no_lease_from_another_and_calls_no_run_hung(
    store: SqlStore, second: SqlStore
) -> None:
    """What one replica holds the other does not claim, and a run that printed a moment ago is not silent."""
    right, ahead = Replica(store, 0.0), Replica(second, 3600.0)
    for replica in (right, ahead):
        await replica.shared.compare()
    await store.logs.append([append(at=right.shared())])
    assert await ahead.worker.step() == 0
    assert ahead.seen == []
    await store.logs.append([append(AttemptKey("failed", 1), at=right.shared() - 60.0, fatal=True)])
    held = await store.work.claim_attempts(right.shared(), IDLE.timing, IDLE.lease, 8)
    assert len(held) == 1
    assert await ahead.worker.step() == 0
