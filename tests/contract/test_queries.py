"""Contract of the read side."""

from dataclasses import replace
from itertools import product

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from structlog.testing import capture_logs

from diagnoser.adapters.sql import diagnoses
from diagnoser.adapters.sql.database import create_engine
from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.model import (
    AttemptKey,
    AttemptOutcome,
    CheckpointPhase,
    Diagnosis,
    Event,
    EventKind,
    FailedRun,
    Job,
    Mode,
    NodeProof,
    Plan,
    PlanChange,
    PlanState,
    ProofKind,
    Provenance,
    TransitionResult,
)
from diagnoser.model.errors import Unavailable
from diagnoser.model.ids import id_of
from diagnoser.model.logs import Cursor
from diagnoser.model.queries import DiagnosisFilter
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from tests.contract.records import append, claimed, diagnosis, plan, record, the_claim
from tests.thorough import diagonal

EVERYTHING = DiagnosisFilter()
DONE = Diagnosis(Outcome.COMPLETED, Category.NONE, FailureType.COMPLETED, 0.99, "heuristic:exit")


async def put(
    store: SqlStore, id: str, job: str = "", verdict: Diagnosis | None = None, created: float = 200.0
) -> None:
    await store.logs.append([append(AttemptKey(job or f"job-{id}"), fatal=True)])
    claim = await the_claim(store)
    await store.work.save_diagnosis(claim, record(id, claim, verdict, created), None, [])


async def ids(store: SqlStore, where: DiagnosisFilter = EVERYTHING, after: str = "", limit: int = 10) -> list[str]:
    return [found.id for found in await store.diagnoses.page(where, after, limit)]


async def test_pages_neither_repeat_nor_skip_when_rows_are_added(store: SqlStore) -> None:
    """A page starts after the last id seen, whatever came on top meanwhile."""
    for number in range(1, 5):
        await put(store, f"0{number}")
    first = await ids(store, limit=2)
    await put(store, "05")
    assert first == ["04", "03"]
    assert await ids(store, after="03", limit=2) == ["02", "01"]
    assert await ids(store, after="01") == []


FILTERS = (
    DiagnosisFilter(job="mine"),
    DiagnosisFilter(category="script"),
    DiagnosisFilter(type="key_error"),
    DiagnosisFilter(outcome="hung"),
    DiagnosisFilter(node="gpu-777"),
    DiagnosisFilter(since=500.0),
    DiagnosisFilter(text="100% of É_X"),
    DiagnosisFilter(job="mine", type="key_error", text="é_x"),
)


async def test_each_filter_finds_its_diagnosis_only(store: SqlStore) -> None:
    """Filters select by column, by suspect node, by time, and by text as typed, wild cards included."""
    base = diagnosis("KeyError: 100% of é_x")
    assert base.root_cause is not None
    odd = replace(
        base,
        outcome=Outcome.HUNG,
        category=Category.SCRIPT,
        type=FailureType.KEY_ERROR,
        root_cause=replace(base.root_cause, node="gpu-777"),
    )
    await put(store, "01", verdict=diagnosis("1000 of eax"))
    await put(store, "02", "mine", odd, created=500.0)
    await put(store, "03", verdict=diagnosis("100x of ézx"))
    for where in FILTERS:
        assert await ids(store, where) == ["02"], where


async def test_a_suspect_node_is_found_as_well_as_the_root_node(store: SqlStore) -> None:
    """All ranked nodes of a diagnosis lead to it; part of a name does not."""
    await put(store, "01")
    assert await ids(store, DiagnosisFilter(node="gpu-009")) == ["01"]
    assert await ids(store, DiagnosisFilter(node="gpu-00")) == []


SEARCHES = {
    "NotFound": True,
    "flash_ATTN modulenot": True,
    "named 3": True,
    "named 33": False,
    "odule": False,
    "lash attn": False,
    "na": False,
    "___": False,
    '" OR words:*': False,
    "flash' | 'x':*": False,
    "flash AND NOT NEAR(attn) ^ - + ( * ) :": False,
    "'\";--\\ %": False,
    "\U0001f4a5 flash": True,
    "ÉCOLE": True,
}
"""Text of a search -> whether it finds the diagnosis that has it."""


