"""Learned rules, and the attempts in which they hit or would have."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, Select, and_, case, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Repository, insert, insert_new
from diagnoser.adapters.sql.statements import excluded, of_attempt, read_record, text_of
from diagnoser.adapters.sql.tables import diagnoses, jobs, learned_rules, revisions, rule_hits
from diagnoser.model import LOADED, AttemptKey, ConfirmedFailure, Counts, HitVerdict, LearnedRule, LearnedState, RuleHit
from diagnoser.model.errors import Conflict, NotFound
from diagnoser.model.queries import LearnedRuleQuery
from diagnoser.model.record_json import RecordJson, fields_of
from diagnoser.model.taxonomy import FailureType

_RULE = RecordJson(LearnedRule)
_NAME = "learned_rules"
_READ = learned_rules.c["id", "body", "version", "source", "created"]
"""Each by its name: PostgreSQL derives them from the key only where it reads the table itself, and a narrowed query
does not."""
_COLUMNS = ("id", "state", "source", "created", "version")
_CAUSE, _FILTER = "diagnosis", "filter"
"""Kinds of rules, as the table names them."""


class LearnedRuleRepository(Repository):
    async def revision(self) -> int:
        """Grows whenever a rule changes; cheap to query. A replica with an older revision reloads the rules."""
        return await self._db.value(select(revisions.c.value).where(revisions.c.name == _NAME), 0)

    async def page(self, where: LearnedRuleQuery, after: str, limit: int) -> list[LearnedRule]:
        """Newest first, with their counts; ``after`` is the id of the last one already seen, "" for the first page."""
        row = learned_rules.c
        query = _with_counts().where(*_conditions(where)).order_by(row.created.desc(), row.id.desc()).limit(limit)
        if after:
            boundary = select(row.created).where(row.id == after).scalar_subquery()
            query = query.where(or_(row.created < boundary, and_(row.created == boundary, row.id < after)))
        return await self._db.rows(query, _rule_of)

    async def find(self, id: str) -> LearnedRule | None:
        return next(iter(await self._db.rows(_with_counts().where(learned_rules.c.id == id), _rule_of)), None)

    async def propose(self, rule: LearnedRule) -> bool:
        """Store a new rule; False, and nothing is stored, when that id exists."""
        async with self._db.writing() as connection:
            is_new = await add_proposal(connection, rule)
            if is_new:
                await note_change(connection, "rule", rule.id, None, rule)
            return is_new

    async def change(self, before: LearnedRule, after: LearnedRule) -> LearnedRule:
        """Store ``after`` if the rule still has the version of ``before``; ends a claim. Raises Conflict, NotFound.

        Locks the counter first, so that changes are serialized and revisions follow commit order.
        """
        stored = replace(after, version=before.version + 1, counts=before.counts)
        mine = and_(learned_rules.c.id == before.id, learned_rules.c.version == before.version)
        async with self._db.writing() as connection:
            await _count_up(connection)
            result = await connection.execute(update(learned_rules).where(mine).values(_row(stored) | {"lease": 0.0}))
            if not result.rowcount:
                if await _find(connection, before.id) is None:
                    raise NotFound(f"there is no rule {before.id!r}")
                raise Conflict(f"rule {before.id!r} was changed in the meantime")
            await note_change(connection, "rule", before.id, before, stored)
        return stored

    async def claim(self, now: float, lease: float, limit: int) -> list[LearnedRule]:
        """Proposed rules that nobody works on, oldest first; no other replica gets them until the lease ends."""
        row = learned_rules.c
        free = and_(row.state == LearnedState.PROPOSED, row.lease <= now, row.kind == _CAUSE)
        query = select(row.id, row.version).where(free).order_by(row.created, row.id).limit(limit)
        claimed = []
        async with self._db.writing() as connection:
            due = (await connection.execute(query.with_for_update(skip_locked=True))).all()
            for key, version in due:
                mine = update(learned_rules).where(row.id == key)
                await connection.execute(mine.values(lease=now + lease, version=version + 1))
                if rule := await _find(connection, key):
                    claimed.append(rule)
        return claimed

    async def record_hits(self, hits: Sequence[RuleHit]) -> None:
        """One row per rule and attempt: a later hit replaces it, but a verdict other than open stays."""
        async with self._db.writing() as connection:
            for hit in sorted(hits, key=lambda hit: (hit.rule, hit.attempt)):
                new = self._db.insert(rule_hits).values(_hit_row(hit))
                changed: dict[str, Any] = excluded(new, ("time", "diagnosis", "active", "lines", "bytes"))
                changed["verdict"] = case(
                    (rule_hits.c.verdict == HitVerdict.OPEN, new.excluded["verdict"]), else_=rule_hits.c.verdict
                )
                await connection.execute(
                    new.on_conflict_do_update(index_elements=["rule", "job", "attempt"], set_=changed)
                )

    async def judge_hits(self, attempt: AttemptKey, type: str) -> list[str]:
        """The cause of an attempt became known: rules that hit there were right if they are of this type, else
        wrong. Returns the ids of those that were right."""
        async with self._db.writing() as connection:
            return await judge_rule_hits(connection, attempt, type)

    async def hits(self, rule: str, limit: int) -> list[RuleHit]:
        """The newest first."""
        query = select(rule_hits).where(rule_hits.c.rule == rule)
        order = (rule_hits.c.time.desc(), rule_hits.c.job, rule_hits.c.attempt)
        return await self._db.rows(query.order_by(*order).limit(limit), _hit_of)


async def add_proposal(connection: AsyncConnection, rule: LearnedRule) -> bool:
    """As ``propose``, within the transaction that stores what the rule is learned from."""
    new = await insert_new(connection, learned_rules, [_row(rule) | {"lease": 0.0}])
    if new:
        await _count_up(connection)
    return bool(new)


async def judge_rule_hits(connection: AsyncConnection, attempt: AttemptKey, type: str) -> list[str]:
    """As ``judge_hits``, within the transaction that stores the confirmed cause."""
    in_attempt = of_attempt(rule_hits, attempt)
    hit = learned_rules.c.id.in_(select(rule_hits.c.rule).where(in_attempt))
    query = select(learned_rules.c.body).where(hit, learned_rules.c.kind == _CAUSE)
    rules = list(map(_RULE.load, (await connection.execute(query)).scalars()))
    right = []
    for rule in rules:
        verdict = HitVerdict.WRONG
        if rule.type == type:
            verdict = HitVerdict.CONFIRMED
            right.append(rule.id)
        await connection.execute(
            update(rule_hits).where(in_attempt, rule_hits.c.rule == rule.id).values(verdict=verdict.value)
        )
    return right


async def reopen_rule_hits(connection: AsyncConnection, attempt: AttemptKey) -> None:
    """Forget what became known of the rules that hit in an attempt: its feedback was taken back."""
    in_attempt = of_attempt(rule_hits, attempt)
    await connection.execute(update(rule_hits).where(in_attempt).values(verdict=HitVerdict.OPEN.value))


async def withdraw_rules(connection: AsyncConnection, confirmed: ConfirmedFailure) -> None:
    """Retire rules learned from this diagnosis for another cause: its feedback was corrected, or taken back."""
    row = learned_rules.c
    live = (LearnedState.PROPOSED, *LOADED)
    mine = and_(row.source == confirmed.diagnosis, row.state.in_(live))
    rows = (await connection.execute(select(row.body, row.version).where(mine))).mappings().all()
    for stored in rows:
        rule = replace(_RULE.load(stored["body"]), version=stored["version"])
        if rule.type == confirmed.type:
            continue
        why = f"the cause was corrected to {confirmed.type}"
        if confirmed.type is FailureType.UNKNOWN:
            why = "what it was learned from was taken back"
        retired = rule.with_state(LearnedState.RETIRED, by=confirmed.by, why=why, now=confirmed.changed)
        values = _row(replace(retired, version=rule.version + 1)) | {"lease": 0.0}
        await _count_up(connection)
        await connection.execute(update(learned_rules).where(row.id == rule.id).values(values))


async def _count_up(connection: AsyncConnection) -> None:
    new = insert(connection, revisions).values(name=_NAME, value=1)
    await connection.execute(new.on_conflict_do_update(index_elements=["name"], set_={"value": revisions.c.value + 1}))


def _conditions(where: LearnedRuleQuery) -> Iterable[ColumnElement[bool]]:
    yield learned_rules.c.kind == (_FILTER if where.filters else _CAUSE)
    if where.family:
        yield learned_rules.c.scope == where.family
    if where.states:
        yield learned_rules.c.state.in_(where.states)
    if where.source:
        yield learned_rules.c.source == where.source


def _with_counts() -> Select[Any]:
    hit, row = rule_hits.c, learned_rules.c
    counts = [
        func.count(hit.rule).label("hits"),
        *(func.count(case((hit.verdict == verdict.value, 1))).label(verdict.value) for verdict in HitVerdict),
        func.coalesce(func.sum(hit.lines), 0).label("lines"),
        func.coalesce(func.sum(hit.bytes), 0).label("bytes"),
    ]
    of_source = select(jobs.c.tenant).join(diagnoses, diagnoses.c.job == jobs.c.id).where(diagnoses.c.id == row.source)
    tenant = of_source.scalar_subquery().label("tenant")
    return select(row.body, row.version, tenant, *counts).outerjoin(rule_hits, hit.rule == row.id).group_by(*_READ)


async def _find(connection: AsyncConnection, id: str) -> LearnedRule | None:
    row = (await connection.execute(_with_counts().where(learned_rules.c.id == id))).mappings().first()
    return _rule_of(row) if row else None


def _row(rule: LearnedRule) -> dict[str, Any]:
    kind = _FILTER if rule.family else _CAUSE
    body = _RULE.plain(replace(rule, counts=Counts())) | {"kind": kind}  # as older code reads
    return fields_of(rule, _COLUMNS) | {"kind": kind, "scope": rule.family, "body": json.dumps(body)}


def _rule_of(row: RowMapping) -> LearnedRule:
    counts = Counts(row["hits"], row["confirmed"], row["wrong"], int(row["lines"]), int(row["bytes"]))
    tenant = text_of(row, "tenant")
    return replace(_RULE.load(row["body"]), version=row["version"], counts=counts, tenant=tenant)


def _hit_of(row: RowMapping) -> RuleHit:
    return read_record(RuleHit, row, attempt=AttemptKey(row["job"], row["attempt"]))


def _hit_row(hit: RuleHit) -> dict[str, Any]:
    values = fields_of(hit, ("rule", "time", "diagnosis", "active", "lines", "bytes"))
    return values | {"job": hit.attempt.job, "attempt": hit.attempt.number, "verdict": hit.verdict.value}
