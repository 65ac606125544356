"""Everything at once on one seeded clock: what was promised holds, whoever dies and however often."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from structlog.testing import capture_logs

from diagnoser import app
from diagnoser.adapters.sql.database import create_engine
from diagnoser.adapters.sql.migrations import upgrade_engine
from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.compress import read_pieces
from diagnoser.config.settings import Settings
from diagnoser.model import AttemptKey, Plan, PlanState, Stream
from diagnoser.model.queries import DiagnosisFilter, PlanFilter
from diagnoser.model.taxonomy import Outcome
from diagnoser.planning.planner import alert_key, verdict_key
from diagnoser.worker import metric_watch
from tests import accuracy_bars
from tests.simulation.site import ENDS, Agent, Scheduler, Site
from tests.simulation.virtual_time import Gate, VirtualLoop
from tests.thorough import THOROUGH
from tests.unit.memory_cluster import PREFIX

SEEDS = 1000 if THOROUGH else 4
TROUBLE_SECONDS, LONGEST_SECONDS, QUIET_SECONDS = 180.0, 3600.0, 60.0
OPEN = (PlanState.SENT, PlanState.WAITING)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_promises_hold_whoever_dies(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are in the log once, a node goes with proof, a job runs once, and each verdict comes and is delivered."""

    async def at_once(func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return func(*args)

    monkeypatch.setattr(anyio.to_thread, "run_sync", at_once)
    monkeypatch.setattr(app, "POLL_SECONDS", 20.0)
    monkeypatch.setattr(metric_watch, "PERIOD", 10.0)
    chance = random.Random(seed)
    gate = Gate(chance)
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(gate)) as runner, capture_logs():
        runner.run(simulate(chance, gate, tmp_path))


async def simulate(chance: random.Random, gate: Gate, folder: Path) -> None:
    """Two clusters with two jobs each; on the first node of each no GPU works."""
    url = f"sqlite:///{folder}/site.db"
    with gate.stopped():
        await upgrade(url)
    alerts: dict[str, Any] = {"alertmanager_url": "http://127.0.0.1:9/"}
    settings = Settings(database_url=url, recovery_mode="act", allowed_hosts="*", **alerts)
    site = Site(url, chance, gate, settings)
    for name in ("one", "two"):
        await site.start_replica(name, chance.uniform(-2.0, 2.0))
    for cluster in ("east", "west"):
        site.schedulers[cluster] = scheduler = Scheduler.of(cluster)
        site.agents.append(Agent(site, cluster, folder / f"{cluster}.json"))
        ends = ("gpu", chance.choice(list(ENDS)))
        for job, end in zip(scheduler.jobs, ends, strict=True):
            site.jobs.append(site.outside.spawn(site.train(cluster, job, end)))
    for agent in site.agents:
        agent.start()
    site.outside.spawn(site.decide_plans())
    await site.make_trouble(TROUBLE_SECONDS)
    await until_quiet(site)
    for process in (*site.agents, site.outside, *site.replicas):
        await process.end()
    with gate.stopped():
        await check(site)


async def upgrade(url: str) -> None:
    engine = create_engine(url)
    await upgrade_engine(engine)
    await engine.dispose()


async def until_quiet(site: Site) -> None:
    """No replica is missing, no job runs, no plan is open, and every message is delivered."""
    while asyncio.get_running_loop().time() < LONGEST_SECONDS:
        await asyncio.sleep(QUIET_SECONDS)
        with site.gate.stopped():
            store = await open_store(site.url)
            waiting = [plan for plan in await plans(store) if plan.state in OPEN]
            undelivered = [record for record in await store.outbox.messages() if record.state == "pending"]
            ended = len(await store.diagnoses.page(DiagnosisFilter(current_only=True), "", 100))
            await store.close()
        is_over = all(job.done() for job in site.jobs) and ended == len(site.ended)
        if is_over and not waiting and not undelivered:
            return


async def plans(store: SqlStore) -> list[Plan]:
    return await store.plans.page(PlanFilter(), "", 100)


async def check(site: Site) -> None:
    """What must hold in the end."""
    store = await open_store(site.url)
    for job in site.jobs:
        assert job.done() and job.exception() is None
    assert [wrong for scheduler in site.schedulers.values() for wrong in scheduler.wrongs] == []
    await check_logs(store, site)
    await check_verdicts(store, site)
    await check_nodes(store, site)
    await store.close()


async def check_logs(store: SqlStore, site: Site) -> None:
    """Every acknowledged line is in the log, once."""
    assert site.acknowledged
    for (name, launch), count in site.acknowledged.items():
        pieces = [piece.data for piece in await store.logs.pieces(AttemptKey(PREFIX + name, launch))]
        delta = read_pieces(pieces, accuracy_bars.load().compressor)
        assert [*delta.shares[Stream("stdout", "", 1)].ranges] == [(1, count)]
        ranges = [lines for share in delta.shares.values() for lines in share.ranges]
        assert delta.lines == sum(last - first + 1 for first, last in ranges)


async def check_verdicts(store: SqlStore, site: Site) -> None:
    """Every launch that ended has one current verdict, which says how, and what it has to say was delivered."""
    verdicts = await store.diagnoses.page(DiagnosisFilter(current_only=True), "", 100)
    said = {(verdict.attempt.job, verdict.attempt.number): verdict.diagnosis.outcome for verdict in verdicts}
    assert len(said) == len(verdicts)
    expected = {(PREFIX + name, launch): outcome for (name, launch), outcome in site.ended.items()}
    assert said == expected
    failures = [verdict for verdict in verdicts if verdict.diagnosis.outcome is Outcome.FAILED]
    assert failures
    assert {alert_key(verdict_key(verdict), "alertmanager") for verdict in failures} <= site.deliveries.got.keys()
    messages = await store.outbox.messages()
    assert {record.state for record in messages} == {"sent"}
    assert {record.message.key for record in messages} <= site.deliveries.got.keys()


async def check_nodes(store: SqlStore, site: Site) -> None:
    """A node is out because of a plan that holds a proof against it."""
    proven = {proof.node for plan in await plans(store) for proof in plan.proofs}
    for scheduler in site.schedulers.values():
        out = {node.name for node in scheduler.all_nodes.values() if node.cordoned}
        assert out <= scheduler.bad
        assert out <= proven
