"""What the pages and the API read."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, Select, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.database import Database
from diagnoser.adapters.sql.feedback import find_feedback
from diagnoser.adapters.sql.migrations import head
from diagnoser.adapters.sql.tables import diagnoses, diagnosis_nodes, plans
from diagnoser.model.errors import Unavailable
from diagnoser.ports import DiagnosisFilter, DiagnosisRecord

_EQUAL = ("job", "category", "type", "outcome")


class QueryRows(Database):
    """``ports.ReadStore``."""

    _head = ""

    async def diagnoses(self, where: DiagnosisFilter, after: str, limit: int) -> list[DiagnosisRecord]:
        """Ids sort by time, so an id is the cursor: rows that come later never shift a page."""
        query = _records().where(*_conditions(where)).order_by(diagnoses.c.id.desc()).limit(limit)
        if after:
            query = query.where(diagnoses.c.id < after)
        async with self.reading() as connection:
            return await _with_feedback(connection, (await connection.execute(query)).mappings())

    async def diagnosis(self, id: str) -> DiagnosisRecord | None:
        async with self.reading() as connection:
            rows = (await connection.execute(_records().where(diagnoses.c.id == id))).mappings()
            return next(iter(await _with_feedback(connection, rows)), None)

    async def ping(self) -> None:
        self._head = self._head or head()
        async with self.reading() as connection:
            version = (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar()
        if version != self._head:
            raise Unavailable(f"the database has schema {version}, this code needs {self._head}")


def _records() -> Select[Any]:
    return select(diagnoses, plans.c.body.label("plan_body")).outerjoin(plans, plans.c.key == diagnoses.c.plan)


async def _with_feedback(connection: AsyncConnection, rows: Iterable[RowMapping]) -> list[DiagnosisRecord]:
    records = [codec.record_of(row) for row in rows]
    feedback = await find_feedback(connection, records)
    return [replace(record, feedback=feedback[record.id]) for record in records]


def _conditions(where: DiagnosisFilter) -> list[ColumnElement[bool]]:
    conditions = [diagnoses.c[name] == getattr(where, name) for name in _EQUAL if getattr(where, name)]
    if where.current_only:
        conditions.append(diagnoses.c.current)
    if where.since:
        conditions.append(diagnoses.c.created >= where.since)
    if where.node:
        on_node = select(diagnosis_nodes.c.diagnosis).where(diagnosis_nodes.c.node == where.node)
        conditions.append(diagnoses.c.id.in_(on_node))
    if where.text:
        conditions.append(diagnoses.c.search.contains(codec.searched(where.text), autoescape=True))
    return conditions
