"""Read-only queries on a suspected node: which ones a failure asks for, and what an answer proves. Pure.

The table is ``rules/node_queries.yaml``. A query names a fixed command; lines of its answer, compared with a limit
where they carry a number, or its exit code prove that the node is at fault. Lines of the kernel prove what
``rules/node_proofs.yaml`` says. What cannot be had proves nothing.
"""

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Annotated, Literal

import re2
from pydantic import Field, PrivateAttr, StringConstraints

from diagnoser.dialects import system_log
from diagnoser.model import QueryResult, QueryState, expressions, yaml_loader
from diagnoser.model.errors import BadInput, Fault
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.recovery.node_proofs import NO_PROOFS, NodeProofTable, is_about

SITE_CHECK = "site_check"
"""Id of the query that runs the site's own check script, which only the agent knows."""
SITE_CHECK_SECONDS = 120.0
SITE_CODES = range(1, 126)
"""Exit codes of a site's script that prove a fault. A shell answers 126 and 127 where it cannot run something."""
LOOKBACK_SECONDS = 900.0
"""How long before a failure was seen its cause may stand in the kernel's log: a collective waits ten minutes."""
EXCERPT_LENGTH = 1000
_GROUPS = {"value", "gpu", "device", "mount"}

_Text = Annotated[str, StringConstraints(min_length=1)]
_Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
_ExitCode = Annotated[int, Field(ge=1, le=255)]
_Argv = Annotated[tuple[_Text, ...], Field(min_length=1, max_length=50)]


class ProvingLine(StrictModel):
    """A line that proves a fault. above, below: limits of its group ``value``. types: only for these failures."""

    pattern: _Text
    above: float | None = None
    below: float | None = None
    types: tuple[FailureType, ...] = ()

    @property
    def has_limit(self) -> bool:
        return (self.above, self.below) != (None, None)

    def is_met(self, match: "re2._Match[str]") -> bool:
        """Whether the value that was matched is over its limits, if it has any. NaN never is."""
        if not self.has_limit:
            return True
        value = float(match["value"])
        if self.above is not None and not value > self.above:
            return False
        return self.below is None or value < self.below


class Answer(StrictModel):
    """Answer of a command on a node. exit_code: None when it could not be started or took too long."""

    text: str
    exit_code: int | None = 0


class ExampleAnswer(Answer):
    """type: of the failure, the query's first one by default. line: the line that proves it."""

    type: FailureType | None = None
    line: str = ""


class QueryExamples(StrictModel):
    """since: the time of the failure, for queries whose lines are dated."""

    since: datetime | None = None
    proves: tuple[str | ExampleAnswer, ...] = ()
    proves_nothing: Annotated[tuple[str | ExampleAnswer, ...], Field(min_length=1)]


class NodeQuery(StrictModel):
    """A row of the table; its comments say what each field means."""

    id: _Id
    title: _Text
    types: Annotated[tuple[FailureType, ...], Field(min_length=1)]
    argv: _Argv
    timeout_seconds: Annotated[float, Field(gt=0, le=300)]
    dated: bool = False
    kernel_lines: bool = False
    quick: bool = False
    proves: tuple[ProvingLine, ...] = ()
    exit_codes: tuple[_ExitCode, ...] = ()
    reference: _Text
    examples: QueryExamples


class NodeSnapshotCommand(StrictModel):
    """A row of what is kept of a node before it is taken out. bytes: of the end of its output."""

    id: _Id
    title: _Text
    argv: _Argv
    timeout_seconds: Annotated[float, Field(gt=0, le=60)]
    bytes: Annotated[int, Field(ge=1024, le=4 << 20)]


class NodeQueryTable(StrictModel):
    version: Literal[1] = 1
    queries: tuple[NodeQuery, ...] = ()
    snapshots: tuple[NodeSnapshotCommand, ...] = ()
    _proofs: NodeProofTable = PrivateAttr(default=NO_PROOFS)

    def with_proofs(self, proofs: NodeProofTable) -> "NodeQueryTable":
        """The table, with what lines of the kernel prove."""
        table = self.model_copy()
        table._proofs = proofs
        return table

    def queries_for(self, types: Collection[FailureType]) -> tuple[NodeQuery, ...]:
        """The queries that failures of these types ask for, in the order of the table."""
        return tuple(query for query in self.queries if not set(types).isdisjoint(query.types))

    def query(self, id: str) -> NodeQuery | None:
        return next((query for query in self.queries if query.id == id), None)

    @property
    def commands(self) -> dict[str, tuple[str, ...]]:
        return {query.id: query.argv for query in self.queries}

    def judge(self, result: QueryResult, answer: Answer, types: Collection[FailureType], since: float) -> QueryResult:
        """Add to the result what the answer says.

        since: only dated lines from this time on count, in seconds since the epoch.
        """
        query, proof = self.query(result.query), None
        if result.query == SITE_CHECK:
            proof = _site_proof(answer)
        elif query:
            proof = prove(query, answer, types, since, self._proofs)
        state, text = QueryState.NOT_AVAILABLE, proof
        if text is not None:
            state = QueryState.PROVES
        else:
            text = _excerpt(query, answer, since)
            if answer.exit_code == 0:
                state = QueryState.PROVES_NOTHING
        return QueryResult(result.node, result.query, state, answer.exit_code, text[:EXCERPT_LENGTH])


NO_QUERIES = NodeQueryTable()


