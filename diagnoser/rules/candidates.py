"""Everything in a log that could be the cause: rule hits, and what exceptions say where no rule knows them."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from diagnoser.model import Evidence, ExitReport, Line, Stream, Traceback
from diagnoser.model.taxonomy import Action, Category, FailureType, category_of
from diagnoser.rules.clean_end import CleanEnd, EndTable
from diagnoser.rules.engine import Hit
from diagnoser.rules.exceptions import ExceptionTable
from diagnoser.rules.keyword_classifier import KeywordClassifier
from diagnoser.rules.logged_errors import goes_on, is_harmless, is_logged
from diagnoser.rules.schema import Blame, Maturity, Role, Rule, Specificity

_LAST_WORDS = 60
"""Lines before the end of a stream in which keywords alone may count: a run that logs on for longer survived them."""
_TRYING = 3
"""Lines before the end of a stream in which a retry is no calm word: the run has ended before it got through."""
_RETRIES = re.compile(r"\bretry|\bretries\b|\b(?:try|trying) again\b", re.IGNORECASE)
_TEMPORARY = re.compile(r"(?i)\b(?:temporar(?:y|ily)|transient|try again|EAGAIN|EAI_AGAIN|slow ?down|throttl\w+)\b")
_BARE_EXCEPTION = re.compile(
    r"^(?:.{0,160}?[\]|>:-] ?)?\s*(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))"
    r"(?: \(see above for traceback\))?: (?P<message>\S.*)"
)

_RAISED = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z]\w*(?:Error|Exception|Timeout|Invalid)(?:: |$)|Exception: |\s+what\(\):"
)
_NAMED = ("Error: ", "Exception: ", "Error (see above for traceback): ")
"""What a line that names an exception holds; TensorFlow 1 repeats it below the graph's traceback."""
_HANDLER = re.compile(r", in \w*sig\w*_?handler\b|, in _run_exitfuncs|, in __del__")
"""Frames of code that runs because the process is already shutting down."""
_TRIES = re.compile(r", in (?:mkdir|makedirs|touch|unlink|remove|rename|replace|rmtree)$")
"""Frames of functions that try first and make what is missing when that fails."""
_IGNORED = ("Exception ignored in", "Error in atexit", "--- Logging error ---")

SIGNALS = {
    9: (FailureType.HOST_OUT_OF_MEMORY, Role.SYMPTOM),
    6: (FailureType.SEGMENTATION_FAULT, Role.SYMPTOM),
    **dict.fromkeys((4, 7, 8, 11), (FailureType.SEGMENTATION_FAULT, Role.ROOT)),
}
"""What the signal that ended a process says: who aborts or is killed may have been told to by something else."""
_VANISHED = FailureType.HOST_OUT_OF_MEMORY, Role.SYMPTOM
"""What the end of a process says that nobody can tell a code of: usually it was killed."""
_CODES = {
    1: (FailureType.RUNTIME_ERROR, Role.WRAPPER),
    124: (FailureType.TIME_LIMIT, Role.SYMPTOM),
}
"""What exit codes say. Python exits with 1 after an exception that nobody caught. A process that lost its peer and
raised ends so: where another code is reported, another process ended itself. ``timeout`` exits with 124 when it ended
the program."""
EXIT_CODE, EXIT_SIGNAL = "heuristic:exit_code", "heuristic:exit_signal"
"""Deciders that read the code or the signal of an ended process."""
_DOWNSTREAM = frozenset(
    {
        FailureType.NCCL_TIMEOUT_ERROR,
        FailureType.NCCL_REMOTE_ERROR,
        FailureType.CONNECTION_ERROR,
        FailureType.NETWORK_ERROR,
        FailureType.CALLED_PROCESS_ERROR,
    }
)
"""What peers, their network library and the launcher print once a process has ended."""


