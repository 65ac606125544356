"""What one viewer sees: on both databases, every way of reading finds the viewer's own rows and no other ones."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import insert, inspect, select, text

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.sql.tables import metadata, revisions
from diagnoser.adapters.sql.visibility import _CONDITIONS
from diagnoser.model import AttemptKey, Job
from diagnoser.model.access import EVERYTHING, Owner, Viewer
from diagnoser.model.queries import DiagnosisFilter, IncidentFilter, LearnedRuleQuery, PlanFilter
from diagnoser.model.sorting import Sort
from tests.canaries import CLUSTER, COMMON, SHARED_NODE, Stored, store_everything

HIDDEN = {
    "source_offsets",
    "effects",
    "alert_threads",
    "alert_silences",
    "case_replays",
    "learned_rules",
    "rule_hits",
    "tokens",
    "users",
    "sessions",
    "login_tries",
    "audit_log",
    "saved_views",
    "agents",
    "blind_spots",
    "trial_runs",
    "trials",
    "trial_pieces",
    "trial_batches",
    "trial_runtimes",
    "nodes",
    "node_events",
    "node_notes",
    "node_alerts",
    "node_requests",
    "breakers",
}
"""Tables of which a tenant sees nothing."""
READS: dict[str, Callable[[SqlStore, Stored], Awaitable[Any]]] = {
    "list": lambda store, _: store.diagnoses.page(DiagnosisFilter(current_only=False), "", 100),
    "search": lambda store, _: store.diagnoses.page(DiagnosisFilter(text=COMMON), "", 100),
    "by node": lambda store, _: store.diagnoses.page(DiagnosisFilter(node=SHARED_NODE), "", 100),
    "facets": lambda store, _: store.diagnoses.facets(DiagnosisFilter()),
    "facets of a search": lambda store, _: store.diagnoses.facets(DiagnosisFilter(text=COMMON)),
    "attempts": lambda store, _: store.attempts.page(None, 0.0, "", 100),
    "running": lambda store, _: store.attempts.count_running(0.0),
    "news": lambda store, _: store.diagnoses.news("", 100),
    "trend": lambda store, _: store.diagnoses.failures_between([0.0, 2e9]),
    "incidents": lambda store, _: store.incidents.page(IncidentFilter(), "", 100),
    "incidents by category": lambda store, _: store.incidents.page(IncidentFilter(), "", 100, Sort("category")),
    "incidents by first failure": lambda store, _: store.incidents.page(IncidentFilter(), "", 100, Sort("first_seen")),
    "list by confidence": lambda store, _: store.diagnoses.page(DiagnosisFilter(), "", 100, Sort("confidence")),
    "list by type": lambda store, _: store.diagnoses.page(DiagnosisFilter(), "", 100, Sort("type")),
    "attempts by job": lambda store, _: store.attempts.page(None, 0.0, "", 100, Sort("job")),
    "plans": lambda store, _: store.plans.page(PlanFilter(), "", 100),
    "nodes": lambda store, _: store.nodes.marks(""),
    "breakers": lambda store, _: store.nodes.breakers(),
    "messages": lambda store, _: store.outbox.page("", "", 100),
    "rules": lambda store, _: store.rules.page(LearnedRuleQuery(), "", 100),
    "replays": lambda store, _: store.cases.replays(100),
    "unplaced": lambda store, _: store.unplaced.page(1.79e9, 100),
    "tokens": lambda store, _: store.tokens.list_all(),
    "a diagnosis": lambda store, other: store.diagnoses.find(other.ids["diagnosis"][0]),
    "a job": lambda store, other: store.jobs.find(other.ids["job"][0]),
    "a plan": lambda store, other: store.plans.find(other.ids["plan"][0]),
    "a log": lambda store, other: store.logs.pieces(AttemptKey(other.ids["job"][0])),
    "dumps": lambda store, other: store.evidence.runtime_files(AttemptKey(other.ids["job"][0])),
    "requests": lambda store, other: store.evidence.requests(AttemptKey(other.ids["job"][0])),
    "streams": lambda store, other: store.archive.streams(AttemptKey(other.ids["job"][0]), 100),
}


async def test_each_way_of_reading_finds_only_the_tenants_own(store: SqlStore) -> None:
    """Lists, searches, counts, and what is asked for by the other one's name; without a bound all is as before."""
    red, blue = await store_everything(store, "zqred", 1), await store_everything(store, "zqblue", 2)
    assert store.scoped_to(EVERYTHING) is store
    for own, other in ((red, blue), (blue, red)):
        view = store.scoped_to(Viewer(tenant=own.word))
        for name, read in READS.items():
            found = repr(await read(view, other))
            assert not [one for one in other.names - set(other.ids["incident"]) if one in found], name
        own_ones = await view.diagnoses.page(DiagnosisFilter(text=COMMON), "", 100)
        assert {record.id for record in own_ones} == set(own.ids["diagnosis"])
        assert (await view.diagnoses.failures_between([0.0, 2e9])) == (await _halved(store))
    assert len(await store.diagnoses.page(DiagnosisFilter(text=COMMON), "", 100)) == 4


