"""Parts of statements that many repositories write: names of columns, keys of attempts, orders of pages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import EnumType
from functools import cache
from typing import Any, TypeVar, get_type_hints

from sqlalchemy import ColumnElement, RowMapping, and_, literal, select, tuple_

from diagnoser.adapters.sql.tables import attempts, diagnoses, plans
from diagnoser.model import AttemptKey
from diagnoser.model.sorting import Sort

T = TypeVar("T")

_PLAN_BODY = select(plans.c.body).where(plans.c.key == diagnoses.c.plan).scalar_subquery()
WITH_PLAN = (*diagnoses.c, _PLAN_BODY.label("plan_body"))
"""The columns of a diagnosis and of its plan, as ``codec.record_of`` reads them."""


def of_attempt(table: Any, attempt: AttemptKey) -> ColumnElement[bool]:
    """The rows of one attempt, in a table whose rows belong to attempts, or in that of the attempts."""
    number = table.c.number if table is attempts else table.c.attempt
    return and_(table.c.job == attempt.job, number == attempt.number)


def matches(table: Any, values: Mapping[str, Any]) -> ColumnElement[bool]:
    """The rows that have each of these values, by the name of its column."""
    conditions = []
    for name, value in values.items():
        conditions.append(table.c[name] == value)
    return and_(*conditions)


def has_key(columns: Sequence[ColumnElement[Any]], keys: Iterable[tuple[Any, ...]]) -> ColumnElement[bool]:
    """The rows whose columns, which an index begins with, have the values of one of the keys. SQLite finds values of
    one column by the index; for keys of several it reads the whole table."""
    rows = list(keys)
    first = sorted({key[0] for key in rows})
    return and_(columns[0].in_(first), tuple_(*columns).in_(rows))


def excluded(statement: Any, names: Iterable[str]) -> dict[str, Any]:
    """The columns that an upsert takes from the row that it could not insert."""
    return pick(statement.excluded, names)


def pick(row: Any, names: Iterable[str]) -> dict[str, Any]:
    """Some of the columns of a row, or of its fields by name."""
    return {name: row[name] for name in names}


def text_of(row: Any, name: str) -> str:
    """Read a text of a row; "" where it is null, as in a row that a join did not find."""
    return row[name] or ""


def read_record(kind: Callable[..., T], row: Mapping[str, Any] | RowMapping, **given: object) -> T:
    """A record whose fields are called like the columns of the row, but for those that are given."""
    names = _readers(kind).items()
    return kind(**given, **{name: read(row[name]) for name, read in names if name not in given})


@cache
def _readers(kind: Any) -> dict[str, Callable[[Any], Any]]:
    """Field -> how its column is read: texts become the enumeration that the field is of."""
    hints = get_type_hints(kind)
    return {name: hint if isinstance(hint, EnumType) else _as_it_is for name, hint in hints.items()}


def _as_it_is(value: object) -> object:
    return value


def ordered(columns: Sequence[ColumnElement[Any]], sort: Sort) -> list[ColumnElement[Any]]:
    """The columns of an ORDER BY, all of them the same way round."""
    if not sort.is_descending:
        return list(columns)
    return [column.desc() for column in columns]


def is_behind(columns: Sequence[ColumnElement[Any]], seen: Sequence[Any], sort: Sort) -> ColumnElement[bool]:
    """The rows of the next page. seen: the values of the last row that was shown, in the order of ``columns``."""
    here, there = tuple_(*columns), tuple_(*map(literal, seen))
    return here < there if sort.is_descending else here > there