_THROWN = re.compile(r"terminate called after throwing an instance of '(?P<name>[\w:]+)")
_WHAT = re.compile(r"\s*what\(\): +(?P<message>\S.*)")
_PROGRAM_ERRORS = ("logic_error", "out_of_range", "length_error", "domain_error", "bad_cast", "bad_function_call")
"""C++ exceptions that a fault in the code throws; their messages name no cause outside of it."""
_AFTER_ABORT = frozenset(map(str, (FailureType.SEGMENTATION_FAULT, FailureType.CALLED_PROCESS_ERROR)))
_QUOTED = 60
"""Lines below an exception within which the one that it quotes is printed."""


@dataclass(frozen=True, slots=True)
class Heuristics:
    """The tables that classify lines no rule knows."""

    exceptions: ExceptionTable
    keywords: KeywordClassifier
    ends: EndTable


@dataclass(frozen=True, slots=True)
class Candidate:
    """A line that could be the cause.

    line: index into ``Evidence.lines``. explains: types, or ``all``. overrides: deciders that it stands before.
    trace: index into ``Evidence.tracebacks`` or -1.
    maturity: of the rule, None without one. raised: the line is an exception as Python or C++ prints it, not a log line
    that mentions one. control_flow: its class is raised on purpose and handled. precursor: it came when a collective
    that timed out later began to wait, so that steps after it do not show that it was survived. logged: the program
    caught the error and logged it, without calling it its end. goes_on: it says there how it goes on. exit: the line
    reports that a process ended in failure.
    """

    line: int
    type: FailureType
    role: Role
    by: str
    why: str
    specificity: Specificity
    explains: frozenset[str] = frozenset()
    overrides: frozenset[str] = frozenset()
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
    precursor: bool = False
    logged: bool = False
    goes_on: bool = False
    exit: bool = False


@dataclass(frozen=True, slots=True)
class Break:
    """Where the progress series shows that the loss diverged. line: index into ``Evidence.lines``."""

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class _Log:
    """A log, and the tables that read it."""

    evidence: Evidence
    tables: Heuristics


_Refinement = Callable[[Candidate, _Log], Candidate]
"""The candidate as more of the log shows it, or as it was."""


def collect(
    evidence: Evidence,
    hits: Sequence[Hit],
    heuristics: Heuristics,
    loss: Break | None = None,
    end: CleanEnd | None = None,
) -> tuple[Candidate, ...]:
    """At most one candidate per line, in the order of the lines; a benign one where the best rule is benign."""
    log = _Log(evidence, heuristics)
    terminations = tuple(_from_terminations(log))
    best = _from_rules(hits, log, terminations)
    if loss is not None:
        best.setdefault(loss.line, _from_loss(evidence, loss))
    if end is not None:
        best.setdefault(end.line, _from_end(evidence, end))
    for report in evidence.exits:
        reported = _with_exit(best.get(report.line), report)
        if reported is not None:
            best[report.line] = reported
    for candidate in (*_from_traces(log), *terminations, *_from_lines(log)):
        best.setdefault(candidate.line, candidate)
    candidates = [_refined(c, _NAMING, log) for c in best.values()]
    candidates = [_opened(c, candidates, log) for c in candidates]
    candidates += _from_last_words(candidates, best.keys(), log)
    candidates = [_refined(c, _HANDLING, log) for c in candidates]
    return tuple(sorted(candidates, key=lambda c: c.line))


def _refined(candidate: Candidate, refinements: Sequence[_Refinement], log: _Log) -> Candidate:
    for refinement in refinements:
        candidate = refinement(candidate, log)
    return candidate


def _from_rules(hits: Sequence[Hit], log: _Log, terminations: Sequence[Candidate]) -> dict[int, Candidate]:
    """The first hit of each line, by line."""
    traces = {trace.raised: number for number, trace in enumerate(log.evidence.tracebacks)}
    best: dict[int, Candidate] = {}
    for hit in hits:
        if hit.line not in best:
            candidate = from_hit(hit, log.evidence, traces.get(hit.line, -1))
            best[hit.line] = _demoted_at_exit(candidate, log.evidence)
    for termination in terminations:
        thrown = termination.line - 1  # says no more than that there is an exception; the line below says which
        if thrown in best:
            best[thrown] = replace(best[thrown], role=Role.WRAPPER)
    return best


