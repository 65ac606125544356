"""Contract of who speaks for a job: its agent ends it, its tenant sends its lines, and nobody takes its id."""

from dataclasses import replace
from typing import Any

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import (
    AttemptKey,
    Event,
    EventKind,
    Job,
    NodeActor,
    NodeEvent,
    NodeEventKind,
    PlanState,
    Provenance,
    own_job_id,
)
from diagnoser.model.access import Owner, Viewer
from diagnoser.model.errors import OwnerMoved
from diagnoser.model.logs import Cursor
from diagnoser.model.queries import PlanFilter
from tests.contract.records import OUT, TIMING, append, outbox_message, plan, record

ID, TENANT = "slurm-main-124", "alice"
KEY, OWN = AttemptKey(ID), AttemptKey(own_job_id(ID, TENANT))
ALICE = Viewer(tenant=TENANT)
SAID = Event(EventKind.EXIT, 300.0, code=1)
TOLD = replace(SAID, provenance=Provenance.SCHEDULER)
AGENTS = Job(ID, "main", nodes=("n1",), tenant=TENANT, created=200.0, registered=True)


async def end_of(store: SqlStore, job: str = ID) -> float | None:
    (attempt,) = await store.jobs.attempts(job)
    return attempt.ended


@pytest.mark.parametrize("job", [ID, own_job_id(ID, "mallory"), "k8s:main:job:team:train"])
async def test_an_end_of_a_job_whose_cluster_has_an_agent_is_told_by_it(store: SqlStore, job: str) -> None:
    """By the form of the id, before it is registered: the end that anybody says is kept, and ends nothing."""
    await store.vitals.record_agent("main", "agent-1", 100.0)
    assert await store.jobs.add_event(AttemptKey(job), SAID)
    (attempt,) = await store.jobs.attempts(job)
    assert (attempt.ended, attempt.events, attempt.revision) == (None, (SAID,), 1)
    await store.jobs.add_event(AttemptKey(job), replace(TOLD, time=310.0))
    assert await end_of(store, job) == 310.0


@pytest.mark.parametrize("job", ["slurm-east-124", "mainframe-1", "main", "train-main-run"[:10], "slurm-main2-1"])
async def test_other_ids_are_ended_by_who_sends_their_lines(store: SqlStore, job: str) -> None:
    """An id that no agent makes has no scheduler that could tell."""
    await store.vitals.record_agent("main", "agent-1", 100.0)
    await store.jobs.add_event(AttemptKey(job), SAID)
    assert await end_of(store, job) == 300.0


async def test_an_end_that_anybody_says_is_no_fact_of_a_registered_job(store: SqlStore) -> None:
    """Its worker hears when it was said, and nothing else; the scheduler's own ends it."""
    await store.jobs.register(AGENTS, 1)
    await store.logs.append([append(KEY, fatal=True)])
    await store.jobs.add_event(KEY, SAID)
    (claim,) = await store.work.claim_attempts(400.0, TIMING, 60.0, 10)
    assert (claim.runs, claim.hinted, claim.attempt.events) == (True, 300.0, ())
    await store.work.release(claim)
    await store.jobs.add_event(KEY, TOLD)
    (claim,) = await store.work.claim_attempts(500.0, TIMING, 60.0, 10)
    assert (claim.runs, claim.attempt.events) == (False, (TOLD,))


async def test_a_hint_ends_a_patience(store: SqlStore) -> None:
    """A silent run whose next look was put off for long is looked at after the shortest silence again."""
    await store.jobs.register(AGENTS, 1)
    await store.logs.append([append(KEY, at=300.0)])
    (claim,) = await store.work.claim_silent(400.0, 15.0, 60.0, 10)
    await store.work.release(claim, until=9_000.0, patience=5_000.0)
    assert await store.work.claim_silent(500.0, 15.0, 60.0, 10) == []
    await store.jobs.add_event(KEY, replace(SAID, time=500.0))
    assert [claim.attempt.key for claim in await store.work.claim_silent(501.0, 15.0, 60.0, 10)] == [KEY]


async def test_a_registration_makes_what_the_tenant_sent_the_job(store: SqlStore, second: SqlStore) -> None:
    """Its lines, cursors and events, at once for all replicas; what other tenants sent stays theirs."""
    theirs = AttemptKey(own_job_id(ID, "mallory"))
    for key, tenant in ((OWN, TENANT), (theirs, "mallory")):
        await store.jobs.assign_owner([key.job], Owner("", tenant), 100.0)
        sender = frozenset({Viewer(tenant=tenant)})
        await store.logs.append([replace(append(key, delta=tenant.encode()), senders=sender)])
        await store.jobs.add_event(key, Event(EventKind.CHECKPOINT, 150.0, step=3, path="/c"), Viewer(tenant=tenant))
    await second.jobs.register(AGENTS, 1)
    assert [piece.data for piece in await store.logs.pieces(KEY)] == [b"alice"]
    assert (await store.logs.cursors([KEY]))[KEY] == {OUT: Cursor(((1, 10),), 1)}
    (attempt,) = await store.jobs.attempts(ID)
    assert ([event.step for event in attempt.events], attempt.nodes) == ([3], ("n1",))
    assert await store.jobs.find(OWN.job) is None
    assert [piece.data for piece in await store.logs.pieces(theirs)] == [b"mallory"]
    assert await store.jobs.owners([ID, theirs.job, "none"]) == {
        ID: Owner("main", TENANT),
        theirs.job: Owner("", "mallory"),
    }


