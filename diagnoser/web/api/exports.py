"""What a list shows, as a file: CSV for a spreadsheet, JSON for a program."""

import csv
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, TypeVar

from fastapi import Query
from fastapi.responses import StreamingResponse
from pydantic import Field

from diagnoser.redaction.redact import Redact, masked
from diagnoser.web.api.diagnoses import DiagnosisQuery
from diagnoser.web.api.diagnoses import index as list_diagnoses
from diagnoser.web.api.incidents import IncidentQuery
from diagnoser.web.api.incidents import index as list_incidents
from diagnoser.web.api.jobs import RunQuery
from diagnoser.web.api.jobs import index as list_runs
from diagnoser.web.api.schemas import DiagnosisPage, IncidentPage, RunPage
from diagnoser.web.http.authentication import READ
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.web.http.routing import ApiRouter

ROWS_LIMIT = 10_000
_PAGE = 200
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""With one of these in front a spreadsheet takes a text for a formula; the last four are the wide forms."""

router = ApiRouter("exports", dependencies=READ)

Columns = Mapping[str, Callable[[Any], object]]
Page = DiagnosisPage | IncidentPage | RunPage


class ExportFormat(StrEnum):
    CSV = "csv"
    JSON = "json"


class DiagnosisExport(DiagnosisQuery):
    limit: int = Field(ROWS_LIMIT, ge=1, le=ROWS_LIMIT, description="Rows of the file")


class IncidentExport(IncidentQuery):
    limit: int = Field(ROWS_LIMIT, ge=1, le=ROWS_LIMIT, description="Rows of the file")


class RunExport(RunQuery):
    limit: int = Field(ROWS_LIMIT, ge=1, le=ROWS_LIMIT, description="Rows of the file")


Narrowed = TypeVar("Narrowed", DiagnosisExport, IncidentExport, RunExport)


def _fields(*names: str) -> Columns:
    return {name: attrgetter(name) for name in names}


def _within(part: str, name: str) -> Callable[[Any], object]:
    """A column of a part of the row; empty in rows without it."""

    def value(row: Any) -> object:
        return getattr(getattr(row, part), name, None)

    return value


def _said(row: Any) -> object:
    if not row.feedback:
        return None
    return row.feedback[0].verdict


_DIAGNOSES: Columns = {
    **_fields("created", "id", "job", "attempt", "outcome", "category", "type", "confidence", "decided_by"),
    "node": _within("root_cause", "node"),
    "rank": _within("root_cause", "rank"),
    "line": _within("root_cause", "text"),
    "suspects": lambda row: " ".join(suspect.node for suspect in row.nodes),
    "action": _within("recovery", "action"),
    "said": _said,
    **_fields("url"),
}
_INCIDENTS = _fields(
    *("last_seen", "first_seen", "id", "state", "assignee", "cluster", "node", "category", "type"),
    *("failures", "jobs", "line", "url"),
)
_RUNS: Columns = {
    **_fields("job", "attempt", "state", "opened", "heard", "ended", "stage", "step", "total_steps", "loss"),
    "verdict": _within("verdict", "type"),
    "category": _within("verdict", "category"),
    **_fields("url"),
}


def _answers(page: str) -> dict[int | str, dict[str, Any]]:
    """page: the schema of a page of the list, which the JSON file is one of."""
    json_file = {"schema": {"$ref": f"#/components/schemas/{page}"}}
    content = {"text/csv": {"schema": {"type": "string"}}, "application/json": json_file}
    return {200: {"description": "The file", "content": content}}


@router.get(
    "/exports/diagnoses.{format}",
    response_class=StreamingResponse,
    responses=_answers("DiagnosisPage"),
    summary="Download diagnoses",
)
async def diagnoses(format: ExportFormat, query: Annotated[DiagnosisExport, Query()], core: Core) -> StreamingResponse:
    """What the list of diagnoses shows with the same filters, in the same order."""
    return await _file("diagnoses", format, _DIAGNOSES, partial(list_diagnoses, core=core), query, core.redact)


@router.get(
    "/exports/incidents.{format}",
    response_class=StreamingResponse,
    responses=_answers("IncidentPage"),
    summary="Download incidents",
)
async def incidents(format: ExportFormat, query: Annotated[IncidentExport, Query()], core: Core) -> StreamingResponse:
    """What the list of incidents shows with the same filters, in the same order."""
    return await _file("incidents", format, _INCIDENTS, partial(list_incidents, core=core), query, core.redact)


@router.get(
    "/exports/jobs.{format}",
    response_class=StreamingResponse,
    responses=_answers("RunPage"),
    summary="Download jobs, attempt by attempt",
)
async def jobs(format: ExportFormat, query: Annotated[RunExport, Query()], core: Core, logs: Logs) -> StreamingResponse:
    """What the list of jobs shows with the same state."""
    return await _file("jobs", format, _RUNS, partial(list_runs, core=core, logs=logs), query, core.redact)


async def _file(
    name: str,
    format: ExportFormat,
    columns: Columns,
    read: Callable[[Narrowed], Awaitable[Page]],
    query: Narrowed,
    redact: Redact,
) -> StreamingResponse:
    """read: the route of the list. Its first page is read before the answer begins, so that an error is told as one."""
    first = await read(query.model_copy(update={"limit": min(query.limit, _PAGE)}))

    async def pages() -> AsyncIterator[Page]:
        page = first
        yield page
        left = query.limit - len(page.items)
        while page.next and left > 0:
            page = await read(query.model_copy(update={"cursor": page.next, "limit": min(left, _PAGE)}))
            left -= len(page.items)
            yield page

    content, media_type = _json(pages(), redact), "application/json"
    if format is ExportFormat.CSV:
        content, media_type = _csv(columns, pages(), redact), "text/csv; charset=utf-8"
    return StreamingResponse(
        content,
        media_type=media_type,
        headers={"Content-Disposition": f'attachment; filename="{name}.{format}"', "Cache-Control": "no-store"},
    )


async def _csv(columns: Columns, pages: AsyncIterator[Page], redact: Redact) -> AsyncIterator[str]:
    yield csv_lines([columns])
    async for page in pages:
        yield csv_lines([masked(column(row), redact) for column in columns.values()] for row in page.items)


async def _json(pages: AsyncIterator[Page], redact: Redact) -> AsyncIterator[str]:
    """As the list answers: ``items``, and ``next`` where there are more."""
    yield '{"items":['
    separator, following = "", None
    async for page in pages:
        following = page.next
        if page.items:
            yield separator + ",".join(json.dumps(masked(row.model_dump(mode="json"), redact)) for row in page.items)
            separator = ","
    yield f'],"next":{json.dumps(following)}}}'


def csv_lines(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(list(map(csv_cell, row)) for row in rows)
    return text.getvalue()


def csv_cell(value: object) -> str | int | float:
    """A text that a spreadsheet would compute gets an apostrophe in front: log text and names are written by others."""
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    text = str(value).replace("\0", "")
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