def _from_last_words(candidates: Sequence[Candidate], covered: Collection[int], log: _Log) -> list[Candidate]:
    """What the words of the last lines say, where since the last clean end nothing tells why a process ended.

    covered: lines that are candidates already.
    """
    completed = (c.line for c in candidates if c.type is FailureType.COMPLETED and c.role is Role.ROOT)
    done = max(completed, default=-1)
    failures = [c for c in candidates if c.line > done and c.role in (Role.ROOT, Role.SYMPTOM)]
    if not all(map(_is_death, failures)):
        return []
    death = min((c.line for c in failures), default=len(log.evidence.lines))
    causes = [c for c in _from_keywords(log.evidence, covered, log.tables.keywords) if done < c.line < death]
    if not failures:
        return causes
    return [c for c in causes if not _is_crash(c)]  # words of a crash say no more than the death does


def from_hit(hit: Hit, evidence: Evidence, trace: int = -1) -> Candidate:
    """The line as its rule sees it. trace: index of the traceback that the line raises, or -1."""
    rule, line = hit.rule, evidence.lines[hit.line]
    return Candidate(
        line=hit.line,
        type=rule.type,
        role=rule.role,
        by=f"rule:{rule.id}",
        why=rule.title,
        specificity=rule.specificity,
        explains=frozenset(str(kind) for kind in rule.explains),
        overrides=frozenset(f"rule:{rule_id}" for rule_id in rule.overrides),
        blame=rule.blame,
        rank=hit.rank if hit.rank is not None else line.known_rank,
        node=hit.node,
        gpu=hit.gpu,
        maturity=rule.maturity,
        action=_asked(rule, line.body),
        mitigation=rule.mitigation,
        trace=trace,
        raised=trace >= 0 or bool(_RAISED.match(line.body)),
    )


def _asked(rule: Rule, body: str) -> Action | None:
    """What the rule asks for. Where its line calls a fault outside the job temporary, nobody has to mend it first."""
    stops = rule.action is Action.NOTIFY_USER and category_of(rule.type) is Category.INFRASTRUCTURE
    return None if stops and _TEMPORARY.search(body) else rule.action


def _with_exit(candidate: Candidate | None, report: ExitReport) -> Candidate | None:
    """What the report of a process's end makes of its line. A rule that knows the line keeps its type; one that sees a
    mere wrapper there knows less than the code does."""
    if not report.failed:
        return candidate
    if candidate is None or _outweighs(report, candidate):
        return _from_exit(report)
    rank = _only_rank(report) if candidate.rank is None else candidate.rank
    return replace(candidate, rank=rank, node=candidate.node or report.node or None, exit=True)


def _outweighs(report: ExitReport, candidate: Candidate) -> bool:
    """Whether the report says more than the candidate of its line."""
    by_signal = report.signal is not None and candidate.specificity <= Specificity.CLASS
    return by_signal or candidate.role is Role.WRAPPER


def _only_rank(report: ExitReport) -> int | None:
    return report.ranks[0] if len(report.ranks) == 1 else None


def _from_exit(report: ExitReport) -> Candidate:
    kind, role = _meaning(report)
    return Candidate(
        line=report.line,
        type=kind,
        role=role,
        by=EXIT_CODE if report.code else EXIT_SIGNAL,
        why=f"{report.launcher} reports that the process ended with {_how(report)}",
        exit=True,
        specificity=Specificity.CLASS if report.code or report.signal is None else Specificity.FAMILY,
        explains=_DOWNSTREAM,
        blame=Blame.SELF,
        rank=_only_rank(report),
        node=report.node or None,
        maturity=Maturity.STABLE,
        mitigation="Read what this process printed last; where it printed nothing, the kernel log of its node.",
    )


def _meaning(report: ExitReport) -> tuple[FailureType, Role]:
    """Type and role that the signal says, else the code."""
    if report.signal is not None:
        return SIGNALS.get(report.signal, (FailureType.RUNTIME_ERROR, Role.WRAPPER))
    if report.code:
        return _CODES.get(report.code, (FailureType.RUNTIME_ERROR, Role.SYMPTOM))
    return _VANISHED


def _how(report: ExitReport) -> str:
    if report.code:
        return f"code {report.code}"
    return f"signal {report.signal}" if report.signal else "no word of its own"


