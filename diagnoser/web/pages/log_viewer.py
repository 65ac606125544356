"""The page of an attempt's log."""

import asyncio
import re
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import Query
from fastapi.responses import Response

from diagnoser.logview.log_index import MATCHES_LIMIT
from diagnoser.model import AttemptKey, Stream
from diagnoser.model.errors import BadInput
from diagnoser.web.api.attempt_log import ROWS, LogChoice, read
from diagnoser.web.api.evidence import AttemptPath
from diagnoser.web.api.jobs import latest
from diagnoser.web.api.params import JobPath
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.web.pages.excerpt import LineRole
from diagnoser.web.pages.log_view import Address, chip_groups, cited_rows, shown_rows
from diagnoser.web.pages.rendering import Drawn, reading_pages

router = reading_pages()
_VARIABLE = re.compile(r"<[A-Z]+>")
"""What stands in a template where its lines differ."""


class LogPageQuery(LogChoice):
    """follow: show new lines as they come."""

    follow: bool = False


def log_path(key: AttemptKey) -> str:
    return f"/jobs/{quote(key.job, safe='')}/attempts/{key.number}/log"


def lines_path(key: AttemptKey) -> str:
    return f"{log_path(key).removesuffix('log')}lines"


def lines_url(key: AttemptKey, stream: Stream, number: int) -> str:
    """Address of the neighbours of a line, as it came."""
    named = {"source": stream.source, "node": stream.node, "rank": stream.rank, "provenance": stream.provenance}
    return f"{lines_path(key)}?{urlencode({**named, 'line': number})}#line-{number}"


@router.get("/jobs/{id}/attempts/{attempt}/log")
async def log_page(
    id: JobPath, attempt: AttemptPath, query: Annotated[LogPageQuery, Query()], core: Core, logs: Logs, pages: Drawn
) -> Response:
    """A window of the log. What cannot be searched for is told beside the field, with the log as it was."""
    key = AttemptKey(id, attempt)
    log = await logs.indexes.load_or_begin(key)
    if log is None:
        return pages.draw("log_reading.html", key=key)
    record = (await latest(core.store, id)).get(attempt)
    choice = LogChoice.model_validate(query.model_dump(exclude={"follow"}))
    fault = ""
    try:
        window, facets = await asyncio.to_thread(read, log, choice, ROWS)
    except BadInput as error:
        fault, choice = (
            str(error),
            choice.model_copy(update={"q": "", "ranks": "", "at": "", "after": "", "before": ""}),
        )
        window, facets = await asyncio.to_thread(read, log, choice, ROWS)
    cited = await asyncio.to_thread(cited_rows, log.index, record.diagnosis if record else None)
    address = Address(log_path(key), choice)
    return pages.draw(
        "log.html",
        400 if fault else 200,
        key=key,
        record=record,
        log=log.index,
        window=window,
        rows=shown_rows(window, cited),
        root=next((line for line, (role, _) in cited.items() if role is LineRole.ROOT), ""),
        chips=chip_groups(facets, address),
        address=address,
        typed=query,
        fault=fault,
        follow=query.follow,
        matches_limit=MATCHES_LIMIT,
        lines_path=lines_path(key),
        before_gap=lambda row: lines_url(key, row.stream, row.number - 1),
        literal_of=literal_of,
    )


def literal_of(template: str) -> str:
    """The longest part that all lines of a template share: what finds them among all lines."""
    return max(_VARIABLE.split(template), key=len).strip()[:200]
