"""The route that shows lines as they came."""

from typing import Annotated, Any, Literal, Self

from fastapi import Query
from pydantic import BeforeValidator, Field, StringConstraints

from diagnoser.diagnosis.line_search import MatchingLine, StreamFilter
from diagnoser.diagnosis.original_lines import WINDOW_LINES, LineWindow
from diagnoser.logview.log_index import LogSearch
from diagnoser.model import AttemptKey, Provenance, Stream
from diagnoser.model.errors import Conflict, NotFound
from diagnoser.web.api.evidence import AttemptPath
from diagnoser.web.api.params import JobPath, KnownRank, Node, Source, TextIfAny
from diagnoser.web.http.authentication import READ
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Answer, ApiRouter, Schema, StrictSchema

WINDOW = 500
STREAMS_LIMIT = 1_000
STREAMS_TOLD = 5
LINE_NUMBER_LIMIT = 1 << 53
Words = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")]

router = ApiRouter("logs", dependencies=READ)


class StreamQuery(StrictSchema):
    """Which streams; what is left out stands for any."""

    source: Source | None = Field(None, description="Name of the stream, such as `stdout`")
    node: Node | Literal[""] | None = Field(None, description="Node that the shipper named; empty: none")
    rank: int | None = Field(None, ge=-1, lt=1 << 31, description="Rank that the shipper named; -1: none")
    provenance: Provenance | None = Field(None, description="Who vouches for its lines")

    def streams(self) -> StreamFilter:
        return StreamFilter(**_named(self))


class LineQuery(StreamQuery):
    """Which lines of which stream."""

    from_: int = Field(
        1, alias="from", ge=1, lt=LINE_NUMBER_LIMIT, description="Number of the first line; `next` of the answer before"
    )
    to: int | None = Field(None, ge=1, lt=LINE_NUMBER_LIMIT, description="Number of the last line")
    limit: int = Field(WINDOW, ge=1, le=WINDOW_LINES, description="Lines at most; fewer come where they are long")


class StreamShape(Answer):
    """node, rank: as the shipper named them; the lines' own prefixes may say more."""

    source: str
    node: TextIfAny
    rank: KnownRank
    provenance: Provenance


class StreamList(Schema):
    """is_complete: whether these are all."""

    items: list[StreamShape]
    is_complete: bool


class OriginalLineShape(Answer):
    """time: when it was printed, null where the log does not say; received: when it arrived (seconds since the epoch).

    cut: bytes behind the text that are left out.
    """

    number: int
    text: str
    time: float | None
    received: float
    cut: int


class LineRange(Schema):
    """Both ends belong to it."""

    first: int
    last: int


ClosedRange = Annotated[LineRange, BeforeValidator(lambda ends: LineRange(first=ends[0], last=ends[1]))]
"""A range of lines, filled with its first and its last one."""


class LinesShape(Answer):
    """Lines ``first`` to ``last`` of a stream, as far as they are left. end: its last line so far.

    compressed: lines that came, and of which only the compressed log is left. never_sent: numbers that never arrived.
    next: `from` of the window that follows, null at the end of the stream.
    """

    job: str
    attempt: int
    stream: StreamShape
    first: int
    last: int
    end: int
    lines: list[OriginalLineShape]
    compressed: list[ClosedRange]
    never_sent: list[ClosedRange]
    next: int | None

    @classmethod
    def from_window(cls, key: AttemptKey, window: LineWindow) -> Self:
        following = window.last + 1 if window.last < window.end else None
        return cls.filled_from(window, job=key.job, attempt=key.number, next=following)


class LineSearchQuery(StreamQuery):
    """What is searched for, and where the search goes on."""

    q: Words = Field(description="Part of a line, in any case")
    regex: bool = Field(False, description="`q` is a regular expression of RE2")
    place: str = Field("", max_length=40, description="`next` of the answer before")

    def search(self) -> LogSearch:
        return LogSearch(self.q, self.regex)


class MatchingLineShape(OriginalLineShape):
    """A line and whose it is. hits: where the search matches, as [start, end) in the text."""

    stream: StreamShape
    hits: list[list[int]]

    @classmethod
    def from_match(cls, match: MatchingLine) -> Self:
        return cls.filled_from(match.line, stream=match.stream, hits=match.hits)


class LineMatches(Schema):
    """Matching lines, the newest first, 500 at most. matches: all of this answer. searched: lines that it looked at.

    total: lines that came. Where fewer were searched in all answers, only the compressed log is left of the others.
    next: `place` of the answer that goes on, null at the end.
    """

    items: list[MatchingLineShape]
    matches: int
    searched: int
    total: int
    next: str | None


@router.get("/jobs/{id}/attempts/{attempt}/streams", summary="List the streams of an attempt")
async def streams(id: JobPath, attempt: AttemptPath, query: Annotated[StreamQuery, Query()], core: Core) -> StreamList:
    """By source, node and rank; a thousand at most."""
    named = await core.store.archive.streams(AttemptKey(id, attempt), STREAMS_LIMIT + 1, **_named(query))
    return StreamList.model_validate({"items": named[:STREAMS_LIMIT], "is_complete": len(named) <= STREAMS_LIMIT})


@router.get("/jobs/{id}/attempts/{attempt}/lines", responses=answers(404, 409), summary="Show lines as they came")
async def show(
    id: JobPath, attempt: AttemptPath, query: Annotated[LineQuery, Query()], core: Core, logs: Logs
) -> LinesShape:
    """The original lines of one stream; 409 where several are called so. They last until they are compressed; where an
    archive is set up (`DIAGNOSER_ARCHIVE`), as long as it keeps them. Lines that are gone are listed as such."""
    key = AttemptKey(id, attempt)
    stream = await named_stream(core, key, query)
    last = query.from_ + query.limit - 1
    window = await logs.lines.window(key, stream, query.from_, last if query.to is None else min(last, query.to))
    return LinesShape.from_window(key, window)


@router.get(
    "/jobs/{id}/attempts/{attempt}/lines/search",
    responses=answers(404),
    summary="Search the lines as they came",
)
async def search(
    id: JobPath, attempt: AttemptPath, query: Annotated[LineSearchQuery, Query()], logs: Logs
) -> LineMatches:
    """All lines that are left as they came, also those that the log only counts. An answer looks at 256 MiB of
    text: ask again with `next` until it is null."""
    key, wanted = AttemptKey(id, attempt), query.streams()
    total = await logs.search.total(key, wanted)
    answer = await logs.search.answer(key, query.search(), wanted, query.place)
    items = list(map(MatchingLineShape.from_match, answer.lines))
    return LineMatches(
        items=items, matches=answer.matches, searched=answer.searched, total=total, next=answer.place or None
    )


async def named_stream(core: Core, key: AttemptKey, query: StreamQuery) -> Stream:
    """Raises NotFound when none is called so, Conflict when several are."""
    named = await core.store.archive.streams(key, STREAMS_TOLD + 1, **_named(query))
    if not named:
        raise NotFound(f"attempt {key.number} of {key.job!r} has no such stream: see {key.number}/streams")
    if len(named) > 1:
        told = "; ".join(f"source={s.source} node={s.node} rank={s.rank} provenance={s.provenance}" for s in named)
        raise Conflict(
            f"several streams are called so, name one of them: {told}" + ("; ..." if len(named) > STREAMS_TOLD else "")
        )
    return named[0]


def _named(query: StreamQuery) -> dict[str, Any]:
    return query.model_dump(include={"source", "node", "rank", "provenance"})