def _with_logged(candidate: Candidate, log: _Log) -> Candidate:
    evidence = log.evidence
    if candidate.trace >= 0 and is_harmless(evidence, evidence.tracebacks[candidate.trace]):
        return replace(candidate, role=Role.BENIGN)
    failing = category_of(candidate.type) is not Category.NONE and candidate.role in (Role.ROOT, Role.SYMPTOM)
    if not failing or candidate.exit or not is_logged(evidence, candidate.line, candidate.trace):
        return candidate
    return replace(candidate, logged=True, goes_on=goes_on(evidence, candidate.line, candidate.trace))


def _with_control_flow(candidate: Candidate, log: _Log) -> Candidate:
    trace = _trace_of(candidate, log)
    if trace is None:
        return candidate
    tried = candidate.type is FailureType.FILE_NOT_FOUND_ERROR and bool(_TRIES.search(" ".join(trace.frames[-1:])))
    on_purpose = tried or log.tables.exceptions.is_control_flow(trace.exception)
    return replace(candidate, control_flow=True) if on_purpose else candidate


def _trace_of(candidate: Candidate, log: _Log) -> Traceback | None:
    return log.evidence.tracebacks[candidate.trace] if candidate.trace >= 0 else None


def _named_by_context(candidate: Candidate, log: _Log) -> Candidate:
    """A rule that knows only the class of an exception, or that of a broken file, knows less than the place does where
    it was raised: a checkpoint that is cut or does not fit is one whatever class carries it."""
    broken_file = candidate.type is FailureType.DATASET_LOADING_ERROR
    vague = candidate.specificity <= Specificity.CLASS or broken_file
    trace = _trace_of(candidate, log)
    shown = trace is not None or candidate.raised
    if candidate.role is not Role.ROOT or not vague or not shown:
        return candidate
    message = f"{trace.exception}: {trace.message}" if trace else log.evidence.lines[candidate.line].body
    kind = _kind_in_context(candidate, trace, message, log)
    if kind is None:
        return candidate
    why = "the status, the subject or the place of the exception says more than its class"
    named = _renamed(candidate, kind, "heuristic:exception_context", why)
    return replace(named, action=log.tables.exceptions.action(kind, message))


def _kind_in_context(candidate: Candidate, trace: Traceback | None, message: str, log: _Log) -> FailureType | None:
    """The type by subject and place, else by the status in the message, else by the exceptions raised from this one."""
    table = log.tables.exceptions
    stated, frames = None, trace.frames if trace else ()
    if trace and candidate.type is not FailureType.DATASET_LOADING_ERROR:
        stated = table.by_status(trace.message)
    kind = table.in_context(stated or candidate.type, message, frames)
    return kind or stated or _named_by_outer(candidate, log.evidence, table)


def _named_by_outer(candidate: Candidate, evidence: Evidence, table: ExceptionTable) -> FailureType | None:
    """What those say that were raised from the exception, as a framework that restores a checkpoint says which
    variable did not fit."""
    links, kind = {candidate.trace}, None
    for number, trace in enumerate(evidence.tracebacks):
        if trace.cause in links and candidate.trace >= 0:
            links.add(number)
            kind = kind or table.in_context(candidate.type, f"{trace.exception}: {trace.message}", ())
    return kind


def _named_by_message(candidate: Candidate, log: _Log) -> Candidate:
    """An exception whose class says nothing gets its type from its message, where keywords recognise that."""
    printed = candidate.raised or candidate.by == "heuristic:exception_line"
    if candidate.type is not FailureType.RUNTIME_ERROR or candidate.specificity > Specificity.CLASS or not printed:
        return candidate
    trace = _trace_of(candidate, log)
    kind = log.tables.keywords.says(trace.message if trace else log.evidence.lines[candidate.line].body)
    return _renamed(candidate, kind, "heuristic:words", candidate.why) if kind else candidate


def _renamed(candidate: Candidate, kind: FailureType, by: str, why: str) -> Candidate:
    """Nothing of the rule that named it before holds for the new type: not what it advises, nor that it is proven."""
    return replace(candidate, type=kind, by=by, why=why, mitigation="", action=None, maturity=None)


