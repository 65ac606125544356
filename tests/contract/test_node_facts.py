"""Contract of what is known of nodes beside their state: notes, alerts, requests to give them back, and launches."""

import asyncio
from dataclasses import replace

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import (
    AttemptKey,
    Event,
    EventKind,
    Job,
    NodeAlert,
    NodeNote,
    Provenance,
    UncordonRequest,
    UncordonState,
)
from diagnoser.model.ids import id_of
from tests.contract.records import append

ALERT = NodeAlert("east", "gpu-1", "f1", "GpuXid", 100.0, 110.0, labels={"node": "gpu-1"}, by="am")
REQUEST = UncordonRequest(id_of(100.0, 1), "east", "gpu-1", "ida", 100.0, "new GPU")


async def test_notes_are_of_one_node_and_the_newest_comes_first(store: SqlStore) -> None:
    """Of nodes with the same name in two clusters each has its own."""
    for number, cluster in enumerate(("east", "east", "west")):
        note = NodeNote(id_of(100.0 + number, 1), cluster, "gpu-1", 100.0 + number, "ida", f"note {number}")
        await store.node_facts.add_note(note)
    assert [note.text for note in await store.node_facts.notes("east", "gpu-1", 10)] == ["note 1", "note 0"]
    assert [note.text for note in await store.node_facts.notes("east", "gpu-1", 1)] == ["note 1"]
    assert [note.by for note in await store.node_facts.notes("west", "gpu-1", 10)] == ["ida"]


async def test_an_alert_is_known_by_its_start_and_takes_its_end(store: SqlStore) -> None:
    """What is told again is one alert; the same labels that fire later are another one."""
    assert await store.node_facts.unknown_alerts([ALERT, ALERT]) == [ALERT]
    await store.node_facts.record_alerts([ALERT])
    ended, again = replace(ALERT, ended=150.0), replace(ALERT, started=200.0)
    assert await store.node_facts.unknown_alerts([ended, again]) == [again]
    await store.node_facts.record_alerts([ended, again, ALERT])
    assert await store.node_facts.alerts("east", "gpu-1", 10) == [again, ended]
    assert await store.node_facts.alerts("west", "gpu-1", 10) == []


async def test_alerts_of_a_node_are_bounded(store: SqlStore) -> None:
    """A sender whose alerts never repeat fills no table: the newest stay."""
    many = [replace(ALERT, fingerprint=str(number), started=float(number)) for number in range(230)]
    await store.node_facts.record_alerts(many)
    kept = await store.node_facts.alerts("east", "gpu-1", 500)
    assert [alert.started for alert in kept] == [float(number) for number in range(229, 29, -1)]


async def test_nodes_are_known_by_their_short_and_full_names(store: SqlStore) -> None:
    """Those that agents named; a name that only begins alike is another node."""
    await store.jobs.register(Job("j", cluster="east", nodes=("gpu-1.lab", "gpu-10.lab"), created=1.0), 1)
    assert await store.node_facts.nodes_like("east", {"gpu-1"}) == ["gpu-1.lab"]
    assert await store.node_facts.nodes_like("east", {"gpu-1.lab"}) == ["gpu-1.lab"]
    assert await store.node_facts.nodes_like("west", {"gpu-1"}) == []


async def test_one_request_to_give_a_node_back_is_open_at_a_time(store: SqlStore) -> None:
    """Of two people who ask at once one is told that somebody asked already; an old request does not count."""
    others = [replace(REQUEST, id=id_of(101.0, number), by=f"p{number}", created=101.0) for number in (1, 2)]
    asked = await asyncio.gather(*(store.node_facts.request_uncordon(request, 0.0) for request in others))
    assert sorted(asked) == [False, True]
    assert not await store.node_facts.request_uncordon(REQUEST, 50.0)
    later = replace(REQUEST, id=id_of(900.0, 1), created=900.0)
    assert await store.node_facts.request_uncordon(later, 300.0)
    assert await store.node_facts.request_uncordon(
        replace(REQUEST, id=id_of(900.0, 2), node="gpu-2", created=900.0), 300.0
    )


