"""Types of request fields, with their bounds."""

import math
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Path
from pydantic import StringConstraints

from diagnoser.model import JOB_ID
from diagnoser.model.errors import BadInput

JobId = Annotated[str, StringConstraints(pattern=JOB_ID)]
Node = Annotated[str, StringConstraints(pattern=r"^[^\s\x00-\x1f\x7f]{1,253}$")]
Source = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,100}$")]
Search = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{0,200}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{0,300}$")]
JobPath = Annotated[JobId, Path(description="Id of the job")]
TimeField = float | datetime
"""Seconds since the epoch, or ISO 8601."""

EARLIEST = 946_684_800.0  # 2000-01-01
AHEAD = timedelta(days=1).total_seconds()


def moment(given: TimeField | None, now: float) -> float:
    """Seconds since the epoch; ``now`` when ``given`` is None. Raises BadInput for an implausible time."""
    if given is None:
        return now
    seconds = _seconds(given)
    if not math.isfinite(seconds) or not EARLIEST <= seconds <= now + AHEAD:
        raise BadInput(f"time: {given} is not between the year 2000 and one day from now (seconds, or ISO 8601)")
    return seconds


def utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _seconds(value: TimeField) -> float:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return float(value)