async def test_text_is_found_by_its_words(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """All words in any order, longer ones also by how they begin, and nothing in a search is syntax; what the newest
    do not have, the index finds, and both mean the same."""
    await put(store, "01", verdict=diagnosis("ModuleNotFoundError: No module named 'flash_attn_3' école"))
    for number in range(2, 6):
        await put(store, f"0{number}", verdict=diagnosis("nothing of this"))
    for recent in (diagnoses._RECENT, 2):
        monkeypatch.setattr(diagnoses, "_RECENT", recent)
        found = {search: await ids(store, DiagnosisFilter(text=search)) for search in SEARCHES}
        assert found == {search: ["01"] if is_there else [] for search, is_there in SEARCHES.items()}


async def test_a_search_goes_on_where_its_page_ended(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newest first, with the other filters, from the newest and from the index."""
    for number in range(1, 7):
        odd = diagnosis("odd one") if number % 2 else replace(diagnosis("odd one"), type=FailureType.KEY_ERROR)
        await put(store, f"0{number}", verdict=odd)
    for recent in (2_000, 1):
        monkeypatch.setattr(diagnoses, "_RECENT", recent)
        where = DiagnosisFilter(text="odd", type="key_error")
        assert await ids(store, where, limit=2) == ["06", "04"]
        assert await ids(store, where, after="04", limit=2) == ["02"]
        assert await ids(store, DiagnosisFilter(text="odd", node="gpu-009"), after="03") == ["02", "01"]
        assert await ids(store, DiagnosisFilter(text="odd", node="gpu-010")) == []


async def test_a_replaced_diagnosis_is_no_longer_found_by_its_text(store: SqlStore) -> None:
    """Nor counted; by its id it is."""
    await put(store, "01", "mine", diagnosis("before"))
    await store.logs.append([append(AttemptKey("mine"), fatal=True, read=Cursor(((1, 10),), 1))])
    claim = await the_claim(store, now=2_000.0)
    await store.work.save_diagnosis(claim, record("02", claim, diagnosis("after")), None, [])
    assert await ids(store, DiagnosisFilter(text="before", current_only=False)) == []
    assert await ids(store, DiagnosisFilter(text="after")) == ["02"]
    assert dict((await store.diagnoses.facets(EVERYTHING)).counts["type"]) == {"gpu_lost": 1}
    assert await store.diagnoses.find("01") is not None


async def test_news_are_what_came_after_an_id(store: SqlStore) -> None:
    """Oldest first, the newest of too many, and none that was replaced."""
    for number in range(1, 5):
        await put(store, f"0{number}")
    assert [news.id for news in await store.diagnoses.news("01", 10)] == ["02", "03", "04"]
    assert [news.id for news in await store.diagnoses.news("", 2)] == ["03", "04"]
    assert await store.diagnoses.news("04", 10) == []
    assert await ids(store, DiagnosisFilter(newer="02")) == ["04", "03"]


async def test_facets_count_what_the_filters_leave(store: SqlStore) -> None:
    """Each value with its number, the most frequent first, also within a search and for a node."""
    await store.jobs.register(Job("mine", cluster="east", labels={"family": "llama"}))
    await put(store, "01", "mine", replace(diagnosis("odd"), type=FailureType.KEY_ERROR, nodes=()))
    await put(store, "02")
    await put(store, "03")
    facets = await store.diagnoses.facets(EVERYTHING)
    assert facets.is_complete
    assert facets.counts["type"] == (("gpu_lost", 2), ("key_error", 1))
    assert facets.counts["cluster"] == (("default", 2), ("east", 1))
    assert facets.counts["decided_by"] == (("rule:gpu-lost", 3),)
    assert facets.counts["node"] == (("gpu-004", 3), ("gpu-009", 2))
    assert dict(facets.counts["family"])["llama"] == 1
    for where in (DiagnosisFilter(cluster="east"), DiagnosisFilter(text="odd"), DiagnosisFilter(family="llama")):
        assert (await store.diagnoses.facets(where)).counts["type"] == (("key_error", 1),)
        assert await ids(store, where) == ["01"]
    where = DiagnosisFilter(node="gpu-009", outcome="failed")
    assert (await store.diagnoses.facets(where)).counts["type"] == (("gpu_lost", 2),)
    assert (await store.diagnoses.facets(DiagnosisFilter(job="mine", node="gpu-009"))).counts.get("type", ()) == ()


async def test_facets_of_many_are_those_of_the_newest(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """And say so."""
    monkeypatch.setattr(diagnoses, "_COUNTED", 2)
    for number in range(1, 5):
        await put(store, f"0{number}")
    facets = await store.diagnoses.facets(EVERYTHING)
    assert (facets.is_complete, facets.limit, dict(facets.counts["outcome"])) == (False, 2, {"failed": 2})


async def test_a_diagnosis_comes_back_whole(store: SqlStore) -> None:
    """The body survives, with characters that databases find hard."""
    hard = diagnosis("\x00 \x1b[31m 錯誤 \U0001f4a5 '; DROP TABLE jobs; -- %s :name")
    await put(store, "01", verdict=hard)
    found = await store.diagnoses.find("01")
    assert found is not None and found.diagnosis == hard
    assert await store.diagnoses.find("02") is None


async def test_ping_answers_on_a_sound_database(store: SqlStore) -> None:
    """A store that was just opened is ready."""
    await store.ping()


@pytest.mark.own_database
async def test_ping_tells_when_the_schema_is_not_that_of_this_code(store: SqlStore, url: str) -> None:
    """A replica of another version is not ready, instead of failing request by request."""
    engine = create_engine(url)
    async with engine.execution_options(write=True).begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0000'"))
    await engine.dispose()
    with pytest.raises(Unavailable):
        await store.ping()


@pytest.mark.own_database
async def test_a_replica_goes_on_with_a_newer_schema_that_only_added(store: SqlStore, url: str) -> None:
    """It starts, is ready and works, and logs once what it found; with one that took something away it does neither."""
    engine = create_engine(url)
    async with engine.execution_options(write=True).begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0999'"))
    with capture_logs() as logged:
        await store.ping()
        await store.ping()
        assert [(entry["event"], entry["database"]) for entry in logged] == [("newer_schema", "0999")]
        other = await open_store(url)
        assert [entry["event"] for entry in logged] == ["newer_schema"] * 2
    await put(other, "01")
    await other.close()
    async with engine.execution_options(write=True).begin() as connection:
        await connection.execute(text("INSERT INTO revisions VALUES ('schema_needed', 998)"))
    await engine.dispose()
    for attempt in (store.ping(), open_store(url)):
        with pytest.raises(Unavailable, match="schema 0999, of a newer diagnoser; this one knows"):
            await attempt


async def test_rows_of_an_older_version_load(store: SqlStore, url: str) -> None:
    """Fields that a stored diagnosis lacks take their defaults; ones that this code does not know are skipped."""
    await put(store, "01")
    body = (
        '{"outcome":"failed","category":"script","type":"key_error","confidence":0.5,'
        '"decided_by":"rule:x","gone_in_this_version":1}'
    )
    engine = create_async_engine(create_engine(url).url)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE diagnoses SET body = :body"), {"body": body})
    await engine.dispose()
    found = await store.diagnoses.find("01")
    assert found is not None and found.diagnosis == Diagnosis(
        Outcome.FAILED, Category.SCRIPT, FailureType.KEY_ERROR, 0.5, "rule:x"
    )


async def test_runs_that_failed_and_what_became_of_them(store: SqlStore) -> None:
    """With the GPUs that the job says it has, the next launch and its verdict, and whether a plan was carried out."""
    await store.jobs.register(Job("says", labels={"gpus": "64"}, created=1.0))
    await store.jobs.register(Job("says-not", labels={"gpus": "many"}, created=1.0))
    for number, (job, attempt, verdict) in enumerate(
        [("says", 1, diagnosis()), ("says", 2, DONE), ("says-not", 1, replace(diagnosis(), outcome=Outcome.HUNG))]
    ):
        key, created = AttemptKey(job, attempt), 1_000.0 * (number + 1)
        await store.logs.append([append(key, at=created - 50)])
        await store.jobs.add_event(key, Event(EventKind.EXIT, created - 10, code=1))
        (claim,) = await claimed(store, created)
        made = record(id_of(created, 1), claim, verdict, created)
        acted = replace(plan(key, f"p{number}"), state=PlanState.REACHED, diagnosis=made.id) if number == 0 else None
        await store.work.save_diagnosis(claim, made, acted, [])
    hung, failed = await store.diagnoses.failed_runs(0.0, 10)
    assert failed == FailedRun(990.0, 1_000.0, 64, 1_950.0, True, True)
    assert hung == FailedRun(2_950.0, 3_000.0)
    assert await store.diagnoses.failed_runs(2_000.0, 10) == [hung]
    assert await store.diagnoses.failed_runs(0.0, 1) == [hung]


async def test_attempts_with_what_became_of_them(store: SqlStore) -> None:
    """With checkpoints that are durable, the plan as it went, the incident, and the next launch; of a window."""
    await store.jobs.register(Job("j", cluster="east", tenant="ann", labels={"gpus": "64"}, created=1.0))
    first, second = AttemptKey("j", 1), AttemptKey("j", 2)
    await store.logs.append([append(first, at=950.0)])
    for time, phase in (
        (900.0, CheckpointPhase.DURABLE),
        (930.0, CheckpointPhase.STAGED),
        (940.0, CheckpointPhase.BAD),
    ):
        await store.jobs.add_event(first, Event(EventKind.CHECKPOINT, time, step=int(time), phase=phase))
    await store.jobs.add_event(first, Event(EventKind.EXIT, 990.0, code=1))
    (claim,) = await claimed(store, 1_000.0)
    claim = replace(claim, attempt=replace(claim.attempt, first_step=claim.attempt.opened + 42.0))
    history = (
        PlanChange(1_000.0, PlanState.WAITING, "diagnoser", "x"),
        PlanChange(1_100.0, PlanState.SENT, "ann", "x"),
    )
    proofs = (NodeProof("gpu-004", ProofKind.PERSON, "approved"),)
    acted = replace(plan(first), state=PlanState.REACHED, reason="reached", history=history, proofs=proofs)
    await store.work.save_diagnosis(claim, record(id_of(1_000.0, 1), claim, diagnosis(), 1_000.0), acted, [])
    await store.logs.append([append(second, at=2_000.0)])
    failed, runs = await outcomes_of(store, 0.0, 10)
    assert (failed.ended, failed.outcome, failed.diagnosed) == (990.0, Outcome.FAILED, 1_000.0)
    assert plan_of(failed) == ("reached", 200.0, "observe", "reached", True, True)
    assert (failed.saved, failed.cluster, failed.user, failed.gpus) == (900.0, "east", "ann", "64")
    assert (failed.category, failed.type) == (Category.INFRASTRUCTURE, FailureType.GPU_LOST)
    assert (failed.startup, runs.startup) == (42.0, None)
    assert runs == AttemptOutcome("j", 2, 2_000.0, last_line=2_000.0, cluster="east", user="ann", gpus="64")
    assert await outcomes_of(store, 1_500.0, 10) == [runs]
    assert await outcomes_of(store, 0.0, 1) == [runs]


async def outcomes_of(store: SqlStore, since: float, limit: int) -> list[AttemptOutcome]:
    attempts = await store.impact.attempts(since, limit)
    return [attempts.at(place) for place in range(len(attempts))]


def plan_of(outcome: AttemptOutcome) -> tuple[object, ...]:
    plan = outcome.state, outcome.planned, outcome.mode, outcome.reason
    return *plan, outcome.has_waited, outcome.is_vouched


async def test_a_wait_in_the_queue_is_the_schedulers_word(store: SqlStore) -> None:
    """What a job says of its own start does not count."""
    for provenance, submitted in ((Provenance.JOB, 0.0), (Provenance.SCHEDULER, 40.0)):
        start = Event(EventKind.STARTED, 100.0, reason="Resources", provenance=provenance, submitted=submitted)
        await store.jobs.add_event(AttemptKey("waited"), start)
    await store.jobs.add_event(AttemptKey("told"), replace(start, provenance=Provenance.JOB))
    waits = {outcome.job: outcome.waited for outcome in await outcomes_of(store, 0.0, 10)}
    assert waits == {"waited": 60.0, "told": None}
    [attempt] = await store.jobs.attempts("waited")
    assert [event.waited for event in attempt.events if event.provenance is Provenance.SCHEDULER] == [60.0]


LIES = 'x "state":"waiting", "kind":"person" \\"state\\":\\"WAITING\\" \u0001%_'
"""Text of a job or an executor that looks like the parts of a plan that are searched for."""
CHANGES = {state: PlanChange(200.0, state, "diagnoser", LIES) for state in PlanState}


WAYS = {state: diagonal([*product((False, True), repeat=2)], place, 2) for place, state in enumerate(PlanState)}
"""Whether a plan has waited, and whether a person vouched for it, by how it ends."""


@pytest.mark.parametrize("state", PlanState)
async def test_what_became_of_a_plan_is_read_exactly(store: SqlStore, state: PlanState) -> None:
    """In each state, after the change of one, whatever its texts say: waited and vouched for only where they are."""
    for waited, vouched in WAYS[state]:
        job = f"{state}-{waited}-{vouched}"
        await store.logs.append([append(AttemptKey(job), fatal=True)])
        claim = await the_claim(store)
        kind = ProofKind.PERSON if vouched else ProofKind.QUERY
        begun = replace(
            plan(AttemptKey(job), f"plan-{job}"),
            partition=LIES,
            history=(CHANGES[PlanState.WAITING if waited else PlanState.SENT],),
            proofs=(NodeProof("gpu-004", kind, LIES, LIES),),
        )
        await store.work.save_diagnosis(claim, record(f"d-{job}", claim, diagnosis(LIES)), begun, [])

        def moved(old: Plan) -> TransitionResult:
            return TransitionResult(replace(old, state=state, reason=LIES, history=(*old.history, CHANGES[state])))

        await store.plans.change(begun.id, moved)
    outcomes = await outcomes_of(store, 0.0, 10)
    assert len(outcomes) == len(WAYS[state])
    for outcome in outcomes:
        _, had_waited, person = outcome.job.rsplit("-", 2)
        has_waited = had_waited == "True" or state is PlanState.WAITING
        assert plan_of(outcome) == (state, 200.0, Mode.OBSERVE, LIES, has_waited, person == "True")
