"""What the pages and the API read. Each query costs what it shows, whatever is stored beside it."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    RowMapping,
    ScalarSelect,
    Select,
    and_,
    exists,
    func,
    literal,
    not_,
    select,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.database import Repository
from diagnoser.adapters.sql.feedback import find_feedback
from diagnoser.adapters.sql.incidents import is_muted
from diagnoser.adapters.sql.jobs import job_names
from diagnoser.adapters.sql.statements import WITH_PLAN, is_behind, of_attempt, ordered
from diagnoser.adapters.sql.tables import (
    CONFIDENCE,
    FACETS,
    IS_UNRESOLVED,
    attempts,
    breakers,
    diagnoses,
    diagnosis_nodes,
    diagnosis_words,
    incident_attempts,
    incidents,
    jobs,
    plans,
)
from diagnoser.adapters.sql.words import asked_words, found_by_index, has_words
from diagnoser.model import AttemptKey, FailedRun, IncidentState, PlanState
from diagnoser.model.access import Viewer
from diagnoser.model.errors import BadInput
from diagnoser.model.ids import first_id
from diagnoser.model.queries import Attention, DiagnosisFilter, Facets, News
from diagnoser.model.sorting import NEWEST, Sort
from diagnoser.model.taxonomy import FAILURES, Category, FailureType, Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.recovery.downtime import failed_at, gpus_of

_NARROWEST = ("job", "node", "family", "decided_by", "type", "cluster", "outcome", "category")
"""Filters, the one first that usually leaves the fewest."""
_RECENT = 2_000
"""Newest diagnoses whose text is looked at before the full-text index is asked: it has no order, and lists all."""
_SAMPLE, _COMMON = 200, 0.05
"""Share of the newest that makes a word common: the index would list all that ever had it."""
_COUNTED = 1_000
"""Newest diagnoses whose facets are counted."""
_COUNTED_WITH = int(_RECENT * _COMMON)
"""The same, of those with the words of a search: common words have as many among the newest, which spares the index."""
_VALUES = 12
"""Values of a facet that are counted apart."""


class DiagnosisRepository(Repository):
    async def page(self, where: DiagnosisFilter, after: str, limit: int, sort: Sort = NEWEST) -> list[DiagnosisRecord]:
        """sort: by one of ``DIAGNOSIS_SORTS``; those with a text are always the newest first. after: id of the last one
        already seen, "" for the first page. Raises BadInput for one that a sorted list does not find any more.

        Ids sort by time, so an id is the cursor: rows that come later never shift a page.
        """
        if sort != NEWEST and not where.text:
            return await self._sorted(where, after, limit, sort)
        conditions = _conditions(where, self._db.viewer)
        if after:
            conditions.append(diagnoses.c.id < after)
        async with self._db.reading() as connection:
            query = _newest(where, select(*WITH_PLAN)).where(*conditions).limit(limit)
            if where.text:
                ids = await _ids_with(connection, where, conditions, limit)
                query = select(*WITH_PLAN).where(diagnoses.c.id.in_(ids)).order_by(diagnoses.c.id.desc())
            return await _with_feedback(connection, (await connection.execute(query)).mappings())

    async def _sorted(self, where: DiagnosisFilter, after: str, limit: int, sort: Sort) -> list[DiagnosisRecord]:
        """The ids of a page first: rows are long, and what is sorted should not carry them. The values that order a
        diagnosis never change, so its id still says where a page ended."""
        order: list[ColumnElement[Any]] = [diagnoses.c.id]
        if sort.by == "confidence":
            order.insert(0, CONFIDENCE)
        elif sort.by != "time":
            order.insert(0, diagnoses.c[sort.by])
        query = select(diagnoses.c.id).where(*_conditions(where, self._db.viewer))
        if where.node:
            query = query.where(diagnoses.c.id.in_(_on_node(where.node)))
        async with self._db.reading() as connection:
            if after:
                place = (await connection.execute(select(*order).where(diagnoses.c.id == after))).first()
                if place is None:
                    raise BadInput(f"cursor: there is no diagnosis {after!r} any more")
                query = query.where(is_behind(order, place, sort))
            page = query.order_by(*ordered(order, sort)).limit(limit).subquery()
            rows = select(*WITH_PLAN).where(diagnoses.c.id.in_(select(page.c.id))).order_by(*ordered(order, sort))
            return await _with_feedback(connection, (await connection.execute(rows)).mappings())

    async def news(self, after: str, limit: int) -> list[News]:
        """Current diagnoses with ids above ``after``, oldest first; of more than ``limit`` the newest."""
        columns = diagnoses.c["id", "job", "attempt", "outcome", "category", "type"]
        query = select(*columns).where(diagnoses.c.id > after, diagnoses.c.current)
        query = query.order_by(diagnoses.c.id.desc()).limit(limit)
        async with self._db.reading() as connection:
            rows = (await connection.execute(query)).all()
        return [
            News(
                row.id,
                AttemptKey(row.job, row.attempt),
                Outcome(row.outcome),
                Category(row.category),
                FailureType(row.type),
            )
            for row in reversed(rows)
        ]

    async def facets(self, where: DiagnosisFilter) -> Facets:
        """Of the current diagnoses that match: the values of their fields, those that are most frequent.

        The newest by the narrowest filter are read, and the other filters hold these: so that what is read is
        bounded, and an index has it in order.
        """
        narrowest = next((name for name in _NARROWEST if getattr(where, name)), "")
        only = replace(DiagnosisFilter(), **{narrowest: getattr(where, narrowest)}) if narrowest else DiagnosisFilter()
        columns = diagnoses.c["id", *FACETS]
        most = _COUNTED_WITH if where.text else _COUNTED
        async with self._db.reading() as connection:
            if where.text:
                ids = await _ids_with(connection, where, _conditions(where, self._db.viewer), most)
                query = select(*columns).where(diagnoses.c.id.in_(ids)).order_by(diagnoses.c.id.desc())
            else:
                conditions = _conditions(replace(only, since=where.since), self._db.viewer)
                query = _newest(only, select(*columns)).where(*conditions)
            newest = query.limit(most).cte("newest")
            rest = _equal(newest, where, FACETS)
            if where.node and narrowest != "node":
                rest.append(newest.c.id.in_(_on_node(where.node)))
            counts: dict[str, list[tuple[str, int]]] = defaultdict(list)
            for facet, value, count in await connection.execute(_counts(newest, rest)):
                counts[facet].append((value, count))
        read = counts.pop("", [("", 0)])[0][1]
        most_first: dict[str, Sequence[tuple[str, int]]] = {}
        for facet, values in counts.items():
            most_first[facet] = tuple(sorted(values, key=lambda entry: (-entry[1], entry[0])))
        return Facets(most_first, read < most, most)

    async def count_without_fault(self, since: float) -> int:
        """How many attempts ended without a failure since then, by their current verdicts. It stops at ``_COUNTED``."""
        clean = _conditions(DiagnosisFilter(category=Category.NONE.value, since=since), self._db.viewer)
        newest = _newest(DiagnosisFilter(), select(diagnoses.c.id)).where(*clean).limit(_COUNTED)
        return int(await self._db.value(select(func.count()).select_from(newest.subquery())))

    async def failures_between(self, times: Sequence[float]) -> list[dict[Category, int]]:
        """How many attempts failed by category, from each of the times to the next one: one fewer than there are
        times. By their current verdicts, those without a fault left out.

        Ids sort by time: each span is a range of the index that also has the category.
        """
        spans = []
        for number, (start, end) in enumerate(pairwise(map(first_id, times))):
            row = diagnoses.c
            failed = and_(row.current, row.category != Category.NONE.value, row.id >= start, row.id < end)
            counted = select(literal(number).label("span"), row.category, func.count().label("count")).where(failed)
            spans.append(counted.group_by(row.category))
        counts: list[dict[Category, int]] = [{} for _ in spans]
        if spans:
            async with self._db.reading() as connection:
                for span, category, count in await connection.execute(union_all(*spans)):
                    counts[span][Category(category)] = count
        return counts

    async def find(self, id: str) -> DiagnosisRecord | None:
        query = select(*WITH_PLAN).where(diagnoses.c.id == id)
        async with self._db.reading() as connection:
            rows = (await connection.execute(query)).mappings()
            return next(iter(await _with_feedback(connection, rows)), None)

    async def of_attempt(self, attempt: AttemptKey) -> DiagnosisRecord | None:
        """The current one."""
        current = select(*WITH_PLAN).where(of_attempt(diagnoses, attempt), diagnoses.c.current)
        return next(iter(await self._db.rows(current, codec.record_of)), None)

    async def failed_runs(self, since: float, limit: int) -> list[FailedRun]:
        """Launches whose current verdict, made after ``since``, says that they failed or hung; the newest first, at
        most about ``limit``.

        Of each outcome the newest by its index. What a job says of its GPUs is looked up in its text by the
        database: a rank map may make that long.
        """
        newest = [
            select(
                select(diagnoses.c.id)
                .where(diagnoses.c.outcome == outcome.value, diagnoses.c.current, diagnoses.c.id >= first_id(since))
                .order_by(diagnoses.c.id.desc())
                .limit(limit)
                .subquery()
            )
            for outcome in FAILURES
        ]
        return await self._db.rows(self._runs(union_all(*newest), limit), _failed_run)

    async def runs_of_incidents(self, ids: Collection[str], since: float, limit: int) -> dict[str, list[FailedRun]]:
        """Incident -> its failures with a verdict after ``since``; the newest ``limit`` of all of them."""
        row = incident_attempts.c
        mine = select(row.diagnosis).where(row.incident.in_(ids), row.diagnosis >= first_id(since))
        newest = mine.order_by(row.diagnosis.desc()).limit(limit)
        incident = select(row.incident).where(row.job == attempts.c.job, row.attempt == attempts.c.number)
        query = self._runs(newest, limit).add_columns(incident.scalar_subquery().label("incident"))
        found: dict[str, list[FailedRun]] = defaultdict(list)
        async with self._db.reading() as connection:
            for found_row in (await connection.execute(query)).mappings():
                found[found_row["incident"]].append(_failed_run(found_row))
        return found

    def _runs(self, newest: Any, limit: int) -> Select[Any]:
        """Columns of failed runs. newest: ids of their diagnoses."""
        row, later, verdict = attempts.c, attempts.alias("later"), diagnoses.alias("later_verdict")
        follows = select(func.min(later.c.number)).where(later.c.job == row.job, later.c.number > row.number)
        next_run, number = attempts.alias("next_run"), follows.correlate(attempts).scalar_subquery()
        return (
            select(
                *row["job", "number", "fatal", "ended", "last_line"],
                diagnoses.c.outcome,
                diagnoses.c.created,
                self._db.json_text(jobs.c.body, "labels", "gpus").label("gpus"),
                plans.c.state.label("plan"),
                next_run.c.opened.label("relaunched"),
                verdict.c.category.label("next_category"),
            )
            .select_from(diagnoses)
            .join(attempts, and_(row.job == diagnoses.c.job, row.number == diagnoses.c.attempt))
            .join(jobs, jobs.c.id == row.job)
            .outerjoin(plans, plans.c.key == diagnoses.c.plan)
            .outerjoin(next_run, and_(next_run.c.job == row.job, next_run.c.number == number))
            .outerjoin(
                verdict,
                and_(verdict.c.job == row.job, verdict.c.attempt == next_run.c.number, verdict.c.current),
            )
            .where(diagnoses.c.id.in_(newest))
            .order_by(diagnoses.c.id.desc())
            .limit(limit)
        )

    async def attention(self, now: float) -> Attention:
        """What waits for a person, by three short ranges of indexes."""
        waiting = and_(plans.c.state == PlanState.WAITING.value, plans.c.expires > now)
        is_open = and_(IS_UNRESOLVED, incidents.c.state == IncidentState.OPEN.value, not_(is_muted(now)))
        count = func.count
        query = select(
            select(count()).select_from(plans).where(waiting).scalar_subquery(),
            select(count()).select_from(incidents).where(is_open).scalar_subquery(),
            select(count()).select_from(breakers).where(breakers.c.tripped).scalar_subquery(),
        )
        async with self._db.reading() as connection:
            return Attention(*(await connection.execute(query)).one())


async def _ids_with(
    connection: AsyncConnection, where: DiagnosisFilter, conditions: list[ColumnElement[bool]], limit: int
) -> list[str]:
    """The newest with the words of a search, newest first. Words that many have are among the newest; one that none of
    a sample has, the index finds at once."""
    asked = asked_words(where.text)
    if not asked:
        return []
    newest = _newest(where, select(diagnoses.c.id)).where(*conditions)
    sample = newest.limit(_SAMPLE).cte("sample")
    having = [func.count().filter(has_words(_words_of(sample), [word])) for word in asked]
    counts = (await connection.execute(select(*having).select_from(sample))).one()
    if min(counts):
        recent = newest.limit(_RECENT).cte("recent")
        query = select(recent.c.id).where(has_words(_words_of(recent), asked)).order_by(recent.c.id.desc()).limit(limit)
        ids = list((await connection.execute(query)).scalars())
        count = (await connection.execute(select(func.count()).select_from(recent))).scalar_one()
        if len(ids) == limit or count < _RECENT:
            return ids
    rare = [word for word, count in zip(asked, counts, strict=True) if count < _SAMPLE * _COMMON] or asked
    found = select(diagnosis_words.c.diagnosis).where(found_by_index(rare, connection.dialect.name))
    if len(rare) < len(asked):
        found = found.where(has_words(diagnosis_words.c.words, asked))
    return list((await connection.execute(_matching(found, where, conditions, limit))).scalars())


def _words_of(ids: CTE) -> ScalarSelect[str]:
    """One look-up a row. As a join, it may be planned to begin with the words of all diagnoses."""
    return select(diagnosis_words.c.words).where(diagnosis_words.c.diagnosis == ids.c.id).scalar_subquery()


def _matching(
    found: Select[Any], where: DiagnosisFilter, conditions: list[ColumnElement[bool]], limit: int
) -> Select[Any]:
    """The newest of ``found`` that match. They are sorted first, and then looked up until there are enough: a bound
    that nothing reaches keeps the planner from merging them with all diagnoses instead."""
    with_words = found.cte("with_words").prefix_with("MATERIALIZED")
    ordered = select(with_words.c.diagnosis).order_by(with_words.c.diagnosis.desc()).limit(1 << 30).subquery()
    own = select(literal(1)).where(diagnoses.c.id == ordered.c.diagnosis, *conditions)
    if where.node:
        row = diagnosis_nodes.c
        own = own.where(exists().where(row.node == where.node, row.diagnosis == diagnoses.c.id))
    return (
        select(ordered.c.diagnosis).where(own.scalar_subquery() == 1).order_by(ordered.c.diagnosis.desc()).limit(limit)
    )


def _newest(where: DiagnosisFilter, query: Select[Any]) -> Select[Any]:
    """In the order of an index: of the nodes where one is asked for."""
    if not where.node:
        return query.select_from(diagnoses).order_by(diagnoses.c.id.desc())
    row = diagnosis_nodes.c
    joined = diagnosis_nodes.join(diagnoses, diagnoses.c.id == row.diagnosis)
    return query.select_from(joined).where(row.node == where.node).order_by(row.diagnosis.desc())


def _on_node(node: str) -> Select[Any]:
    return select(diagnosis_nodes.c.diagnosis).where(diagnosis_nodes.c.node == node)


def _counts(newest: Any, rest: list[ColumnElement[bool]]) -> Any:
    """Rows of (facet, value, count); one of the facet "" counts what was read."""
    counts = [select(literal("").label("facet"), literal("").label("value"), func.count()).select_from(newest)]
    for name in FACETS:
        value = newest.c[name]
        grouped = select(literal(name), value, func.count()).where(*rest, value != "").group_by(value)
        counts.append(select(grouped.order_by(func.count().desc(), value).limit(_VALUES).subquery()))
    node = diagnosis_nodes.c.node
    # As a join, SQLite plans it to begin with the nodes of all diagnoses.
    of_newest = diagnosis_nodes.c.diagnosis.in_(select(newest.c.id).where(*rest))
    grouped = select(literal("node"), node, func.count()).where(of_newest).group_by(node)
    counts.append(select(grouped.order_by(func.count().desc(), node).limit(_VALUES).subquery()))
    return union_all(*counts)


async def _with_feedback(connection: AsyncConnection, rows: Iterable[RowMapping]) -> list[DiagnosisRecord]:
    records = list(map(codec.record_of, rows))
    feedback = await find_feedback(connection, records)
    return [replace(record, feedback=feedback[record.id]) for record in records]


def _equal(table: Any, where: DiagnosisFilter, names: Iterable[str]) -> list[ColumnElement[bool]]:
    """Of these fields of the filter, those that are set."""
    conditions = []
    for name in names:
        if value := getattr(where, name):
            conditions.append(table.c[name] == value)
    return conditions


def _conditions(where: DiagnosisFilter, viewer: Viewer) -> list[ColumnElement[bool]]:
    """All but the node and the text."""
    conditions = _equal(diagnoses, where, FACETS)
    if where.job:
        conditions.append(diagnoses.c.job.in_(job_names(where.job, viewer)))
    if where.current_only:
        conditions.append(diagnoses.c.current)
    if where.since:
        conditions.append(and_(diagnoses.c.created >= where.since, diagnoses.c.id >= first_id(where.since)))
    if where.newer:
        conditions.append(diagnoses.c.id > where.newer)
    return conditions


def _failed_run(row: RowMapping) -> FailedRun:
    hung = row["outcome"] == Outcome.HUNG.value
    next_category = row["next_category"]
    return FailedRun(
        failed=failed_at(hung=hung, fatal=row["fatal"], ended=row["ended"], last_line=row["last_line"]),
        diagnosed=row["created"],
        gpus=gpus_of(row["gpus"]),
        relaunched=row["relaunched"],
        by_plan=row["plan"] == PlanState.REACHED.value,
        next_succeeded=None if next_category is None else next_category == Category.NONE.value,
    )
