"""What a model may look at before it answers: one table, each tool one small function that only reads.

The log, the model and its server may be hostile. So a tool sees the evidence of this attempt and nothing else, its
arguments are typed and bounded, patterns are RE2 and search what is masked (else they could spell out a secret, letter
by letter), and all results together have a bounded length.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from diagnoser.llm.view import Pseudonymizer, plain
from diagnoser.model import Line, Template, expressions
from diagnoser.model.errors import BadInput
from diagnoser.ports import ToolSpec
from diagnoser.redaction.redact import mask_key_blocks

SCHEDULER_RECORD, FREE_SPACE = "scheduler_record", "free_space"
RECORDS = frozenset({SCHEDULER_RECORD, FREE_SPACE})
"""Sources of lines that stand in no log: they prove, and no page can show them as a line."""
LINES_MAX = 30
"""Lines of one result."""
CANDIDATES_MAX = 2_000
"""Matching lines that are looked at for one result; hiding the hosts of that many takes half a second."""
_PATTERN_CHARS, _PATTERN_MEMORY = 200, 1 << 20
_TEXT_CHARS = 300
_NEAR_SECONDS = 60.0
_DAY = 86_400.0


async def _nothing(text: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class ToolEvidence:
    """What is known of the attempt beside the lines of its log. All of it is of this attempt, or its tenant may see it.

    templates: routine lines of the log, counted. node_lines: a node of the attempt -> lines of its log from about the
    failure. scheduler: what scheduler and agents report. free_space: what nodes answered about their disks.
    rule: an id -> the rule in words. similar: a text -> failures like it that people judged, in words.
    node_history: a node of the attempt -> what failed there, the newest first.
    """

    templates: tuple[Template, ...] = ()
    nodes: Collection[str] = ()
    node_lines: Callable[[str], Sequence[Line]] = lambda node: ()
    scheduler: tuple[Line, ...] = ()
    free_space: tuple[Line, ...] = ()
    rule: Callable[[str], Sequence[str]] = lambda rule_id: ()
    similar: Callable[[str], Awaitable[Sequence[str]]] = _nothing
    node_history: Callable[[str], Awaitable[Sequence[str]]] = _nothing


@dataclass(frozen=True, slots=True)
class Look:
    """What a tool reads. lines: of the log, by their numbers in the view."""

    lines: Mapping[int, Line]
    evidence: ToolEvidence
    pseudonyms: Pseudonymizer


@dataclass(frozen=True, slots=True)
class Findings:
    """What a tool found. lines: may be cited. texts: tell something, and prove nothing about this failure."""

    lines: Sequence[Line] = ()
    texts: Sequence[str] = ()
    note: str = ""


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


_Rank = Annotated[int, Field(ge=-1, le=9_999_999, description="-1: of any rank")]
_Clock = Annotated[
    str, Field(pattern=r"^(?:\d\d:\d\d(?::\d\d)?)?$", description="HH:MM or HH:MM:SS as printed; empty: any time")
]
_Text = Annotated[str, Field(min_length=1, max_length=_TEXT_CHARS)]
_Name = Annotated[str, Field(max_length=253)]


class SearchLog(Arguments):
    pattern: Annotated[str, Field(min_length=1, max_length=_PATTERN_CHARS, description="RE2, searched in each line")]
    rank: _Rank = -1
    time: _Clock = ""


class LinesAround(Arguments):
    n: Annotated[int, Field(ge=1, le=999_999_999, description="number of a line of the log")]


class RankStderr(Arguments):
    rank: Annotated[int, Field(ge=0, le=9_999_999)]


class NodeLog(Arguments):
    node: Annotated[str, Field(min_length=1, max_length=253)]
    around: _Clock = ""


class NodeHistory(Arguments):
    node: Annotated[str, Field(min_length=1, max_length=253)]


class SchedulerRecord(Arguments):
    pass


class FreeSpace(Arguments):
    mount: Annotated[_Name, Field(description="mount point; empty: all that were asked for")] = ""


class SimilarFailures(Arguments):
    text: _Text


class RuleById(Arguments):
    id: Annotated[str, Field(min_length=1, max_length=100)]


async def search_log(look: Look, given: SearchLog) -> Findings:
    return await asyncio.to_thread(_search, look, given)


def _search(look: Look, given: SearchLog) -> Findings:
    """The first lines that match, then routine lines that do."""
    options = expressions.quiet_options(_PATTERN_MEMORY)
    as_seen = expressions.compiled(given.pattern, options)
    as_printed = expressions.compiled(look.pseudonyms.reveal(given.pattern), options)
    chosen = [line for line in _near(look.lines.values(), given.time) if given.rank in (-1, line.rank)]
    masked = map(look.pseudonyms.redact, map(plain, mask_key_blocks(line.text for line in chosen)))
    candidates = (line for line, text in zip(chosen, masked, strict=True) if as_printed.search(text))
    # Only what matches as the model sees it: else a pattern could find out the name behind an alias.
    seen = (line for line in islice(candidates, CANDIDATES_MAX) if as_seen.search(look.pseudonyms.hide(line.text)))
    lines = list(islice(seen, LINES_MAX + 1))
    texts = []
    for template in look.evidence.templates:
        if as_seen.search(look.pseudonyms.hide(template.text)):
            texts.append(f"{template.count}x lines {template.first[1]}-{template.last[1]}: {template.text}")
    if len(lines) > LINES_MAX:
        return Findings(lines[:LINES_MAX], note="more lines match: narrow it by rank or time")
    return Findings(lines, texts[: LINES_MAX - len(lines)])


async def lines_around(look: Look, given: LinesAround) -> Findings:
    numbers = sorted(look.lines)
    before = [number for number in numbers if number < given.n][-(LINES_MAX // 2) :]
    after = [number for number in numbers if number >= given.n][: LINES_MAX // 2]
    return Findings([look.lines[number] for number in (*before, *after)])


async def rank_stderr(look: Look, given: RankStderr) -> Findings:
    """The last lines of a rank: of its error output where the log keeps that apart."""
    lines = [line for line in look.lines.values() if given.rank in (line.rank, line.stream.rank)]
    errors = [line for line in lines if line.stream.source == "stderr"]
    return Findings((errors or lines)[-LINES_MAX:])


async def node_log(look: Look, given: NodeLog) -> Findings:
    node = look.pseudonyms.reveal(given.node)
    if node not in look.evidence.nodes:
        raise BadInput("this job did not run on a node of that name")
    lines = await asyncio.to_thread(look.evidence.node_lines, node)
    return Findings(list(_near(lines, given.around))[-LINES_MAX:])


async def node_history(look: Look, given: NodeHistory) -> Findings:
    node = look.pseudonyms.reveal(given.node)
    return Findings(texts=(await look.evidence.node_history(node))[:LINES_MAX])


async def scheduler_record(look: Look, given: SchedulerRecord) -> Findings:
    return Findings(look.evidence.scheduler[-LINES_MAX:])


async def free_space(look: Look, given: FreeSpace) -> Findings:
    """What nodes answered. The mount only chooses among the answers: nothing is looked up by it."""
    mount = given.mount.rstrip("/") or given.mount
    lines = [line for line in look.evidence.free_space if not mount or line.text.split()[-1:] == [mount]]
    return Findings(lines[:LINES_MAX])


async def similar_failures(look: Look, given: SimilarFailures) -> Findings:
    return Findings(texts=await look.evidence.similar(look.pseudonyms.reveal(given.text)))


async def rule(look: Look, given: RuleById) -> Findings:
    return Findings(texts=look.evidence.rule(given.id))


@dataclass(frozen=True, slots=True)
class Tool:
    """A row of the table. source: what a citation of its lines names; "" for the log itself."""

    name: str
    purpose: str
    arguments: type[Arguments]
    run: Callable[[Look, Any], Awaitable[Findings]]
    source: str = ""

    @property
    def spec(self) -> ToolSpec:
        schema = self.arguments.model_json_schema()
        properties = {}
        for name, value in schema.get("properties", {}).items():
            properties[name] = {key: part for key, part in value.items() if key in _SPOKEN}
        parameters = {"type": "object", "properties": properties, "required": schema.get("required", [])}
        return ToolSpec(self.name, self.purpose, parameters)


_SPOKEN = frozenset({"type", "description", "default", "maxLength"})
"""What a model reads of each argument; the rest is checked when it calls."""

TOOLS: tuple[Tool, ...] = (
    Tool("search_log", "Lines of the log, also those that are not shown.", SearchLog, search_log),
    Tool("lines_around", "Lines of the log around a line.", LinesAround, lines_around),
    Tool("rank_stderr", "The last lines of a rank.", RankStderr, rank_stderr),
    Tool("node_log", "The log of a node of this job, about the failure.", NodeLog, node_log, "node_log"),
    Tool(SCHEDULER_RECORD, "What the scheduler reports.", SchedulerRecord, scheduler_record, SCHEDULER_RECORD),
    Tool(FREE_SPACE, "What nodes answered about their disks.", FreeSpace, free_space, FREE_SPACE),
    Tool("similar_failures", "Failures like a text that people judged.", SimilarFailures, similar_failures),
    Tool("rule", "A rule of the rule set, by its id.", RuleById, rule),
)
SPECS = tuple(tool.spec for tool in TOOLS)
NODE_HISTORY = Tool("node_history", "What failed on a node of this job, at any time.", NodeHistory, node_history)
"""Only for people's questions: that a node failed before proves nothing about this failure."""
QUESTION_SPECS = (*SPECS, NODE_HISTORY.spec)
_BY_NAME: Mapping[str, Tool] = {tool.name: tool for tool in (*TOOLS, NODE_HISTORY)}


def tool_named(name: str) -> Tool:
    """Raises BadInput."""
    if tool := _BY_NAME.get(name):
        return tool
    raise BadInput("there is no such tool")


def _near(lines: Iterable[Line], clock: str) -> Iterator[Line]:
    """The lines of about a time of day, in any zone that a log prints without naming it."""
    if not clock:
        yield from lines
        return
    hours, minutes, seconds = map(int, f"{clock}:00".split(":")[:3])
    wanted = hours * 3600 + minutes * 60 + seconds
    for line in lines:
        apart = abs(line.time % _DAY - wanted)
        if line.time and min(apart, _DAY - apart) <= _NEAR_SECONDS:
            yield line
