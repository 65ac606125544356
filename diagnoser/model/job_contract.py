"""What a job file promises and asks for: who owns the job, how long it may be silent, how often it may be launched.

It is the job's own word. It changes when this job alone is called hung and lowers how often it is launched again; whom
an owner's name reaches is the site's to say.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from diagnoser.model.errors import BadInput
from diagnoser.model.jobs import Job
from diagnoser.model.spans import seconds

LABEL = "contract"
"""Label of a job that holds the JSON of its contract, as its agent read it from the job file."""
LENGTH = 1000
"""Most characters of a contract."""
_LONGEST = 24 * 3600.0


def _span(text: str) -> str:
    """Raises ValueError for what is no span of at most a day."""
    try:
        span = seconds(text)
    except BadInput as error:
        raise ValueError(str(error)) from None
    if not 60.0 <= span <= _LONGEST:
        raise ValueError("write a span from 1m to 1d")
    return text


_Span = Annotated[str, AfterValidator(_span)]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 @._-]{0,63}$")]


class _Terms(BaseModel):
    """The JSON. relaunches: most launches after the same failure without progress."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    owner: _Name | None = None
    notify: _Name | None = None
    first_step_within: _Span | None = None
    cadence: _Span | None = None
    relaunches: Annotated[int, Field(ge=0, le=100)] | None = None


@dataclass(frozen=True, slots=True)
class JobContract:
    """owner, notify: names that the table of alerts and the policy can ask for, "" for none.

    first_step_within, cadence: seconds that the job may be silent before its first steps, and between two of them;
    None where it does not say. relaunches: None where it does not say. problem: why the contract does not count; the
    job has none then.
    """

    owner: str = ""
    notify: str = ""
    first_step_within: float | None = None
    cadence: float | None = None
    relaunches: int | None = None
    problem: str = ""


def contract_of(job: Job | None) -> JobContract:
    """Read the contract of a job; an empty one where it has none."""
    text = job.labels.get(LABEL, "") if job else ""
    return _read(text) if text else JobContract()


def labels_of(job: Job) -> Mapping[str, str]:
    """The labels of a job as rules about jobs see them: with ``owner`` and ``notify`` of its contract."""
    contract = contract_of(job)
    labels = dict(job.labels)
    if contract.owner:
        labels["owner"] = contract.owner
    if contract.notify:
        labels["notify"] = contract.notify
    return labels


@lru_cache(maxsize=1024)
def _read(text: str) -> JobContract:
    if len(text) > LENGTH:
        return JobContract(problem=f"it has more than {LENGTH} characters")
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            return JobContract(problem='it is no JSON object, such as {"cadence": "30m"}')
        terms = _Terms.model_validate(given)
    except ValidationError as error:
        return JobContract(problem="; ".join(_problem(entry["loc"], entry["msg"]) for entry in error.errors()))
    except (ValueError, RecursionError):
        return JobContract(problem="it is not JSON")
    return JobContract(
        owner=terms.owner or "",
        notify=terms.notify or "",
        first_step_within=seconds(terms.first_step_within) if terms.first_step_within else None,
        cadence=seconds(terms.cadence) if terms.cadence else None,
        relaunches=terms.relaunches,
    )


def _problem(place: tuple[int | str, ...], message: str) -> str:
    """Name the field and what is wrong with it; a job chose the names of fields."""
    field = str(place[0])[:40]
    if message == "Extra inputs are not permitted":
        return f"there is no field {field!r} (there are {', '.join(_Terms.model_fields)})"
    return f"{field}: {message.removeprefix('Value error, ')}"