def prove(
    query: NodeQuery, answer: Answer, types: Collection[FailureType], since: float, proofs: NodeProofTable = NO_PROOFS
) -> str | None:
    """Find the line (or exit code) that proves a fault of the node; None when nothing does. A command that could not
    be started, or took too long, proves nothing.

    proofs: what lines of the kernel prove.
    """
    if answer.exit_code is None:
        return None
    proving = [(line, re2.compile(line.pattern)) for line in query.proves if is_about(line.types, types)]
    for shown, text in _lines(query, answer.text, since):
        if query.kernel_lines and proofs.in_answer(shown, types):
            return shown.strip()
        for line, pattern in proving:
            match = pattern.search(text)
            if not match:
                continue
            if line.is_met(match):
                return shown.strip()
    return f"exit code {answer.exit_code}" if answer.exit_code in query.exit_codes else None


def _site_proof(answer: Answer) -> str | None:
    if answer.exit_code not in SITE_CODES:
        return None
    lines = filter(None, map(str.strip, answer.text.splitlines()))
    return next(lines, f"exit code {answer.exit_code}")


def _lines(query: NodeQuery, text: str, since: float) -> Iterator[tuple[str, str]]:
    """(line as it was printed, the part of it that patterns look at). Only ``\\n`` ends a line: others are in names."""
    for line in text.split("\n"):
        if not query.dated:
            yield line, line
            continue
        record = system_log.read_record(line)
        if not record.stamp:
            continue
        if _seconds(record.stamp) >= since:
            yield line, line[record.start :]


def _seconds(stamp: str) -> float:
    """0.0 for a date that does not exist."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0


def _excerpt(query: NodeQuery | None, answer: Answer, since: float) -> str:
    """Cut out what a person reads of an answer that proves nothing: of a log its last lines since the failure."""
    if query is None:
        return answer.text.strip()
    if not query.dated:
        return answer.text.strip()
    if answer.exit_code != 0:
        return answer.text.strip()
    recent = "\n".join(line for line, _ in _lines(query, answer.text, since))
    return recent[-EXCERPT_LENGTH:] or "no lines since the failure"


def load(path: str, text: str, proofs: NodeProofTable, *, tested: bool = False) -> NodeQueryTable:
    """Read the table of a file. Raises RuleFaults with every fault.

    proofs: what lines of the kernel prove.
    tested: its patterns and examples are known to hold.
    """
    if tested:
        return yaml_loader.load(path, text, NodeQueryTable).with_proofs(proofs)
    table = yaml_loader.load(path, text, NodeQueryTable, lambda table: _faults(path, text, table, proofs))
    return table.with_proofs(proofs)


def _faults(path: str, text: str, table: NodeQueryTable, proofs: NodeProofTable) -> Iterator[Fault]:
    seen = {SITE_CHECK}
    for index, query in enumerate(table.queries):
        messages = []
        if query.id in seen:
            messages.append(f"id '{query.id}' is taken")
        for line in query.proves:
            if why := _line_fault(query, line):
                messages.append(why)
        if not messages:
            messages = _example_faults(query, proofs)
        for why in messages:
            yield Fault(path, yaml_loader.locate(text, "queries", index), f"{query.id}: {why}")
        seen.add(query.id)


def _line_fault(query: NodeQuery, line: ProvingLine) -> str:
    try:
        groups = set(expressions.compiled(line.pattern).groupindex)
    except BadInput as error:
        return str(error)
    if unknown := groups - _GROUPS:
        return f"unknown group '{sorted(unknown)[0]}'; known: {', '.join(sorted(_GROUPS))}"
    if line.has_limit != ("value" in groups):
        return "a group 'value' and a limit (above, below) belong together"
    if outside := set(line.types) - set(query.types):
        return f"a line is for {', '.join(sorted(outside))}, which the query is not asked for"
    return ""


def _example_faults(query: NodeQuery, proofs: NodeProofTable) -> list[str]:
    """Examples are the proof of a row: each must hold, and a row that can prove something needs one of it."""
    examples = query.examples
    since = examples.since.timestamp() if examples.since else 0.0
    faults = _missing_parts(query, since)
    for expected, entries in ((True, examples.proves), (False, examples.proves_nothing)):
        for entry in entries:
            if fault := _example_fault(query, entry, since, proofs, expected=expected):
                faults.append(fault)
    return faults


def _missing_parts(query: NodeQuery, since: float) -> list[str]:
    """Find the parts of a row that another part of it needs. since: of its examples."""
    faults = []
    can_prove = query.proves or query.exit_codes or query.kernel_lines
    if can_prove and not query.examples.proves:
        faults.append("needs an example that proves")
    if query.kernel_lines and not query.dated:
        faults.append("'kernel_lines' needs 'dated': a line of the kernel counts since the failure")
    if query.dated != bool(since):
        faults.append("'dated' and 'examples.since' belong together")
    return faults


def _example_fault(
    query: NodeQuery, entry: str | ExampleAnswer, since: float, proofs: NodeProofTable, *, expected: bool
) -> str:
    """Say why the example does not hold; "" where it does.

    entry: the answer, or its text alone.
    expected: whether it must prove a fault.
    """
    if isinstance(entry, str):
        entry = ExampleAnswer(text=entry)
    example = entry
    proof = prove(query, example, (example.type or query.types[0],), since, proofs)
    shown = example.text.strip()[-80:] or f"exit code {example.exit_code}"
    if proof is None:
        return f"example '{shown}' proves nothing" if expected else ""
    if not expected:
        return f"example '{shown}' proves a fault"
    if example.line and proof != example.line.strip():
        return f"example '{shown}' is proven by '{proof}'"
    return ""