def _opened(candidate: Candidate, candidates: Sequence[Candidate], log: _Log) -> Candidate:
    """An exception that only quotes another: a wrapper where the quoted one was read, else named by what it quotes."""
    trace = _trace_of(candidate, log)
    if trace is None or candidate.role is not Role.ROOT:
        return candidate
    if not log.tables.exceptions.is_carrier(trace.exception, trace.message):
        return candidate
    quoted = list(_quoted(log.evidence, trace))
    if any(_is_raised_root(other) and other.line in quoted for other in candidates):
        return replace(candidate, role=Role.WRAPPER)
    if candidate.specificity > Specificity.CLASS:
        return candidate
    kinds = (log.tables.keywords.says(log.evidence.lines[index].body) for index in quoted)
    kind = next(filter(None, kinds), None)
    return _renamed(candidate, kind, "heuristic:words", candidate.why) if kind else candidate


def _is_raised_root(candidate: Candidate) -> bool:
    return candidate.raised and candidate.role is Role.ROOT


def _quoted(evidence: Evidence, trace: Traceback) -> Iterator[int]:
    """Indices of the lines below an exception, as far as the same process speaks and no code is shown."""
    raised = evidence.lines[trace.raised]
    for index in range(trace.raised + 1, min(len(evidence.lines), trace.raised + _QUOTED)):
        line = evidence.lines[index]
        if _same_voice(line, raised) and line.number - raised.number <= _QUOTED and not line.body.startswith("  "):
            yield index


def _is_death(candidate: Candidate) -> bool:
    """The line says how a process ended, not why: an abort follows the error that led to it, a code has no words."""
    return candidate.role is Role.SYMPTOM and (_is_crash(candidate) or candidate.by == EXIT_CODE)


def _is_crash(candidate: Candidate) -> bool:
    return candidate.type is FailureType.SEGMENTATION_FAULT


def _from_terminations(log: _Log) -> Iterator[Candidate]:
    """What an uncaught C++ exception says: it caused the abort that is reported afterwards."""
    lines = log.evidence.lines
    for index, line in enumerate(lines[:-1]):
        thrown = _THROWN.search(line.body)
        if not thrown:
            continue
        below = lines[index + 1]
        what = _WHAT.match(below.body) if _same_voice(line, below) else None
        if what:
            yield from _from_termination(index + 1, line.rank, thrown["name"], what["message"], log.tables)


def _same_voice(line: Line, other: Line) -> bool:
    """Whether one process printed both, as far as can be told."""
    return line.stream == other.stream and line.rank == other.rank


def _from_termination(index: int, rank: int, name: str, message: str, tables: Heuristics) -> Iterator[Candidate]:
    """One candidate, or none. index: of the line with the message."""
    reading = tables.exceptions.read(name, message)
    kind = tables.keywords.says(message) if reading.generic else reading.type
    if kind is None and name.endswith(_PROGRAM_ERRORS):
        return  # a bug in native code: the abort names it as well as can be
    yield Candidate(
        line=index,
        type=kind or reading.type,
        role=Role.SYMPTOM,
        by="heuristic:words" if kind and reading.generic else "heuristic:exception_class",
        why=f"an uncaught {name} ended the process",
        specificity=Specificity.CLASS if reading.generic else Specificity.FAMILY,
        explains=_AFTER_ABORT,
        blame=Blame.SELF,
        rank=rank if rank >= 0 else None,
        raised=True,
    )


def _from_keywords(evidence: Evidence, covered: Collection[int], keywords: KeywordClassifier) -> list[Candidate]:
    """Lines near the end whose keywords complain of a failure, for logs in which nothing else was found."""
    candidates = []
    ends: dict[Stream, int] = {}
    for line in evidence.lines:
        ends[line.stream] = max(ends.get(line.stream, 0), line.number)
    for index, line in enumerate(evidence.lines):
        if index in covered or line.number < ends[line.stream] - _LAST_WORDS:
            continue
        still_trying = ends[line.stream] - line.number < _TRYING and _RETRIES.search(line.body)
        kind = keywords.says(line.body) if still_trying else keywords.complains(line.body)
        if kind is not None:
            why = "no rule knows this line; its words speak of it"
            rank = line.known_rank
            candidates.append(Candidate(index, kind, Role.ROOT, "heuristic:words", why, Specificity.WORD, rank=rank))
    return candidates


