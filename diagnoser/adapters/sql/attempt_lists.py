"""The list of attempts: running, silent, ended, failed. Each page is one range of an index, however many are stored."""

from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, Select, and_, exists, func, not_, select, union_all

from diagnoser.adapters.sql.database import Repository
from diagnoser.adapters.sql.statements import is_behind, ordered, pick, text_of
from diagnoser.adapters.sql.tables import FRAMEWORK, HAS_ENDED, IS_JOB, IS_UNENDED, attempts, diagnoses, jobs
from diagnoser.model import AttemptKey
from diagnoser.model.errors import BadInput
from diagnoser.model.queries import AttemptState, AttemptSummary, JobFilter
from diagnoser.model.sorting import NEWEST, Sort
from diagnoser.model.taxonomy import FAILURES, Category, FailureType, Outcome

_ORDER = (AttemptState.RUNNING, AttemptState.SILENT, AttemptState.ENDED)
"""Each attempt is in exactly one of these."""
_TIMES = {AttemptState.RUNNING: "opened", AttemptState.SILENT: "last_line", AttemptState.ENDED: "ended"}
"""The column that orders a state. The last line does not order the running ones: while they are paged through, each
would come to the top again."""
_ATTEMPT = ("job", "number", "opened", "last_line", "ended", "revision")
_LOOKED_AT = 5_000
"""Newest attempts of a state among which those of a cluster or a framework are looked for, which have no index; and
jobs of a user that are."""
_ANY = JobFilter()
_OF_JOB = (jobs.c.tenant.label("user"), jobs.c.cluster, FRAMEWORK.label("framework"))
_VERDICT = (diagnoses.c.id.label("diagnosis"), *diagnoses.c["outcome", "category", "type"])


class AttemptRepository(Repository):
    async def page(
        self,
        state: AttemptState | None,
        silent_since: float,
        after: str,
        limit: int,
        sort: Sort = NEWEST,
        where: JobFilter = _ANY,
    ) -> list[AttemptSummary]:
        """Of one state, or of all: by time the running ones first, then the silent and the ended ones.

        sort: by one of ``ATTEMPT_SORTS``. By time, running ones are ordered by their begin, silent ones by their last
        line, ended ones by their end, failed ones by their verdict. after: ``position`` of the last one already seen,
        "" for the first page. where: looked for among ``_LOOKED_AT``. Raises BadInput for a
        position that no attempt has.
        """
        if sort.by == "job":
            return await self._by_job(state, silent_since, after, limit, sort, where)
        states, place = _start(state, after)
        summaries: list[AttemptSummary] = []
        async with self._db.reading() as connection:
            for current in states:
                rest = limit - len(summaries)
                if current is AttemptState.FAILED:
                    query = _failed(place, rest, sort, where)
                else:
                    found = _in(current, silent_since)
                    query = _listed(found, _TIMES[current], _place(current, place), rest, sort, where)
                summaries += map(partial(_summary, current), (await connection.execute(query)).mappings())
                place = ""
                if len(summaries) == limit:
                    break
        return summaries

    async def _by_job(
        self, state: AttemptState | None, silent_since: float, after: str, limit: int, sort: Sort, where: JobFilter
    ) -> list[AttemptSummary]:
        place = _place_of_job(after)
        if state is AttemptState.FAILED:
            query = _failed_by_job(place, limit, sort, where)
        else:
            query = _listed(_in(state, silent_since), "", place, limit, sort, where)
        return await self._db.rows(query, partial(_summary, None))

    async def count_running(self, silent_since: float) -> int:
        return await self._count_of(_in(AttemptState.RUNNING, silent_since))

    async def count_silent(self, since: float, silent_since: float) -> int:
        """How many fell silent after ``since``: those of long ago are abandoned rather than hung."""
        return await self._count_of(_in(AttemptState.SILENT, silent_since).where(attempts.c.last_line > since))

    async def _count_of(self, rows: Select[Any]) -> int:
        return int(await self._db.value(select(func.count()).select_from(rows.subquery())))


def _start(state: AttemptState | None, after: str) -> tuple[tuple[AttemptState, ...], str]:
    """The states that are still to be read, and where in the first of them the page before ended. Raises BadInput."""
    states = _ORDER if state is None else (state,)
    began, _, place = after.partition(":")
    if not after:
        return states, ""
    if began not in states or not place:
        raise BadInput(f"cursor: {after!r} is not the `next` of a page of this list")
    return states[states.index(AttemptState(began)) :], place


def _place(state: AttemptState, place: str) -> tuple[float, str, int] | None:
    """What follows the state in a position, ``<time>:<number>:<job>``. Raises BadInput."""
    if not place:
        return None
    try:
        time, number, job = place.split(":", 2)
        return float(time), job, int(number)
    except ValueError:
        raise BadInput(f"cursor: '{state}:{place}' is not the `next` of a page of this list") from None


def _place_of_job(after: str) -> tuple[str, int] | None:
    """Raises BadInput."""
    begin, _, place = after.partition(":")
    number, _, job = place.partition(":")
    if not after:
        return None
    if begin != "job" or not number.isdecimal() or len(number) > 18:
        raise BadInput(f"cursor: {after!r} is not the `next` of a page of this list")
    return job, int(number)


