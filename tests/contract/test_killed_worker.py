"""A worker that is killed, as a real process: what it held is soon somebody else's."""

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection

from prometheus_client import CollectorRegistry

from diagnoser.adapters.sql.store import open_store
from diagnoser.compress import AttemptLog
from diagnoser.config.settings import Settings
from diagnoser.model import Diagnosis, Facts
from diagnoser.model.work import Claim
from diagnoser.observability.metrics import Metrics
from diagnoser.worker.worker import WorkerConfig
from tests import preloaded
from tests.contract.records import TIMING, append, claimed
from tests.scripted_worker import Bystander, delta_of, scripted_worker


def _work_for_ever(url: str, ready: Connection) -> None:
    """A worker that claims what is due, renews its lease while it works, and never ends its work."""

    async def main() -> None:
        store = await open_store(url)

        async def stuck(log: AttemptLog, facts: Facts) -> Diagnosis:
            await asyncio.Event().wait()
            raise AssertionError

        extend = store.work.extend

        async def told(claim: Claim, until: float) -> None:
            await extend(claim, until)
            ready.send(until)

        bystander = Bystander()
        bystander.analyze = stuck  # type: ignore[method-assign]
        store.work.extend = told  # type: ignore[method-assign]
        config = WorkerConfig(TIMING, lease=Settings().claim_lease_seconds, hang_check_idle=1e6)
        metrics = Metrics(CollectorRegistry())
        await scripted_worker(store, bystander, bystander, time.time, config, metrics).step()

    asyncio.run(main())


async def test_the_work_of_a_process_that_was_killed_is_free_within_ten_seconds(url: str) -> None:
    """While it lives nobody gets its work, however long that takes; after kill -9 its lease is short."""
    store = await open_store(url)
    await store.logs.append([append(fatal=True, delta=delta_of("a line"))])
    ours, theirs = multiprocessing.Pipe()
    worker = preloaded.forked(_work_for_ever, (url, theirs))
    worker.start()
    try:
        assert await asyncio.to_thread(ours.poll, 120)
        first = ours.recv()
        assert await asyncio.to_thread(ours.poll, 120)
        assert ours.recv() > first, "the lease is renewed"
        assert not await claimed(store, time.time())
    finally:
        worker.kill()
        await asyncio.to_thread(worker.join)
    killed = time.time()
    assert await claimed(store, killed + 9.0)
    await store.close()