def _at_assert(candidate: Candidate, log: _Log) -> Candidate:
    """A bare AssertionError says nothing: point at the line of the assert statement."""
    trace = _trace_of(candidate, log)
    if trace is None or trace.exception != "AssertionError" or trace.message.strip():
        return candidate
    asserts = [index for index in trace.lines if log.evidence.lines[index].body.lstrip().startswith("assert ")]
    return replace(candidate, line=asserts[-1]) if asserts else candidate


_NAMING: tuple[_Refinement, ...] = (_named_by_context, _named_by_message, _at_assert)
"""What an exception is, and where, by more than its class."""
_HANDLING: tuple[_Refinement, ...] = (_with_control_flow, _with_logged)
"""Whether the program handled it."""


def _demoted_at_exit(candidate: Candidate, evidence: Evidence) -> Candidate:
    """An exception raised while the process is shutting down is no root."""
    raised = candidate.role is Role.ROOT and candidate.trace >= 0
    at_exit = raised and _is_at_exit(evidence, evidence.tracebacks[candidate.trace])
    return replace(candidate, role=Role.TEARDOWN) if at_exit else candidate


def _is_at_exit(evidence: Evidence, trace: Traceback) -> bool:
    return _is_ignored(evidence, trace) or any(_HANDLER.search(frame) for frame in trace.frames)


def _from_loss(evidence: Evidence, loss: Break) -> Candidate:
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


def _from_end(evidence: Evidence, end: CleanEnd) -> Candidate:
    rank = evidence.lines[end.line].rank
    return Candidate(
        line=end.line,
        type=FailureType.COMPLETED,
        role=Role.ROOT,
        by="heuristic:clean_end",
        why=end.why,
        specificity=end.specificity,
        rank=rank if rank >= 0 else None,
    )


def _from_traces(log: _Log) -> Iterator[Candidate]:
    evidence, table = log.evidence, log.tables.exceptions
    for number, trace in enumerate(evidence.tracebacks):
        reading = table.read(trace.exception, trace.message, trace.frames)
        yield Candidate(
            line=trace.raised,
            type=reading.type,
            role=Role.TEARDOWN if _is_at_exit(evidence, trace) else reading.role,
            by="heuristic:exception_class",
            why=f"a traceback ends in {trace.exception}",
            specificity=Specificity.CLASS if reading.generic else Specificity.FAMILY,
            rank=trace.rank if trace.rank >= 0 else None,
            action=table.action(reading.type, trace.message),
            trace=number,
            raised=True,
        )


def _from_lines(log: _Log) -> Iterator[Candidate]:
    """Exception lines outside joined tracebacks: truncated logs, loggers that print only the last line."""
    evidence, table = log.evidence, log.tables.exceptions
    traced = evidence.traceback_lines
    for index, line in enumerate(evidence.lines):
        if index in traced or not any(mark in line.body for mark in _NAMED):
            continue
        match = _BARE_EXCEPTION.match(line.body)
        if match:
            reading = table.read(match["name"], match["message"])
            yield Candidate(
                line=index,
                type=reading.type,
                role=reading.role,
                by="heuristic:exception_line",
                why=f"a line names {match['name']}",
                specificity=Specificity.WORD,
                rank=line.known_rank,
                raised=bool(_RAISED.match(line.body)),
            )


def _is_ignored(evidence: Evidence, trace: Traceback) -> bool:
    """Python and logging print such a line above errors that they swallow: the run goes on."""
    start = trace.lines[0] if trace.lines else trace.raised
    stream = evidence.lines[start].stream
    for index in range(start - 1, max(-1, start - 40), -1):
        line = evidence.lines[index]
        if line.stream == stream and line.rank == evidence.lines[start].rank:
            return line.body.lstrip().startswith(_IGNORED)
    return False