async def test_a_sender_that_remembers_the_wrong_name_is_told(store: SqlStore, second: SqlStore) -> None:
    """Within the commit: neither lines nor events go to a name that the registration has replaced, nor to a job that
    has become another tenant's. Nothing of the commit is stored."""
    await store.jobs.assign_owner([OWN.job], Owner("", TENANT), 100.0)
    await second.jobs.register(AGENTS, 1)
    mine = frozenset({ALICE})
    with pytest.raises(OwnerMoved):
        await store.logs.append([append(AttemptKey("other")), replace(append(OWN), senders=mine)])
    with pytest.raises(OwnerMoved):
        await store.jobs.add_event(OWN, SAID, ALICE)
    assert (await store.jobs.find(OWN.job), await store.jobs.find("other")) == (None, None)
    await store.logs.append([replace(append(KEY), senders=mine)])
    await second.jobs.register(replace(AGENTS, tenant="bob"), 1)
    with pytest.raises(OwnerMoved):
        await store.logs.append([replace(append(KEY, read=Cursor(((1, 10),), 1)), senders=mine)])
    assert len(await store.logs.pieces(KEY)) == 0


async def test_an_id_that_a_scheduler_gives_anew_begins_empty(store: SqlStore) -> None:
    """Its count began anew: what it called so before stays with its tenant, lines, end and plans; a number in place of
    a user's name is the same user."""
    await store.jobs.register(AGENTS, 1)
    await store.logs.append([append(KEY, fatal=True)])
    await store.jobs.add_event(KEY, TOLD)
    (claim,) = await store.work.claim_attempts(400.0, TIMING, 60.0, 10)
    await store.work.save_diagnosis(claim, record("01", claim), plan(KEY), [outbox_message("e")])
    await store.jobs.register(replace(AGENTS, tenant="uid 1001"), 1)
    assert len(await store.logs.pieces(KEY)) == 1
    await store.jobs.register(AGENTS, 1)
    await store.jobs.register(replace(AGENTS, tenant="bob", nodes=("n2",)), 1)
    (attempt,) = await store.jobs.attempts(ID)
    assert (attempt.nodes, attempt.ended, attempt.events, await store.logs.pieces(KEY)) == (("n2",), None, (), [])
    assert (await store.jobs.owners([ID, OWN.job])) == {ID: Owner("main", "bob"), OWN.job: Owner("main", TENANT)}
    assert (len(await store.logs.pieces(OWN)), await end_of(store, OWN.job)) == (1, 300.0)
    (moved,) = await store.plans.page(PlanFilter(), "", 10)
    assert moved.job == OWN.job


async def test_the_first_registration_withdraws_what_others_brought_about(store: SqlStore) -> None:
    """An end that no scheduler told, and plans that nobody carries out yet; a later one leaves both alone."""
    await store.jobs.add_event(KEY, SAID)
    (claim,) = await store.work.claim_attempts(400.0, TIMING, 60.0, 10)
    made = replace(plan(KEY), state=PlanState.SENT)
    await store.work.save_diagnosis(claim, record("01", claim), made, [outbox_message("e")])
    await store.jobs.register(AGENTS, 1)
    (withdrawn,) = await store.plans.page(PlanFilter(), "", 10)
    assert (withdrawn.state, await end_of(store)) == (PlanState.SUPERSEDED, None)
    await store.jobs.add_event(KEY, TOLD)
    await store.jobs.register(AGENTS, 1)
    assert await end_of(store) == 300.0


async def test_the_launches_that_an_agent_told_of(store: SqlStore) -> None:
    """Those with nodes count, not what shippers have opened; of a job that nobody registered there are none."""
    await store.jobs.register(AGENTS, 2)
    for key in (AttemptKey(ID, 3), AttemptKey("free", 7)):
        await store.logs.append([append(key)])
    assert await store.logs.newest_of_registered([ID, "free", "none"]) == {ID: 2}


async def test_what_happened_to_the_nodes_of_a_job(store: SqlStore) -> None:
    """Those that are asked for, of the cluster, from a time on, in order."""

    async def note(node: str, time: float, cluster: str = "main") -> None:
        await store.nodes.add_event(NodeEvent(cluster, node, NodeEventKind.DOWN, NodeActor.DIAGNOSER, time))

    for node, time in (("n2", 130.0), ("n1", 120.0), ("n1", 90.0), ("n3", 120.0)):
        await note(node, time)
    await note("n1", 125.0, "east")
    told: list[Any] = [(event.node, event.time) for event in await store.nodes.events("main", ["n1", "n2"], 100.0)]
    assert told == [("n1", 120.0), ("n2", 130.0)]
