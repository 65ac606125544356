"""Contract of the order of lists: each page goes on where the one before ended, whatever orders them."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
from sqlalchemy import text

from diagnoser.adapters.sql.database import create_engine
from diagnoser.adapters.sql.migrations import upgrade
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import Diagnosis, Incident, RootCause
from diagnoser.model.errors import BadInput
from diagnoser.model.queries import UNRESOLVED, AttemptState, DiagnosisFilter, position_of
from diagnoser.model.sorting import ATTEMPT_SORTS, DIAGNOSIS_SORTS, INCIDENT_SORTS, Sort
from diagnoser.model.taxonomy import Category, FailureType
from diagnoser.model.work import DiagnosisRecord
from tests.contract.records import diagnosis
from tests.contract.test_attempt_lists import SILENT_SINCE
from tests.contract.test_attempt_lists import fill as fill_attempts
from tests.contract.test_incidents import fail
from tests.contract.test_queries import put

EVERYTHING = DiagnosisFilter()
VALUES: dict[str, Callable[[DiagnosisRecord], Any]] = {
    "time": lambda record: record.id,
    "category": lambda record: record.diagnosis.category,
    "type": lambda record: record.diagnosis.type,
    "job": lambda record: record.attempt.job,
    "decided_by": lambda record: record.diagnosis.decided_by,
    "confidence": lambda record: record.diagnosis.confidence,
}


def verdict(number: int) -> Diagnosis:
    """Few different values, so that many rows are equal."""
    return replace(
        diagnosis(f"line {'x' * number}"),
        category=(Category.SCRIPT, Category.INFRASTRUCTURE, Category.UNKNOWN)[number % 3],
        type=(FailureType.VALUE_ERROR, FailureType.GPU_LOST)[number % 2],
        decided_by=("rule:b", "heuristic:exit")[number // 2 % 2],
        confidence=(0.9, 0.35, 1.0)[number * 2 % 3],
        root_cause=RootCause(7, "x" * number, rank=3, node=("gpu-004", "gpu-005")[number % 2]),
        nodes=(),
    )


async def paged(read: Callable[[str], Awaitable[list[Any]]], after: Callable[[Any], str]) -> list[Any]:
    rows: list[Any] = []
    cursor = ""
    while page := await read(cursor):
        rows += page
        cursor = after(page[-1])
        assert len(rows) < 100
    return rows


FILTERS = (EVERYTHING, DiagnosisFilter(node="gpu-004"), DiagnosisFilter(category="script"))


async def test_diagnoses_come_in_the_order_that_is_asked_for(store: SqlStore) -> None:
    """By each column, both ways, with a filter as well; rows that are equal are neither repeated nor left out."""
    for number in range(9):
        await put(store, f"0{number}", job=f"job-{(number * 5) % 9}", verdict=verdict(number))
    for where in FILTERS:
        await check_order(store, where)


async def check_order(store: SqlStore, where: DiagnosisFilter) -> None:
    every = await store.diagnoses.page(where, "", 100)
    assert len(every) in (9, 5, 3)
    for by, is_descending in product(DIAGNOSIS_SORTS, (False, True)):
        sort = Sort(by, is_descending)

        async def page(cursor: str, sort: Sort = sort) -> list[DiagnosisRecord]:
            return await store.diagnoses.page(where, cursor, 4, sort)

        ids = [record.id for record in await paged(page, lambda record: record.id)]
        ordered = sorted(((VALUES[by](record), record.id) for record in every), reverse=is_descending)
        assert ids == [place for _, place in ordered], sort


async def test_a_sorted_page_is_the_same_whatever_came_meanwhile(store: SqlStore) -> None:
    """A row that sorts before the place is not shown, one behind it is; and a place that is gone is told."""
    for number in range(4):
        await put(store, f"0{number}", verdict=verdict(number))
    by_type = Sort("type")
    first = await store.diagnoses.page(EVERYTHING, "", 2, by_type)
    await put(store, "08", verdict=verdict(1))  # a lost GPU, which sorts before what is shown next
    await put(store, "09", verdict=verdict(0))
    rest = await store.diagnoses.page(EVERYTHING, first[-1].id, 10, by_type)
    assert [record.id for record in (*first, *rest)] == ["01", "03", "08", "00", "02", "09"]
    with pytest.raises(BadInput):
        await store.diagnoses.page(EVERYTHING, "no-such-id", 10, by_type)


async def test_incidents_come_in_the_order_that_is_asked_for(store: SqlStore) -> None:
    """By each column, both ways; the cursor of another order is refused."""
    for number in range(6):
        line = replace(verdict(number), root_cause=RootCause(1, "abcdef"[number] * 3))
        for failure in range(1 + number % 3):
            job = f"job-{number}"
            await fail(store, f"{number}{failure}", job, line, failure + 1, created=200.0 + 7 * number % 5 + failure)
    every = await store.incidents.page(UNRESOLVED, "", 100)
    assert len(every) == 6
    for by, is_descending in product(INCIDENT_SORTS, (False, True)):
        sort = Sort(by, is_descending)

        async def page(cursor: str, sort: Sort = sort) -> list[Incident]:
            return await store.incidents.page(UNRESOLVED, cursor, 2, sort)

        found = await paged(page, partial(position_of, sort=sort))
        ordered = sorted(((getattr(one, by), one.id) for one in every), reverse=is_descending)
        assert [incident.id for incident in found] == [place for _, place in ordered], sort
        with pytest.raises(BadInput):
            await store.incidents.page(UNRESOLVED, position_of(every[0], Sort("jobs")), 2, sort)


async def test_attempts_come_in_the_order_that_is_asked_for(store: SqlStore) -> None:
    """By job and number in each state and in all; by time the other way round within each state."""
    await fill_attempts(store)
    for state, by, is_descending in product((None, *AttemptState), ATTEMPT_SORTS, (False, True)):
        sort = Sort(by, is_descending)

        async def page(cursor: str, state: AttemptState | None = state, sort: Sort = sort) -> list[Any]:
            return await store.attempts.page(state, SILENT_SINCE, cursor, 3, sort)

        found = [one.key for one in await paged(page, lambda attempt: attempt.position)]
        newest = [one.key for one in await store.attempts.page(state, SILENT_SINCE, "", 100)]
        if by == "job":
            assert found == sorted(newest, key=lambda key: (key.job, key.number), reverse=is_descending), sort
        elif is_descending:
            assert found == newest
        elif state is None:
            assert [key.job for key in found[:2]] == ["run-b", "run-a"]
            assert sorted(key.job for key in found) == sorted(key.job for key in newest)
        else:
            assert found == newest[::-1], sort
    for sort, cursor in ((Sort("job"), "running:5.0:1:j"), (Sort("time"), "job:1:j"), (Sort("job"), "job:x:j")):
        with pytest.raises(BadInput):
            await store.attempts.page(None, SILENT_SINCE, cursor, 2, sort)


async def test_what_orders_incidents_is_what_their_rows_say(url: str) -> None:
    """Also where the text of a log holds the character 0."""
    await upgrade(url)
    engine = create_engine(url)
    body = r'{"line": "a\u0000b \\u0000 %s :name", "first_seen": 123.25, "category": "script"}'
    row = "('i', 'open', '', '', 200.0, 1, 1, :body)"
    columns = "id, state, node, assignee, last_seen, failures, jobs, body"
    async with engine.begin() as connection:
        statement = text(f"INSERT INTO incident_groups ({columns}) VALUES {row}")
        await connection.execute(statement, {"body": body})
    async with engine.connect() as connection:
        found = (await connection.execute(text("SELECT first_seen, category FROM incident_groups"))).one()
    assert tuple(found) == (123.25, "script")
    await engine.dispose()


def test_an_order_is_written_as_it_is_read() -> None:
    """A hyphen in front turns it round."""
    for written in ("time", "-time", "-decided_by"):
        assert str(Sort.parse(written)) == written
    assert Sort.parse("-failures") == Sort("failures", is_descending=True)
