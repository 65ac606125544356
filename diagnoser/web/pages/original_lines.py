"""The page of lines as they came: a search among all of them, and the neighbours of any of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query
from fastapi.responses import Response
from pydantic import Field

from diagnoser.diagnosis.line_search import SearchAnswer
from diagnoser.diagnosis.original_lines import OriginalLine
from diagnoser.logview.log_index import LogSearch
from diagnoser.model import AttemptKey, Stream
from diagnoser.model.errors import BadInput
from diagnoser.web.api.evidence import AttemptPath
from diagnoser.web.api.lines import LINE_NUMBER_LIMIT, StreamQuery, named_stream
from diagnoser.web.api.params import JobPath, Search
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.web.pages.log_viewer import Part, lines_path, lines_url, text_parts
from diagnoser.web.pages.rendering import Drawn, reading_pages

AROUND = 50
"""Lines before and behind the one that is looked at."""
CLIP = 2_000
"""Characters of a line that the page shows; the API has the rest."""
BEFORE_HIT = 200
"""Characters before the first match that a result shows."""

router = reading_pages()


class LinesPageQuery(StreamQuery):
    """q, regex, place: as of a search. line: number of the line whose neighbours are shown."""

    q: Search = ""
    regex: bool = False
    place: str = Field("", max_length=40)
    line: int | None = Field(None, ge=1, lt=LINE_NUMBER_LIMIT)


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A row of the page. parts: of its text, with whether the search matches. url: of its neighbours."""

    stream: Stream
    line: OriginalLine
    parts: tuple[Part, ...]
    is_clipped: bool
    url: str


@router.get("/jobs/{id}/attempts/{attempt}/lines")
async def lines_page(
    id: JobPath, attempt: AttemptPath, query: Annotated[LinesPageQuery, Query()], core: Core, logs: Logs, pages: Drawn
) -> Response:
    """The neighbours of a line where one is named, else what the search finds. What cannot be searched for is reported
    beside the field."""
    key = AttemptKey(id, attempt)
    path, answer, window, error, onward = lines_path(key), None, None, "", ""
    if query.line is not None:
        stream = await named_stream(core, key, query)
        window = await logs.lines.window(key, stream, max(query.line - AROUND, 1), query.line + AROUND)
        rows = [_row(key, stream, line) for line in window.lines]
    else:
        answer, error = await _answer(logs, key, query)
        rows = [_row(key, match.stream, match.line, match.hits) for match in answer.lines]
        if answer.place:
            onward = f"{path}?{urlencode(query.model_dump(exclude_none=True) | {'place': answer.place})}"
    return pages.draw(
        "lines.html",
        400 if error else 200,
        key=key,
        path=path,
        typed=query,
        total=await logs.search.total(key, query.streams()),
        error=error,
        answer=answer,
        window=window,
        rows=rows,
        onward=onward,
    )


async def _answer(logs: Logs, key: AttemptKey, query: LinesPageQuery) -> tuple[SearchAnswer, str]:
    """What the search finds, and what is wrong with it."""
    if not query.q:
        return SearchAnswer(), ""
    try:
        found = await logs.search.answer(key, LogSearch(query.q, query.regex), query.streams(), query.place)
    except BadInput as error:
        return SearchAnswer(), str(error)
    return found, ""


def _row(key: AttemptKey, stream: Stream, line: OriginalLine, hits: Sequence[tuple[int, int]] = ()) -> ShownLine:
    """A long line is shown from a little before its first match on."""
    start = 0
    if hits and len(line.text) > CLIP:
        start = max(hits[0][0] - BEFORE_HIT, 0)
    end = start + CLIP
    shown = [(first - start, last - start) for first, last in hits if last <= end]
    is_clipped = any((start, line.cut, len(line.text) > end))
    return ShownLine(
        stream, line, tuple(text_parts(line.text[start:end], shown)), is_clipped, lines_url(key, stream, line.number)
    )
