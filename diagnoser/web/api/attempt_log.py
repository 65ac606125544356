"""Routes that read the stored log of an attempt, a window at a time, and follow it."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Annotated, Self

from fastapi import Depends, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import AliasPath, BeforeValidator, Field, StringConstraints

from diagnoser.diagnosis.log_indexes import IndexedLog
from diagnoser.logview.log_columns import NOBODY, LogLevel
from diagnoser.logview.log_index import Direction, LogCursor, LogFacets, LogFilter, LogRow, LogSearch, LogWindow
from diagnoser.model import AttemptKey, Provenance
from diagnoser.model.errors import BadInput
from diagnoser.web.api.evidence import AttemptPath
from diagnoser.web.api.params import JobPath, KnownRank, Search, TextIfAny
from diagnoser.web.api.sse import RETRY_MILLISECONDS, may_go_on, pause
from diagnoser.web.http.authentication import READ, Caller, People
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Answer, ApiRouter, Schema

ROWS, ROWS_LIMIT = 200, 1_000
FACET_VALUES = 200
"""Values of a facet that are told: a job may have ten thousand ranks."""
RANKS_LIMIT = 100_000
CHOICES_LIMIT = 50
NO_RANK = "none"

router = ApiRouter("logs", dependencies=READ)

LineName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{0,160}$")]
Choice = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,253}$")]


class LogChoice(Schema):
    """Which rows of a log are shown, and from where on. ``at``, ``after`` and ``before`` take the id of a row; ``at``
    also `start`, `end`, a line number, or `SOURCE:NUMBER`."""

    at: LineName = Field("", description="The row in the middle of the window; `start` or `end`")
    after: LineName = Field("", description="The row before the window")
    before: LineName = Field("", description="The row after the window")
    ranks: str = Field("", max_length=2_000, description="Ranks, as `0-3,7`; `none`: of no rank")
    node: list[Choice] = Field(default_factory=list, max_length=CHOICES_LIMIT)
    source: list[Choice] = Field(default_factory=list, max_length=CHOICES_LIMIT)
    level: list[LogLevel] = Field(default_factory=list, max_length=CHOICES_LIMIT)
    q: Search = Field("", description="Part of a line, in any case")
    regex: bool = Field(False, description="`q` is a regular expression of RE2")
    only: bool = Field(False, description="Show only rows that match `q`")

    def filter(self) -> LogFilter:
        """Raises BadInput."""
        return LogFilter(
            ranks_of(self.ranks),
            frozenset(self.node),
            frozenset(self.source),
            frozenset(self.level),
            LogSearch(self.q, self.regex),
            self.only,
        )

    def cursor(self) -> LogCursor:
        """Without a place a search begins at its first match, else the log at its start. Raises BadInput."""
        named = [name for name in ("at", "after", "before") if getattr(self, name)]
        if len(named) > 1:
            raise BadInput(f"{' and '.join(named)} contradict each other: give one of them")
        if self.after:
            return LogCursor(Direction.AFTER, self.after)
        if self.before:
            return LogCursor(Direction.BEFORE, self.before)
        if self.at in ("start", "end"):
            return LogCursor(Direction(self.at))
        is_placed = self.at or self.q
        return LogCursor(Direction.AROUND if is_placed else Direction.START, self.at)


class LogQuery(LogChoice, extra="forbid"):
    limit: int = Field(ROWS, ge=1, le=ROWS_LIMIT)


class TemplateShape(Answer):
    """The lines that look like the row, which is the first of them. samples: a few, as they came."""

    text: str
    count: int
    last: int = Field(validation_alias=AliasPath("last", 1))
    ranks: Annotated[list[int], BeforeValidator(sorted)]
    samples: list[str]


class LogRowShape(Answer):
    """id: names the line for good. gap: lines of its stream just before it that are not shown. hits: where ``q``
    matches, as [start, end) in the text. A ``routine`` row is a template; its lines are only counted."""

    id: str
    source: str
    node: TextIfAny
    rank: KnownRank
    line: int
    time: float | None
    level: LogLevel
    provenance: Provenance
    text: str
    gap: int
    template: TemplateShape | None
    hits: list[list[int]]

    @classmethod
    def from_row(cls, row: LogRow) -> Self:
        stream, time = row.stream, row.time or None
        return cls.filled_from(row, source=stream.source, line=row.number, time=time, provenance=stream.provenance)


class FacetCount(Schema):
    """A value, and the rows that it would show. value: null for rows of no rank."""

    value: int | str | None
    count: int


class LogPage(Answer):
    """A window. lines: that came; rows that fit the filter: total, and before and after the window.

    target: id of the row that ``at`` led to; is_exact: whether it is the line that was asked for, and not the nearest
    one before it that is shown. matches: rows that match ``q``, at most 10,000. previous, next: rows for ``before``
    and ``after``, null at the ends. previous_match, next_match: nearest matches outside the window. revision: grows
    with the log.
    """

    lines: int
    total: int
    before: int
    after: int
    rows: list[LogRowShape]
    target: TextIfAny
    is_exact: bool
    matches: int
    previous: str | None
    next: str | None
    previous_match: TextIfAny
    next_match: TextIfAny
    facets: dict[str, list[FacetCount]]
    revision: int


class LogNews(Schema):
    """The log of an attempt has grown, or its end was told."""

    revision: int


@router.get("/jobs/{id}/attempts/{attempt}/log", responses=answers(404), summary="Read the log of an attempt")
async def show(id: JobPath, attempt: AttemptPath, query: Annotated[LogQuery, Query()], logs: Logs) -> LogPage:
    """The lines that are stored, in order of time, and templates of those that are only counted."""
    log = await logs.indexes.load(AttemptKey(id, attempt))
    window, facets = await asyncio.to_thread(read, log, query, query.limit)
    return _page(log, window, facets)


async def known_attempt(id: JobPath, attempt: AttemptPath, logs: Logs) -> AttemptKey:
    """Raises NotFound, which a stream that has begun could not answer with."""
    key = AttemptKey(id, attempt)
    await logs.indexes.revision(key)
    return key


@router.get(
    "/jobs/{id}/attempts/{attempt}/log/live",
    response_class=EventSourceResponse,
    responses=answers(404),
    summary="Follow the log of an attempt",
)
async def live(
    key: Annotated[AttemptKey, Depends(known_attempt)], core: Core, logs: Logs, people: People, caller: Caller
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events, one `log` each time when lines have come, until the token ends. The lines are read with
    `after`."""
    told = await logs.indexes.revision(key)
    yield ServerSentEvent(comment="listening", retry=RETRY_MILLISECONDS)
    while await may_go_on(core, people, caller):
        revision = await logs.indexes.revision(key)
        if revision != told:
            told = revision
            yield ServerSentEvent(event="log", id=str(revision), data=LogNews(revision=revision))
        await pause(core.stopping)


