"""The route that shows lines as they came."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Query
from pydantic import ConfigDict, Field

from diagnoser.client.service import API
from diagnoser.diagnosis.original_lines import WINDOW_LINES, LineWindow
from diagnoser.model import AttemptKey, Provenance, Stream
from diagnoser.model.errors import Conflict, NotFound
from diagnoser.web.api.evidence import AttemptPath
from diagnoser.web.api.params import JobPath, Node, Source
from diagnoser.web.http.authentication import READ, Provided
from diagnoser.web.http.dependencies import AppDependencies
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Router, Schema

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


class StreamShape(Schema):
    """node, rank: as the shipper named them; the lines' own prefixes may say more."""

    source: str
    node: str | None
    rank: int | None
    provenance: Provenance


class StreamList(Schema):
    """is_complete: whether these are all."""

    items: list[StreamShape]
    is_complete: bool


class OriginalLineShape(Schema):
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


class LinesShape(Schema):
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
    compressed: list[LineRange]
    never_sent: list[LineRange]
    next: int | None


@router.get(
    "/jobs/{id}/attempts/{attempt}/streams",
    responses=answers(400, 401, 503),
    summary="List the streams of an attempt",
)
async def streams(
    id: JobPath, attempt: AttemptPath, query: Annotated[StreamQuery, Query()], services: Provided
) -> StreamList:
    """By source, node and rank; a thousand at most."""
    named = await services.store.archive.streams(AttemptKey(id, attempt), STREAMS_LIMIT + 1, **_named(query))
    return StreamList(items=[_of_stream(s) for s in named[:STREAMS_LIMIT]], is_complete=len(named) <= STREAMS_LIMIT)


@router.get(
    "/jobs/{id}/attempts/{attempt}/lines",
    responses=answers(400, 401, 404, 409, 503),
    summary="Show lines as they came",
)
async def show(
    id: JobPath, attempt: AttemptPath, query: Annotated[LineQuery, Query()], services: Provided
) -> LinesShape:
    """The original lines of one stream; 409 where several are called so. They last until they are compressed; where an
    archive is set up (`DIAGNOSER_ARCHIVE`), as long as it keeps them. Lines that are gone are listed as such."""
    key = AttemptKey(id, attempt)
    stream = await _one_stream(services, key, query)
    last = query.from_ + query.limit - 1
    window = await services.lines.window(key, stream, query.from_, last if query.to is None else min(last, query.to))
    return _of_window(key, window)


async def _one_stream(services: AppDependencies, key: AttemptKey, query: LineQuery) -> Stream:
    """Raises NotFound when none is called so, Conflict when several are."""
    named = await services.store.archive.streams(key, STREAMS_TOLD + 1, **_named(query))
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


def _of_stream(stream: Stream) -> StreamShape:
    return StreamShape(
        source=stream.source,
        node=stream.node or None,
        rank=None if stream.rank < 0 else stream.rank,
        provenance=stream.provenance,
    )


def _of_window(key: AttemptKey, window: LineWindow) -> LinesShape:
    return LinesShape(
        job=key.job,
        attempt=key.number,
        stream=_of_stream(window.stream),
        first=window.first,
        last=window.last,
        end=window.end,
        lines=[OriginalLineShape(**asdict(line)) for line in window.lines],
        compressed=[LineRange(first=first, last=last) for first, last in window.compressed],
        never_sent=[LineRange(first=first, last=last) for first, last in window.never_sent],
        next=window.last + 1 if window.last < window.end else None,
    )