async def _halved(store: SqlStore) -> list[dict[Any, int]]:
    return [
        {name: count // 2 for name, count in span.items()}
        for span in await store.diagnoses.failures_between([0.0, 2e9])
    ]


async def test_each_table_is_described_or_hidden(store: SqlStore) -> None:
    """A table that is new has no rows for a viewer until somebody says which of them are whose."""
    described = {*_CONDITIONS, "jobs", "incident_groups", "unplaced_streams"}
    assert metadata.tables.keys() - described == HIDDEN - described
    await store_everything(store, "zqred", 1)
    async with store.scoped_to(Viewer(tenant="nobody")).db.reading() as connection:
        names = await connection.run_sync(lambda opened: inspect(opened).get_table_names())
        for name in {*metadata.tables, *names} - {"revisions", "alembic_version"}:
            if not name.startswith("diagnosis_words_index"):
                assert (await connection.execute(text(f"SELECT * FROM {name}"))).first() is None, name


async def test_of_one_cluster(store: SqlStore) -> None:
    """Its jobs, nodes and the logs of its nodes, whoever's they are; nothing of another cluster."""
    red = await store_everything(store, "zqred", 1)
    here, elsewhere = store.scoped_to(Viewer(cluster=CLUSTER)), store.scoped_to(Viewer(cluster="west"))
    assert await here.jobs.find(red.ids["job"][0]) is not None and await elsewhere.jobs.find(red.ids["job"][0]) is None
    assert len(await here.nodes.marks("")) == 1 and await elsewhere.nodes.marks("") == []
    both = store.scoped_to(Viewer(CLUSTER, red.word))
    assert await both.jobs.find(red.ids["job"][0]) is not None
    assert await store.scoped_to(Viewer("west", red.word)).jobs.find(red.ids["job"][0]) is None
    await store.jobs.register(Job("of-no-cluster", created=1.0))
    assert await store.scoped_to(Viewer(cluster="default")).jobs.find("of-no-cluster") is not None
    assert await here.jobs.find("of-no-cluster") is None


@pytest.mark.parametrize("name", ["o'brien", "a\\'b", "50%", ":name $1 ?", "x' OR '1'='1", "ü/–", '"; --'])
async def test_a_tenant_may_be_called_anything(store: SqlStore, name: str) -> None:
    """Its name is a text in each query, and nothing else."""
    await store.jobs.register(Job("theirs", tenant=name, created=1.0))
    await store.jobs.register(Job("other", tenant="other", created=1.0))
    view = store.scoped_to(Viewer(tenant=name))
    assert await view.jobs.find("theirs") is not None and await view.jobs.find("other") is None


async def test_only_queries_are_narrowed(store: SqlStore) -> None:
    """Anything else than a query is refused where a view reads; writing goes on as it always does."""
    view = store.scoped_to(Viewer(tenant="red"))
    with pytest.raises(RuntimeError, match="only queries"):
        async with view.db.reading() as connection:
            await connection.execute(insert(revisions).values(name="x", value=1))
    await view.jobs.register(Job("made", tenant="blue", created=1.0))
    assert await store.jobs.find("made") is not None and await view.jobs.find("made") is None
    async with view.db.reading() as connection:
        newest = select(revisions.c.name).cte("jobs_of_all")
        assert (await connection.execute(select(newest))).first() is None


async def test_who_owns_a_job(store: SqlStore, second: SqlStore) -> None:
    """A new one is its sender's; one of no tenant stays so; one of no cluster becomes one of the sender's."""
    red = Owner("", "red")
    assert await store.jobs.assign_owner(["new"], red, 1.0) == {"new": red}
    assert await second.jobs.assign_owner(["new"], Owner("", "blue"), 2.0) == {"new": red}
    await store.jobs.register(Job("of-nobody", created=1.0))
    assert await store.jobs.assign_owner(["of-nobody"], red, 2.0) == {"of-nobody": Owner()}
    assert await store.jobs.assign_owner(["of-nobody"], Owner("east", "red"), 3.0) == {"of-nobody": Owner("east")}
    await store.jobs.register(Job("new", tenant="blue", created=1.0))
    assert await second.jobs.assign_owner(["new"], red, 4.0) == {"new": Owner("", "blue")}
