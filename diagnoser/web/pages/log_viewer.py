"""The page of an attempt's log: rows with the parts of their texts, chips that narrow it, and addresses within it."""

import asyncio
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import Query
from fastapi.responses import Response

from diagnoser.logview.log_columns import NOBODY
from diagnoser.logview.log_index import MATCHES_LIMIT, LogFacets, LogIndex, LogRow, LogWindow
from diagnoser.model import AttemptKey, Diagnosis, Stream
from diagnoser.model.errors import BadInput
from diagnoser.model.number_runs import spans
from diagnoser.web.api.attempt_log import NO_RANK, RANKS_LIMIT, ROWS, LogChoice, ranks_of, read
from diagnoser.web.api.evidence import AttemptPath
from diagnoser.web.api.jobs import latest
from diagnoser.web.api.params import JobPath
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.web.pages.column_order import filled
from diagnoser.web.pages.excerpt import LineRole, citations
from diagnoser.web.pages.rendering import Drawn, reading_pages
from diagnoser.wording.phrases import joined

CLIP = 320
"""Characters of a line that are shown before it is opened."""
_SLACK = 80
"""Characters by which a line may be longer without being clipped."""
CHIPS = 12
"""Values of a facet that have a chip; for others there are fields."""

Part = tuple[str, bool]
"""A piece of a text, and whether the search matches it."""


@dataclass(frozen=True, slots=True)
class ShownRow:
    """head: what is shown of the text; rest: what opens. role: of the line in the verdict, "" where it is not cited."""

    row: LogRow
    head: tuple[Part, ...]
    rest: tuple[Part, ...]
    rest_length: int
    role: str
    note: str


@dataclass(frozen=True, slots=True)
class Chip:
    """A value that narrows the log, or leads out of it where it is chosen."""

    label: str
    count: int
    url: str
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Address:
    """The page's address with other choices. Changing a filter stays at the line that is looked at."""

    path: str
    choice: LogChoice

    def url(self, **changes: object) -> str:
        """changes: another place, or other filters."""
        values = self.choice.model_dump(exclude={"at", "after", "before"}) | changes
        chosen = filled(values)
        for name, value in chosen.items():
            if value is True:
                chosen[name] = "1"
        return f"{self.path}?{urlencode(chosen, doseq=True)}" if chosen else self.path

    def narrowed(self, field: str, values: Sequence[str] | str) -> str:
        return self.url(**{field: values}, at=self.choice.at)

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The chosen values of a form that has fields of its own for ranks and the search."""
        values = self.choice.model_dump(include={"node", "source", "level"})
        return [(name, str(value)) for name, chosen in values.items() for value in chosen]

    @property
    def is_narrowed(self) -> bool:
        choice = self.choice
        if choice.only and choice.q:
            return True
        return any((choice.ranks, choice.node, choice.source, choice.level))


def shown_rows(window: LogWindow, cited: Mapping[str, tuple[LineRole, str]]) -> list[ShownRow]:
    """cited: id of a row -> role and note, as of ``cited_rows``."""
    return [_shown(row, *cited.get(row.id, ("", ""))) for row in window.rows]


def cited_rows(index: LogIndex, verdict: Diagnosis | None) -> dict[str, tuple[LineRole, str]]:
    """Rows that a verdict refers to. The first role of a line is the one that matters most."""
    roles: dict[str, tuple[LineRole, str]] = {}
    for citation in citations(verdict) if verdict else ():
        if line := index.id_of(citation.source, citation.row.number, citation.row.text):
            roles.setdefault(line, (citation.row.role, citation.row.note))
    return roles


def chip_groups(facets: LogFacets, address: Address) -> dict[str, tuple[list[Chip], int]]:
    """Field -> chips of the chosen values and of the most frequent others, and how many values have none. A field of
    one value has no chips."""
    choice = address.choice
    ranks = tuple((_rank_name(rank), count) for rank, count in facets.ranks)
    fields: dict[str, tuple[Sequence[tuple[str, int]], Collection[str]]] = {
        "level": (facets.levels, choice.level),
        "ranks": (ranks, set(map(_rank_name, ranks_of(choice.ranks)))),
        "node": (facets.nodes, choice.node),
        "source": (facets.sources, choice.source),
    }
    groups: dict[str, tuple[list[Chip], int]] = {}
    for name, (counts, chosen) in fields.items():
        if len(counts) > 1 or chosen:
            shown = _chips(name, counts, set(chosen), address)
            groups[name] = shown, len({*dict(counts), *chosen}) - len(shown)
    return groups


def _chips(field: str, counts: Sequence[tuple[str, int]], chosen: set[str], address: Address) -> list[Chip]:
    count_of = dict(counts)
    frequent = [value for value, _ in counts if value not in chosen]
    values = [*sorted(chosen, key=_in_order)[:CHIPS], *frequent[: max(CHIPS - len(chosen), 0)]]
    if field != "level":  # levels stand in an order of their own
        values.sort(key=_in_order)
    chips = []
    for value in values:
        label = "no rank" if (field, value) == ("ranks", NO_RANK) else value
        url = address.narrowed(field, _joined(field, chosen ^ {value}))
        chips.append(Chip(label, count_of.get(value, 0), url, value in chosen))
    return chips


def _joined(field: str, values: Collection[str]) -> str | list[str]:
    """As the address has them: ranks in one value."""
    if field != "ranks":
        return sorted(values)
    numbers = spans(int(value) for value in values if value != NO_RANK)
    if NO_RANK not in values:
        return numbers
    return joined([numbers, NO_RANK], ",")


def _rank_name(rank: int) -> str:
    if rank == NOBODY:
        return NO_RANK
    return str(rank)


def _in_order(value: str) -> tuple[int, str]:
    if value.isdecimal():
        return int(value), ""
    return RANKS_LIMIT, value


def _shown(row: LogRow, role: str, note: str) -> ShownRow:
    parts = list(text_parts(row.text, row.hits))
    if len(row.text) <= CLIP + _SLACK:
        return ShownRow(row, tuple(parts), (), 0, role, note)
    head, rest, length = list[Part](), list[Part](), 0
    for text, is_hit in parts:
        here = max(CLIP - length, 0)
        length += len(text)
        if here:
            head.append((text[:here], is_hit))
        if len(text) > here:
            rest.append((text[here:], is_hit))
    return ShownRow(row, tuple(head), tuple(rest), len(row.text) - CLIP, role, note)


def text_parts(text: str, hits: Sequence[tuple[int, int]]) -> Iterator[Part]:
    """Split a text at what a search matches. hits: (start, end) of each match, in order."""
    end = 0
    for start, stop in hits:
        if start > end:
            yield text[end:start], False
        yield text[start:stop], True
        end = stop
    if end < len(text):
        yield text[end:], False


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