def _in(state: AttemptState | None, silent_since: float) -> Any:
    """The rows of a state, or of all. The running ones are collected first, by their last line: they are few, and an
    order by their begin would lead through all that ever began."""
    row = attempts.c
    query = select(*row[_ATTEMPT])
    if state is None:
        return query.where(IS_JOB)
    if state is AttemptState.ENDED:
        return query.where(HAS_ENDED)
    unended = query.where(IS_UNENDED)
    just_began = and_(row.last_line == 0.0, row.opened > silent_since)
    if state is AttemptState.SILENT:
        return unended.where(row.last_line <= silent_since, not_(just_began))
    running = union_all(unended.where(row.last_line > silent_since), unended.where(just_began))
    return select(running.cte("running").prefix_with("MATERIALIZED"))


def _listed(
    rows: Any, time: str, after: tuple[Any, ...] | None, limit: int, sort: Sort, where: JobFilter
) -> Select[Any]:
    """The attempts of one page, and then the verdict of each: as one join, it may be planned to begin with those.
    time: the column that orders them before their key, "" for the key alone."""
    names = [time, "job", "number"] if time else ["job", "number"]
    order = [rows.selected_columns[name] for name in names]
    if after:
        rows = rows.where(is_behind(order, after, sort))
    found = _of_jobs(rows, where, ordered(order, sort))
    places = [found.selected_columns[name] for name in names]
    page = found.order_by(*ordered(places, sort)).limit(limit).subquery("page")
    of_attempt = and_(diagnoses.c.job == page.c.job, diagnoses.c.attempt == page.c.number, diagnoses.c.current)
    with_verdict = (
        select(*page.c, *_VERDICT, *_OF_JOB)
        .select_from(page.outerjoin(diagnoses, of_attempt))
        .outerjoin(jobs, jobs.c.id == page.c.job)
    )
    return with_verdict.order_by(*ordered([page.c[name] for name in names], sort))


def _of_jobs(rows: Select[Any], where: JobFilter, order: list[ColumnElement[Any]]) -> Select[Any]:
    """Those rows whose job is one of these. order: of the rows."""
    wanted = {jobs.c.tenant: where.user, jobs.c.cluster: where.cluster, FRAMEWORK: where.framework}
    conditions = [column == value for column, value in wanted.items() if value]
    if not conditions:
        return rows
    chosen = select(jobs.c.id).where(*conditions)
    if where.user:  # an index finds them, the largest ids first
        newest_jobs = chosen.order_by(jobs.c.cluster.desc(), jobs.c.id.desc()).limit(_LOOKED_AT)
        return rows.where(rows.selected_columns["job"].in_(newest_jobs))
    newest = rows.order_by(*order).limit(_LOOKED_AT).subquery("newest")
    return select(newest).where(exists(chosen.where(jobs.c.id == newest.c.job)))


def _failed(after: str, limit: int, sort: Sort, where: JobFilter) -> Select[Any]:
    """Of each outcome the newest by its index, then the newest of these. after: the id of a diagnosis."""
    ids, order = [], ordered([diagnoses.c.id], sort)
    for outcome in FAILURES:
        first = select(*diagnoses.c["id", "job"]).where(diagnoses.c.outcome == outcome.value, diagnoses.c.current)
        if after:
            first = first.where(is_behind([diagnoses.c.id], (after,), sort))
        found = _of_jobs(first, where, order)
        found = found.order_by(*ordered([found.selected_columns["id"]], sort)).limit(limit)
        ids.append(select(found.subquery().c.id))
    return _of_verdicts().where(diagnoses.c.id.in_(union_all(*ids))).order_by(*order).limit(limit)


def _failed_by_job(after: tuple[str, int] | None, limit: int, sort: Sort, where: JobFilter) -> Select[Any]:
    order = [diagnoses.c.job, diagnoses.c.attempt]
    query = _of_verdicts().where(diagnoses.c.current, diagnoses.c.outcome.in_(FAILURES))
    if after:
        query = query.where(is_behind(order, after, sort))
    found = _of_jobs(query, where, ordered(order, sort))
    return found.order_by(*ordered([found.selected_columns[name] for name in ("job", "number")], sort)).limit(limit)


def _of_verdicts() -> Select[Any]:
    of_attempt = and_(attempts.c.job == diagnoses.c.job, attempts.c.number == diagnoses.c.attempt)
    verdicts = select(*attempts.c[_ATTEMPT], *_VERDICT, *_OF_JOB).join(diagnoses, of_attempt)
    return verdicts.outerjoin(jobs, jobs.c.id == attempts.c.job)


def _summary(state: AttemptState | None, row: RowMapping) -> AttemptSummary:
    """Failed ones stand where their diagnosis does, the others where the columns say that order them. state: None in a
    list by job."""
    outcome = category = failure = None
    if row["diagnosis"]:
        outcome, category, failure = Outcome(row["outcome"]), Category(row["category"]), FailureType(row["type"])
    key = f"{row['number']}:{row['job']}"
    place = f"{row[_TIMES[state]]!r}:{key}" if state in _TIMES else key
    return AttemptSummary(
        **pick(row, ("opened", "last_line", "ended", "revision")),
        key=AttemptKey(row["job"], row["number"]),
        diagnosis=text_of(row, "diagnosis"),
        outcome=outcome,
        category=category,
        type=failure,
        user=text_of(row, "user"),
        cluster=text_of(row, "cluster"),
        framework=text_of(row, "framework"),
        position=f"{state or 'job'}:{row['diagnosis'] if state is AttemptState.FAILED else place}",
    )
