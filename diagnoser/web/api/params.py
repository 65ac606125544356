"""Types of request fields, with their bounds."""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path
from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from diagnoser.model import JOB_ID, own_job_id, spoken_job_id
from diagnoser.model.errors import BadInput
from diagnoser.model.sorting import Sort
from diagnoser.web.http.authentication import Caller
from diagnoser.web.http.dependencies import Core

JobId = Annotated[str, StringConstraints(pattern=JOB_ID)]
Node = Annotated[str, StringConstraints(pattern=r"^[^\s\x00-\x1f\x7f]{1,253}$")]
Source = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,100}$")]
Search = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{0,200}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{0,300}$")]
DROP_NUL = AfterValidator(lambda text: text.replace("\0", ""))
"""Of a text that people read: PostgreSQL stores no NUL."""
STORED_JOB_ID = JOB_ID.removesuffix("$") + r"(~of~[^/\x00-\x1f\x7f]{1,200})?$"
"""With whose it is, as those who see every tenant are shown it: see ``model.own_job_id``."""


async def stored_job(
    id: Annotated[str, StringConstraints(pattern=STORED_JOB_ID), Path(description="Id of the job")],
    caller: Caller,
    core: Core,
) -> str:
    """What the store calls the job of the path: to a tenant, an id is that of its own job, whoever else uses it."""
    spoken = spoken_job_id(id)
    if not caller.tenant or await core.store.jobs.owners([spoken]):
        return id
    return own_job_id(spoken, caller.tenant)


JobPath = Annotated[str, Depends(stored_job)]


def _number(value: object) -> object:
    if isinstance(value, bool | str):
        raise ValueError("a number is needed")
    return value


IS_NUMBER = BeforeValidator(_number)
"""Of a field of a JSON body, behind its bounds: 1.0 is a whole number, ``false`` and "1" are none."""

EARLIEST, LATEST = 946_684_800, 4_102_444_800
"""The years 2000 and 2100: what is outside was not meant as seconds."""
AHEAD = timedelta(days=1).total_seconds()
LARGEST = (1 << 53) - 1
"""Whole numbers up to here are the same to every reader of JSON."""


def _iso(value: object) -> object:
    """Raises ValueError for numbers, which would be read as milliseconds where they are large."""
    if isinstance(value, str) and not re.match(r"2\d{3}-", value):
        raise ValueError("a time is seconds since the epoch, or ISO 8601, after the year 2000")
    if not isinstance(value, str | datetime):
        raise ValueError(f"seconds since the epoch are between {EARLIEST} and {LATEST}")
    return value


T = TypeVar("T")
P = TypeVar("P")

TimeField = (
    Annotated[float, Field(ge=EARLIEST, le=LATEST)]
    | Annotated[datetime, BeforeValidator(_iso), Field(json_schema_extra={"pattern": "^2[0-9]{3}-"})]
)
"""Seconds since the epoch, or ISO 8601."""


def seconds_of(time: TimeField) -> float:
    """Since the epoch."""
    if isinstance(time, datetime):
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return time


def sort_field(columns: Iterable[str], default: Sort) -> Any:
    pattern = f"^-?({'|'.join(columns)})$"
    return Field(str(default), pattern=pattern, description="Column that orders the list; `-` in front: descending")


def moment(given: TimeField | None, now: float) -> float:
    """When something happened, in seconds since the epoch: ``now`` where nobody says, or where a clock is ahead. Raises
    BadInput for a time that is more than a day away."""
    if given is None:
        return now
    seconds = seconds_of(given)
    if seconds > now + AHEAD:
        raise BadInput(f"time: {given} is yet to come")
    return min(seconds, now)


def optional_seconds(time: TimeField | None) -> float | None:
    return None if time is None else seconds_of(time)


def first_page(rows: Sequence[T], limit: int, position: Callable[[T], P]) -> tuple[Sequence[T], P | None]:
    """The first rows, and the position of the last one of them; None where no rows follow.

    rows: one more than the limit where there are more.
    """
    if len(rows) <= limit:
        return rows, None
    shown = rows[:limit]
    return shown, position(shown[-1])


def utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


Moment = Annotated[datetime, BeforeValidator(utc)]
"""A field of an answer, filled with seconds since the epoch."""
MomentIfSet = Annotated[datetime | None, BeforeValidator(lambda seconds: utc(seconds) if seconds else None)]
"""The same; null for None and for 0, which stand for never."""
KnownRank = Annotated[int | None, BeforeValidator(lambda rank: None if rank < 0 else rank)]
"""A rank of an answer; null for -1, which stands for none."""
TextIfAny = Annotated[str | None, BeforeValidator(lambda text: text or None)]
"""A text of an answer; null for an empty one."""