def read(log: IndexedLog, choice: LogChoice, rows: int) -> tuple[LogWindow, LogFacets]:
    """Raises BadInput."""
    wanted = choice.filter()
    return log.index.window(wanted, choice.cursor(), rows), log.index.facets(wanted)


def ranks_of(text: str) -> frozenset[int]:
    """``0-2,7`` -> 0, 1, 2, 7; ``none`` stands for rows of no rank. Raises BadInput."""
    ranks: set[int] = set()
    for part in filter(None, map(str.strip, text.split(","))):
        if part == NO_RANK:
            ranks.add(NOBODY)
        elif named := _range(part):
            ranks.update(named)
        else:
            raise BadInput(f"ranks: {part!r} is no rank or range; write them as 0-3,7")
    return frozenset(ranks)


def _range(text: str) -> range:
    """``7`` -> 7 alone, ``0-2`` -> 0, 1, 2; empty for what names no ranks."""
    low, dash, high = text.partition("-")
    if not dash:
        high = low
    if not (low.isdecimal() and high.isdecimal()):
        return range(0)
    if int(high) >= RANKS_LIMIT:
        return range(0)
    return range(int(low), int(high) + 1)


def _page(log: IndexedLog, window: LogWindow, facets: LogFacets) -> LogPage:
    rows = list(map(LogRowShape.from_row, window.rows))
    previous = following = None
    if rows:
        previous = rows[0].id if window.before else None
        following = rows[-1].id if window.after else None
    return LogPage.filled_from(
        window,
        lines=log.index.lines,
        rows=rows,
        previous=previous,
        next=following,
        facets={
            "ranks": _counts((None if rank == NOBODY else rank, count) for rank, count in facets.ranks),
            "node": _counts(facets.nodes),
            "source": _counts(facets.sources),
            "level": _counts(facets.levels),
        },
        revision=log.revision,
    )


def _counts(pairs: Iterable[tuple[int | str | None, int]]) -> list[FacetCount]:
    return [FacetCount(value=value, count=count) for value, count in islice(pairs, FACET_VALUES)]
