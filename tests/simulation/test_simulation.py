"""Everything at once on one seeded clock: what was promised holds, whoever dies and however often."""

import asyncio
import random
import secrets
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from structlog.testing import capture_logs

from diagnoser import app
from diagnoser.adapters.sql.migrations import upgrade_engine
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import read_pieces
from diagnoser.config.settings import Settings
from diagnoser.learning.case_replay import CaseReplayer
from diagnoser.learning.rule_lifecycle import RuleLifecycle
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.model import Attempt, AttemptKey, Plan, PlanState, Stream
from diagnoser.model.errors import Unavailable
from diagnoser.model.queries import DiagnosisFilter, PlanFilter
from diagnoser.model.taxonomy import Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.planning.planner import alert_key, verdict_key
from diagnoser.worker.compaction import Compaction
from diagnoser.worker.metric_watch import MetricWatch
from tests import accuracy_bars
from tests.postgresql import new_database
from tests.simulation.cluster import Scheduler
from tests.simulation.database import open_memory, under_way
from tests.simulation.site import ENDS, Site
from tests.simulation.virtual_time import ANSWER_SECONDS, VirtualLoop
from tests.thorough import THOROUGH
from tests.unit.memory_cluster import PREFIX

SEEDS, POSTGRESQL_SEEDS = (1000, 20) if THOROUGH else (30, 1)
TROUBLE_SECONDS, LONGEST_SECONDS, QUIET_SECONDS, COMPACTION_SECONDS, ANALYSIS_SECONDS = 150.0, 3600.0, 20.0, 60.0, 3.0
CLUSTERS = ("east", "west")
TWO_CLUSTERS = 0.15
"""Chance of a second one."""
SKEW_SECONDS = 5.0
"""Of a machine's clock, at most."""
AT_REST = (RuleLifecycle, CaseReplayer)
LOOKS = ("alert_blind_spots", "alert_score_drops", "alert_idle_gpus")
"""Loops that have no part in what is promised here, and take half of the time."""
_ALERTS: dict[str, Any] = {"alertmanager_url": "http://127.0.0.1:9/"}
SETTINGS = Settings(recovery_mode="act", allowed_hosts="*", **_ALERTS)
OPEN = (PlanState.SENT, PlanState.WAITING)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_promises_hold_whoever_dies(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are in the log once, a node goes with proof, a job runs once, and each verdict comes and is delivered."""
    run_seed(seed, "", tmp_path, monkeypatch)


@pytest.mark.xdist_group("postgresql")
@pytest.mark.parametrize("seed", range(POSTGRESQL_SEEDS))
def test_promises_hold_while_statements_interleave(
    seed: int, postgresql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same over PostgreSQL, where transactions of all processes are under way together."""
    url = asyncio.run(new_database(postgresql))
    run_seed(seed, url, tmp_path, monkeypatch)


def run_seed(seed: int, url: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """One history of a site. The same seed over SQLite gives the same history. url: of PostgreSQL, "" for SQLite."""
    memory = None if url else open_memory(folder)
    chance = random.Random(seed)
    patch.setattr(anyio.to_thread, "run_sync", at_once)
    patch.setattr(app, "POLL_SECONDS", 30.0)
    patch.setattr(app, "Random", lambda: chance)
    patch.setattr(secrets, "randbits", chance.getrandbits)
    for loop in AT_REST:
        patch.setattr(loop, "run", rest)
    for look in LOOKS:
        patch.setattr(app, look, rest)
    patch.setattr(MetricWatch, "step", rest)
    patch.setattr("diagnoser.worker.compaction.LEASE_SECONDS", 2 * ANALYSIS_SECONDS / 3)
    patch.setattr(Compaction, "run", compacting(chance))
    patch.setattr(RuleRegistry, "analyze", slowed(RuleRegistry.analyze, chance))
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, capture_logs():
        runner.run(simulate(Site(url, chance, SETTINGS, memory), folder))
    if memory:
        memory.close()


async def at_once(func: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return func(*args)


async def rest(*_: object) -> None:
    """In place of a loop."""


def slowed(work: Callable[..., Any], chance: random.Random) -> Callable[..., Any]:
    """The same, which takes its time: meanwhile lines arrive, and attempts end."""

    async def slow(*args: Any) -> Any:
        await asyncio.sleep(chance.uniform(0.0, ANALYSIS_SECONDS))
        return await work(*args)

    return slow


def compacting(chance: random.Random) -> Callable[..., Coroutine[Any, Any, None]]:
    """A loop that looks for something to compact less often than the service does, and often loses its lease."""

    async def compact(self: Compaction, *_: object) -> None:
        self.folding = slowed(self.folding, chance)
        while True:
            await asyncio.sleep(chance.uniform(0.0, COMPACTION_SECONDS))
            with suppress(Unavailable):
                await self.step()

    return compact


async def simulate(site: Site, folder: Path) -> None:
    """One cluster or two, with two jobs and an agent or two each; on the first node of each no GPU works."""
    loop, chance = asyncio.get_running_loop(), site.chance
    assert isinstance(loop, VirtualLoop)
    if site.url:
        loop.has_sockets = True
        loop.answer_seconds = 60.0
        await upgrade(site)
        loop.answer_seconds = ANSWER_SECONDS
    for name in ("one", "two"):
        await site.start_replica(name, chance.uniform(-SKEW_SECONDS, SKEW_SECONDS))
    for cluster in CLUSTERS[: 1 + (chance.random() < TWO_CLUSTERS)]:
        site.schedulers[cluster] = scheduler = Scheduler.of(cluster)
        ends = ("gpu", chance.choice(list(ENDS)))
        for job, end in zip(scheduler.jobs, ends, strict=True):
            site.jobs.append(site.outside.spawn(site.train(cluster, job, end)))
        for name in (f"{cluster}-a", f"{cluster}-b")[: chance.choice((1, 2, 2))]:
            site.start_agent(name, cluster, folder / f"{name}.json", chance.uniform(-60.0, 60.0))
    site.outside.spawn(site.decide_plans())
    await site.make_trouble(TROUBLE_SECONDS)
    await until_quiet(site)
    for process in (*site.agents, *site.replicas):
        await process.end()
    store = site.open_store(site.outside)
    await check(site, store)
    await store.close()
    await site.outside.end()


async def upgrade(site: Site) -> None:
    store = site.open_store(site.outside)
    with under_way():
        await upgrade_engine(store.db._engine)
    await store.close()


async def until_quiet(site: Site) -> None:
    """No replica is missing, no job runs, no plan is open, and every message is delivered."""
    store = site.open_store(site.outside)
    clock = asyncio.get_running_loop().time
    while clock() < LONGEST_SECONDS and not await is_quiet(site, store):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(QUIET_SECONDS)
    await store.close()


async def is_quiet(site: Site, store: SqlStore) -> bool:
    if not all(job.done() for job in site.jobs):
        return False
    if any(plan.state in OPEN for plan in await plans(store)):
        return False
    if any(record.state == "pending" for record in await store.outbox.messages()):
        return False
    return all(attempt.ended and attempt.diagnosed == attempt.revision for attempt in await attempts(store, site))


async def attempts(store: SqlStore, site: Site) -> list[Attempt]:
    """All launches that ended."""
    jobs = {name for name, _ in site.ended}
    return [attempt for name in sorted(jobs) for attempt in await store.jobs.attempts(PREFIX + name)]


async def verdicts(store: SqlStore, *, current: bool = True) -> list[DiagnosisRecord]:
    return await store.diagnoses.page(DiagnosisFilter(current_only=current), "", 1000)


async def plans(store: SqlStore) -> list[Plan]:
    return await store.plans.page(PlanFilter(), "", 100)


async def check(site: Site, store: SqlStore) -> None:
    """What must hold in the end."""
    for job in site.jobs:
        assert job.done()
        job.result()  # raises what went wrong
    assert site.wrongs == []
    await check_logs(store, site)
    await check_verdicts(store, site)
    await check_messages(store, site)
    await check_nodes(store, site)


async def check_logs(store: SqlStore, site: Site) -> None:
    """Every acknowledged line is in the log, once."""
    assert site.acknowledged.keys() == site.ended.keys()
    for (name, launch), count in site.acknowledged.items():
        pieces = [piece.data for piece in await store.logs.pieces(AttemptKey(PREFIX + name, launch))]
        delta = read_pieces(pieces, accuracy_bars.load().compressor)
        assert [*delta.shares[Stream("stdout", "", 1)].ranges] == [(1, count)]
        ranges = [lines for share in delta.shares.values() for lines in share.ranges]
        assert delta.lines == sum(last - first + 1 for first, last in ranges)


async def check_verdicts(store: SqlStore, site: Site) -> None:
    """Every launch that ended has one current verdict, of all of its log, which says how it ended.

    One that was revised had seen less: two of the same revision would be of two workers, one of which lost its lease.
    """
    current = await verdicts(store)
    newest = {verdict.attempt: verdict.revision for verdict in current}
    assert {attempt.key: attempt.revision for attempt in await attempts(store, site)} == newest
    said = {(verdict.attempt.job, verdict.attempt.number): verdict.diagnosis.outcome for verdict in current}
    assert len(said) == len(current)
    assert said == {(PREFIX + name, launch): outcome for (name, launch), outcome in site.ended.items()}
    seen = [(verdict.attempt, verdict.revision) for verdict in await verdicts(store, current=False)]
    assert len(set(seen)) == len(seen)


async def check_messages(store: SqlStore, site: Site) -> None:
    """Each verdict of a failure, also one that was revised, and each plan that was to be carried out, was delivered.

    Nothing else was, and nothing twice where nobody was in trouble and clocks agree on when a lease ends.
    """
    got = site.deliveries.bodies.keys()
    skews = [replica.skew for replica in site.replicas]
    if max(skews) - min(skews) < SETTINGS.claim_lease_seconds / 2:
        assert {key for key, count in site.deliveries.in_calm.items() if count > 1} == set()
    failures = [
        verdict for verdict in await verdicts(store, current=False) if verdict.diagnosis.outcome is Outcome.FAILED
    ]
    assert failures
    assert {alert_key(verdict_key(verdict), "alertmanager") for verdict in failures} <= got
    assert {plan.key for plan in await plans(store) if was_sent(plan)} <= got
    messages = await store.outbox.messages()
    assert {record.state for record in messages} == {"sent"}
    assert {record.message.key for record in messages} == got


async def check_nodes(store: SqlStore, site: Site) -> None:
    """A node is out because of a plan that holds a proof against it."""
    proven = {(plan.id, proof.node) for plan in await plans(store) for proof in plan.proofs}
    for scheduler in site.schedulers.values():
        out = {node.name for node in scheduler.all_nodes.values() if node.cordoned}
        assert out == scheduler.taken_out.keys()
        assert {(plan, node) for node, plan in scheduler.taken_out.items()} <= proven


def was_sent(plan: Plan) -> bool:
    return any(change.state is PlanState.SENT for change in plan.history)
