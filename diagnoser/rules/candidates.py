"""Everything in a log that could be the cause: rule hits, and what exceptions say where no rule knows them."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from diagnoser.model import Evidence, Stream, Traceback
from diagnoser.model.taxonomy import Action, FailureType
from diagnoser.rules.engine import Hit
from diagnoser.rules.exceptions import ExceptionTable
from diagnoser.rules.keyword_classifier import KeywordClassifier
from diagnoser.rules.schema import Blame, Maturity, Role, Specificity

_LAST_WORDS = 60
"""Lines before the end of a stream in which words alone may count: who goes on for longer has not failed there."""
_BARE_EXCEPTION = re.compile(
    r"^(?:.{0,160}?[\]|>:-] ?)?\s*(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (?P<message>\S.*)"
)

_RAISED = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z]\w*(?:Error|Exception|Timeout|Invalid)(?:: |$)|Exception: |\s+what\(\):"
)
_HANDLER = re.compile(r", in \w*sig\w*_?handler\b|, in _run_exitfuncs|, in __del__")
_IGNORED = ("Exception ignored in", "Error in atexit", "--- Logging error ---")
"""Frames of code that runs because the process is already being ended."""


@dataclass(frozen=True, slots=True)
class Heuristics:
    """What is asked where no rule knows a line."""

    exceptions: ExceptionTable
    keywords: KeywordClassifier


@dataclass(frozen=True, slots=True)
class Candidate:
    """A line that could be the cause.

    line: index into ``Evidence.lines``. explains: types, or ``all``. trace: index into ``Evidence.tracebacks`` or -1.
    maturity: of the rule, None without one. raised: the line is an exception as Python or C++ prints it, not a log line
    that speaks of one. control_flow: its class is raised on purpose and handled.
    """

    line: int
    type: FailureType
    role: Role
    by: str
    why: str
    specificity: Specificity
    explains: frozenset[str] = frozenset()
    blame: Blame = Blame.NONE
    rank: int | None = None
    node: str | None = None
    gpu: str | None = None
    maturity: Maturity | None = None
    action: Action | None = None
    mitigation: str = ""
    trace: int = -1
    raised: bool = False
    control_flow: bool = False


@dataclass(frozen=True, slots=True)
class Break:
    """Where the progress series shows that the loss broke. line: index into ``Evidence.lines``."""

    line: int
    why: str


def collect(
    evidence: Evidence, hits: Sequence[Hit], heuristics: Heuristics, loss: Break | None = None
) -> tuple[Candidate, ...]:
    """One candidate a line at most, in the order of the lines; where the best rule is benign, a benign one."""
    traces = {trace.raised: number for number, trace in enumerate(evidence.tracebacks)}
    best: dict[int, Candidate] = {}
    for hit in hits:
        if hit.line not in best:
            best[hit.line] = _of_rule(hit, evidence, traces.get(hit.line, -1))
    best = {line: _demoted(one, evidence) for line, one in best.items()}
    if loss is not None:
        best.setdefault(loss.line, _of_loss(evidence, loss))
    for candidate in (*_of_traces(evidence, heuristics.exceptions), *_of_bare_lines(evidence, heuristics.exceptions)):
        best.setdefault(candidate.line, candidate)
    found = [_asserted(_worded(one, evidence, heuristics.keywords), evidence) for one in best.values()]
    done = max((one.line for one in found if one.type is FailureType.COMPLETED and one.role is Role.ROOT), default=-1)
    if not any(one.role in (Role.ROOT, Role.SYMPTOM) for one in found if one.line > done):
        found += [one for one in _of_words(evidence, set(best), heuristics.keywords) if one.line > done]
    return tuple(sorted((_classed(one, evidence, heuristics.exceptions) for one in found), key=lambda one: one.line))


def _of_rule(hit: Hit, evidence: Evidence, trace: int) -> Candidate:
    rule, line = hit.rule, evidence.lines[hit.line]
    return Candidate(
        line=hit.line,
        type=rule.type,
        role=rule.role,
        by=f"rule:{rule.id}",
        why=rule.title,
        specificity=rule.specificity,
        explains=frozenset(str(kind) for kind in rule.explains),
        blame=rule.blame,
        rank=hit.rank if hit.rank is not None else (line.rank if line.rank >= 0 else None),
        node=hit.node,
        gpu=hit.gpu,
        maturity=rule.maturity,
        action=rule.action,
        mitigation=rule.mitigation,
        trace=trace,
        raised=trace >= 0 or bool(_RAISED.match(line.body)),
    )


def _classed(one: Candidate, evidence: Evidence, table: ExceptionTable) -> Candidate:
    handled = one.trace >= 0 and table.is_control_flow(evidence.tracebacks[one.trace].exception)
    return replace(one, control_flow=True) if handled else one


def _worded(one: Candidate, evidence: Evidence, keywords: KeywordClassifier) -> Candidate:
    """An exception whose class says nothing is named by its message, where that tells."""
    printed = one.raised or one.by == "heuristic:exception_line"
    if one.type is not FailureType.RUNTIME_ERROR or one.specificity > Specificity.CLASS or not printed:
        return one
    trace = evidence.tracebacks[one.trace] if one.trace >= 0 else None
    kind = keywords.says(trace.message if trace else evidence.lines[one.line].body)
    return one if kind is None else replace(one, type=kind, by="heuristic:words", mitigation="", action=None)


def _of_words(evidence: Evidence, known: Collection[int], keywords: KeywordClassifier) -> list[Candidate]:
    """Lines near the end that complain in words of a failure, for logs in which nothing else was found."""
    found = []
    ends: dict[Stream, int] = {}
    for line in evidence.lines:
        ends[line.stream] = max(ends.get(line.stream, 0), line.number)
    for index, line in enumerate(evidence.lines):
        if index in known or line.number < ends[line.stream] - _LAST_WORDS:
            continue
        kind = keywords.complains(line.body)
        if kind is not None:
            why = "no rule knows this line; its words speak of it"
            rank = line.rank if line.rank >= 0 else None
            found.append(Candidate(index, kind, Role.ROOT, "heuristic:words", why, Specificity.WORD, rank=rank))
    return found


def _asserted(one: Candidate, evidence: Evidence) -> Candidate:
    """A bare AssertionError says nothing: the line that asserts does."""
    trace = evidence.tracebacks[one.trace] if one.trace >= 0 else None
    if trace is None or trace.exception != "AssertionError" or trace.message.strip():
        return one
    said = [index for index in trace.lines if evidence.lines[index].body.lstrip().startswith("assert ")]
    return replace(one, line=said[-1]) if said else one


def _demoted(one: Candidate, evidence: Evidence) -> Candidate:
    """A root that is raised while the process is being ended is no root."""
    if one.trace < 0 or one.role is not Role.ROOT or not _ending(evidence, evidence.tracebacks[one.trace]):
        return one
    return replace(one, role=Role.TEARDOWN)


def _ending(evidence: Evidence, trace: Traceback) -> bool:
    return _is_ignored(evidence, trace) or any(_HANDLER.search(frame) for frame in trace.frames)


def _of_loss(evidence: Evidence, loss: Break) -> Candidate:
    rank = evidence.lines[loss.line].rank
    return Candidate(
        line=loss.line,
        type=FailureType.LOSS_DIVERGENCE,
        role=Role.ROOT,
        by="heuristic:loss_series",
        why=loss.why,
        specificity=Specificity.MESSAGE,
        rank=rank if rank >= 0 else None,
        mitigation="Go back to the last checkpoint before the break, and skip the batches since then.",
    )


def _of_traces(evidence: Evidence, table: ExceptionTable) -> Iterator[Candidate]:
    for number, trace in enumerate(evidence.tracebacks):
        reading = table.read(trace.exception, trace.message)
        yield Candidate(
            line=trace.raised,
            type=reading.type,
            role=Role.TEARDOWN if _ending(evidence, trace) else reading.role,
            by="heuristic:exception_class",
            why=f"a traceback ends in {trace.exception}",
            specificity=Specificity.CLASS if reading.generic else Specificity.FAMILY,
            rank=trace.rank if trace.rank >= 0 else None,
            trace=number,
            raised=True,
        )


def _of_bare_lines(evidence: Evidence, table: ExceptionTable) -> Iterator[Candidate]:
    """Exception lines outside of joined tracebacks: cut logs, loggers that print only the last line."""
    traced = {index for trace in evidence.tracebacks for index in trace.lines}
    for index, line in enumerate(evidence.lines):
        if index in traced or ("Error: " not in line.body and "Exception: " not in line.body):
            continue
        found = _BARE_EXCEPTION.match(line.body)
        if found:
            reading = table.read(found["name"], found["message"])
            yield Candidate(
                line=index,
                type=reading.type,
                role=reading.role,
                by="heuristic:exception_line",
                why=f"a line names {found['name']}",
                specificity=Specificity.WORD,
                rank=line.rank if line.rank >= 0 else None,
                raised=bool(_RAISED.match(line.body)),
            )


def _is_ignored(evidence: Evidence, trace: Traceback) -> bool:
    """Python and logging print such a line above errors by which nothing fails."""
    start = trace.lines[0] if trace.lines else trace.raised
    stream = evidence.lines[start].stream
    for index in range(start - 1, max(-1, start - 40), -1):
        line = evidence.lines[index]
        if line.stream == stream and line.rank == evidence.lines[start].rank:
            return line.body.lstrip().startswith(_IGNORED)
    return False