async def test_a_request_is_handed_to_one_agent_and_ends_once(store: SqlStore) -> None:
    """An agent that dies loses it; the first result stands, and one of another cluster is not known."""
    await store.node_facts.request_uncordon(REQUEST, 0.0)
    claims = [await store.node_facts.claim_uncordons("east", now, 60.0, 0.0, 10) for now in (110.0, 120.0, 171.0)]
    assert [[claim.id for claim in claimed] for claimed in claims] == [[REQUEST.id], [], [REQUEST.id]]
    assert await store.node_facts.claim_uncordons("west", 300.0, 60.0, 0.0, 10) == []
    assert await store.node_facts.claim_uncordons("east", 300.0, 60.0, 200.0, 10) == []
    assert not await store.node_facts.finish_uncordon(REQUEST.id, "west", 180.0, UncordonState.DONE, "no")
    assert await store.node_facts.finish_uncordon(REQUEST.id, "east", 180.0, UncordonState.DONE, "back")
    assert await store.node_facts.finish_uncordon(REQUEST.id, "east", 190.0, UncordonState.REFUSED, "late")
    (ended,) = await store.node_facts.uncordons("east", "gpu-1", 10)
    assert (ended.state, ended.result, ended.ended) == (UncordonState.DONE, "back", 180.0)
    assert await store.node_facts.claim_uncordons("east", 999.0, 60.0, 0.0, 10) == []


async def test_what_runs_and_ran_on_a_node(store: SqlStore) -> None:
    """By the nodes that the scheduler gave each launch, in its own cluster; a name that only begins alike is none."""
    for job, cluster, nodes in (
        ("runs", "east", ("gpu-1", "gpu-2")),
        ("ended", "east", ("gpu-1",)),
        ("alike", "east", ("gpu-10", "gpu-1.lab")),
        ("west", "west", ("gpu-1",)),
        ("silent", "east", ("gpu-1",)),
    ):
        await store.jobs.register(Job(job, cluster=cluster, nodes=nodes, created=1_000.0), 1)
    await store.logs.append([append(AttemptKey("runs"), at=1_100.0)])
    await store.jobs.add_event(AttemptKey("ended"), Event(EventKind.EXIT, 1_050.0, code=0))
    running = await store.node_facts.running_on("east", ["gpu-1"], 1_020.0)
    assert [(run.attempt.job, run.nodes, run.ended) for run in running] == [("runs", ("gpu-1", "gpu-2"), None)]
    assert {run.attempt.job for run in await store.node_facts.running_on("east", ["gpu-1"], 900.0)} == {
        "runs",
        "silent",
    }
    many = [f"gpu-{number}" for number in range(1, 40)]
    assert {run.attempt.job for run in await store.node_facts.running_on("east", many, 900.0)} == {
        "runs",
        "silent",
        "alike",
    }
    assert [(run.attempt.job, run.ended) for run in await store.node_facts.ran_on("east", "gpu-1", 10)] == [
        ("ended", 1_050.0)
    ]
    assert await store.node_facts.running_on("east", [], 0.0) == []


async def test_only_a_scheduler_says_which_nodes_there_are(store: SqlStore) -> None:
    """Nodes that a client registers for itself are not listed; a launch that ended leaves its nodes with no job."""
    await store.jobs.register(Job("mine", "east", nodes=("gpu-1", "gpu-2"), registered=True, created=100.0), 1)
    await store.jobs.register(Job("over", "east", nodes=("gpu-2", "gpu-3"), registered=True, created=100.0), 1)
    await store.jobs.register(Job("loud", "east", nodes=("gpu-7", "gpu-8"), created=100.0), 1)
    await store.jobs.add_event(
        AttemptKey("over"), Event(EventKind.EXIT, 200.0, provenance=Provenance.SCHEDULER, code=1)
    )
    await store.logs.append([append(AttemptKey("loud"), at=150.0)])
    nodes = await store.node_facts.allocated(50.0)
    assert nodes == {("east", "gpu-1"): 1, ("east", "gpu-2"): 1, ("east", "gpu-3"): 0}
