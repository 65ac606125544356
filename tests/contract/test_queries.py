"""Contract of the read side."""

from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from diagnoser.adapters.sql.database import create_engine
from diagnoser.model import AttemptKey, Diagnosis
from diagnoser.model.errors import Unavailable
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.ports import DiagnosisFilter, Store
from tests.contract.records import append, diagnosis, record, the_claim

EVERYTHING = DiagnosisFilter()


async def put(store: Store, id: str, job: str = "", verdict: Diagnosis | None = None, created: float = 200.0) -> None:
    await store.append([append(AttemptKey(job or f"job-{id}"), fatal=True)])
    claim = await the_claim(store)
    await store.save_diagnosis(claim, record(id, claim, verdict, created), None, [])


async def ids(store: Store, where: DiagnosisFilter = EVERYTHING, after: str = "", limit: int = 10) -> list[str]:
    return [found.id for found in await store.diagnoses(where, after, limit)]


async def test_pages_neither_repeat_nor_skip_when_rows_are_added(store: Store) -> None:
    """A page starts after the last id seen, whatever came on top meanwhile."""
    for number in range(1, 5):
        await put(store, f"0{number}")
    first = await ids(store, limit=2)
    await put(store, "05")
    assert first == ["04", "03"]
    assert await ids(store, after="03", limit=2) == ["02", "01"]
    assert await ids(store, after="01") == []


@pytest.mark.parametrize(
    "where",
    [
        DiagnosisFilter(job="mine"),
        DiagnosisFilter(category="script"),
        DiagnosisFilter(type="key_error"),
        DiagnosisFilter(outcome="hung"),
        DiagnosisFilter(node="gpu-777"),
        DiagnosisFilter(since=500.0),
        DiagnosisFilter(text="100% of É_X"),
        DiagnosisFilter(job="mine", type="key_error", text="é_x"),
    ],
)
async def test_each_filter_finds_its_diagnosis_only(store: Store, where: DiagnosisFilter) -> None:
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
    assert await ids(store, where) == ["02"]


async def test_a_suspect_node_is_found_as_well_as_the_root_node(store: Store) -> None:
    """All ranked nodes of a diagnosis lead to it; part of a name does not."""
    await put(store, "01")
    assert await ids(store, DiagnosisFilter(node="gpu-009")) == ["01"]
    assert await ids(store, DiagnosisFilter(node="gpu-00")) == []


async def test_a_diagnosis_comes_back_whole(store: Store) -> None:
    """The body survives, with characters that databases find hard."""
    hard = diagnosis("\x00 \x1b[31m 錯誤 \U0001f4a5 '; DROP TABLE jobs; -- %s :name")
    await put(store, "01", verdict=hard)
    found = await store.diagnosis("01")
    assert found is not None and found.diagnosis == hard
    assert await store.diagnosis("02") is None


async def test_ping_answers_on_a_sound_database(store: Store) -> None:
    """A store that was just opened is ready."""
    await store.ping()


async def test_ping_tells_when_the_schema_is_not_that_of_this_code(store: Store, url: str) -> None:
    """A replica of another version is not ready, instead of failing request by request."""
    engine = create_engine(url)
    async with engine.execution_options(write=True).begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0000'"))
    await engine.dispose()
    with pytest.raises(Unavailable):
        await store.ping()


async def test_rows_of_an_older_version_load(store: Store, url: str) -> None:
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
    found = await store.diagnosis("01")
    assert found is not None and found.diagnosis == Diagnosis(
        Outcome.FAILED, Category.SCRIPT, FailureType.KEY_ERROR, 0.5, "rule:x"
    )
