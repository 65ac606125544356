"""The route that shows lines as they came."""

from typing import Annotated, Any, Self

from fastapi import Query
from pydantic import BeforeValidator, ConfigDict, Field

from diagnoser.client.service import API
from diagnoser.diagnosis.original_lines import WINDOW_LINES, LineWindow
from diagnoser.model import AttemptKey, Provenance, Stream
from diagnoser.model.errors import Conflict, NotFound
from diagnoser.web.api.evidence import AttemptPath
from diagnoser.web.api.params import JobPath, KnownRank, Node, Source, TextIfAny
from diagnoser.web.http.authentication import READ
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.web.http.problems import LIST_ERRORS, answers
from diagnoser.web.http.routing import Answer, Router, Schema

WINDOW = 500
STREAMS_LIMIT = 1_000
STREAMS_TOLD = 5
LINE_NUMBER_LIMIT = 1 << 53

router = Router(prefix=API, tags=["logs"], dependencies=READ)


class StreamQuery(Schema):
    """Which streams; what is left out stands for any."""

    model_config = ConfigDict(extra="forbid")

    source: Source | None = Field(None, description="Name of the stream, such as `stdout`")
    node: Node | None = Field(None, description="Node that the shipper named")
    rank: int | None = Field(None, ge=-1, lt=1 << 31, description="Rank that the shipper named; -1: none")
    provenance: Provenance | None = Field(None, description="Who vouches for its lines")


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


def _range(ends: tuple[int, int]) -> LineRange:
    return LineRange(first=ends[0], last=ends[1])


ClosedRange = Annotated[LineRange, BeforeValidator(_range)]
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


@router.get("/jobs/{id}/attempts/{attempt}/streams", responses=LIST_ERRORS, summary="List the streams of an attempt")
async def streams(id: JobPath, attempt: AttemptPath, query: Annotated[StreamQuery, Query()], core: Core) -> StreamList:
    """By source, node and rank; a thousand at most."""
    named = await core.store.archive.streams(AttemptKey(id, attempt), STREAMS_LIMIT + 1, **_named(query))
    return StreamList.model_validate({"items": named[:STREAMS_LIMIT], "is_complete": len(named) <= STREAMS_LIMIT})


@router.get(
    "/jobs/{id}/attempts/{attempt}/lines",
    responses=answers(400, 401, 404, 409, 503),
    summary="Show lines as they came",
)
async def show(
    id: JobPath, attempt: AttemptPath, query: Annotated[LineQuery, Query()], core: Core, logs: Logs
) -> LinesShape:
    """The original lines of one stream; 409 where several are called so. They last until they are compressed; where an
    archive is set up (`DIAGNOSER_ARCHIVE`), as long as it keeps them. Lines that are gone are listed as such."""
    key = AttemptKey(id, attempt)
    stream = await _one_stream(core, key, query)
    last = query.from_ + query.limit - 1
    window = await logs.lines.window(key, stream, query.from_, last if query.to is None else min(last, query.to))
    return LinesShape.from_window(key, window)


async def _one_stream(core: Core, key: AttemptKey, query: LineQuery) -> Stream:
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
