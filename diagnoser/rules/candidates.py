"""Everything in a log that could be the cause: rule hits, and what exceptions say where no rule knows them."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from diagnoser.model import Evidence, ExitReport, Stream, Traceback
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
_UNCAUGHT = 1
"""What Python exits with after an exception that nobody caught. A process that lost its peer and raised ends so: where
another code is reported, another process ended itself."""
_TIMED_OUT = 124
"""What ``timeout`` exits with when it ended the program."""
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


def collect(
    evidence: Evidence,
    hits: Sequence[Hit],
    heuristics: Heuristics,
    loss: Break | None = None,
    end: CleanEnd | None = None,
) -> tuple[Candidate, ...]:
    """At most one candidate per line, in the order of the lines; a benign one where the best rule is benign."""
    traces = {trace.raised: number for number, trace in enumerate(evidence.tracebacks)}
    best: dict[int, Candidate] = {}
    for hit in hits:
        if hit.line not in best:
            best[hit.line] = from_hit(hit, evidence, traces.get(hit.line, -1))
    best = {line: _demoted_at_exit(c, evidence) for line, c in best.items()}
    terminations = tuple(_from_terminations(evidence, heuristics))
    thrown = {reason.line - 1 for reason in terminations}
    best = {line: replace(c, role=Role.WRAPPER) if line in thrown else c for line, c in best.items()}
    if loss is not None:
        best.setdefault(loss.line, _from_loss(evidence, loss))
    if end is not None:
        best.setdefault(end.line, _from_end(evidence, end))
    for report in evidence.exits:
        if (reported := _with_exit(best.get(report.line), report)) is not None:
            best[report.line] = reported
    for candidate in (
        *_from_traces(evidence, heuristics.exceptions),
        *terminations,
        *_from_lines(evidence, heuristics.exceptions),
    ):
        best.setdefault(candidate.line, candidate)
    read = (_named_by_context(c, evidence, heuristics.exceptions) for c in best.values())
    candidates = [_at_assert(_named_by_message(c, evidence, heuristics.keywords), evidence) for c in read]
    candidates = [_opened(c, candidates, evidence, heuristics) for c in candidates]
    done = max((c.line for c in candidates if c.type is FailureType.COMPLETED and c.role is Role.ROOT), default=-1)
    failures = [c for c in candidates if c.line > done and c.role in (Role.ROOT, Role.SYMPTOM)]
    if all(map(_is_death, failures)):
        death = min((c.line for c in failures), default=len(evidence.lines))
        causes = _from_keywords(evidence, set(best), heuristics.keywords)
        candidates += [c for c in causes if done < c.line < death and not (failures and _is_crash(c))]
    candidates = [_with_control_flow(c, evidence, heuristics.exceptions) for c in candidates]
    candidates = [_with_logged(c, evidence) for c in candidates]
    return tuple(sorted(candidates, key=lambda c: c.line))


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
        rank=hit.rank if hit.rank is not None else (line.rank if line.rank >= 0 else None),
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
    carries = report.signal is not None and candidate is not None and candidate.specificity <= Specificity.CLASS
    if candidate is not None and candidate.role is not Role.WRAPPER and not carries:
        rank = report.ranks[0] if len(report.ranks) == 1 else None
        rank, node = rank if candidate.rank is None else candidate.rank, candidate.node or report.node or None
        return replace(candidate, rank=rank, node=node, exit=True) if report.failed else candidate
    return _from_exit(report) if report.failed else candidate


def _from_exit(report: ExitReport) -> Candidate:
    type_, role = (FailureType.RUNTIME_ERROR, Role.SYMPTOM) if report.code else _VANISHED
    if report.code == _UNCAUGHT:
        role = Role.WRAPPER
    if report.code == _TIMED_OUT:
        type_, role = FailureType.TIME_LIMIT, Role.SYMPTOM
    how = f"code {report.code}" if report.code else f"signal {report.signal}" if report.signal else "no word of its own"
    if report.signal is not None:
        type_, role = SIGNALS.get(report.signal, (FailureType.RUNTIME_ERROR, Role.WRAPPER))
    return Candidate(
        line=report.line,
        type=type_,
        role=role,
        by=EXIT_CODE if report.code else EXIT_SIGNAL,
        why=f"{report.launcher} reports that the process ended with {how}",
        exit=True,
        specificity=Specificity.CLASS if report.code or report.signal is None else Specificity.FAMILY,
        explains=_DOWNSTREAM,
        blame=Blame.SELF,
        rank=report.ranks[0] if len(report.ranks) == 1 else None,
        node=report.node or None,
        maturity=Maturity.STABLE,
        mitigation="Read what this process printed last; where it printed nothing, the kernel log of its node.",
    )


def _with_logged(candidate: Candidate, evidence: Evidence) -> Candidate:
    if candidate.trace >= 0 and is_harmless(evidence, evidence.tracebacks[candidate.trace]):
        return replace(candidate, role=Role.BENIGN)
    failing = category_of(candidate.type) is not Category.NONE and candidate.role in (Role.ROOT, Role.SYMPTOM)
    if not failing or candidate.exit or not is_logged(evidence, candidate.line, candidate.trace):
        return candidate
    return replace(candidate, logged=True, goes_on=goes_on(evidence, candidate.line, candidate.trace))


def _with_control_flow(candidate: Candidate, evidence: Evidence, table: ExceptionTable) -> Candidate:
    if candidate.trace < 0:
        return candidate
    trace = evidence.tracebacks[candidate.trace]
    tried = candidate.type is FailureType.FILE_NOT_FOUND_ERROR and bool(_TRIES.search(" ".join(trace.frames[-1:])))
    return replace(candidate, control_flow=True) if tried or table.is_control_flow(trace.exception) else candidate


def _named_by_context(candidate: Candidate, evidence: Evidence, table: ExceptionTable) -> Candidate:
    """A rule that knows only the class of an exception, or that of a broken file, knows less than the place does where
    it was raised: a checkpoint that is cut or does not fit is one whatever class carries it."""
    broken_file = candidate.type is FailureType.DATASET_LOADING_ERROR
    if candidate.role is not Role.ROOT or not (candidate.specificity <= Specificity.CLASS or broken_file):
        return candidate
    trace = evidence.tracebacks[candidate.trace] if candidate.trace >= 0 else None
    if trace is None and not candidate.raised:
        return candidate
    message = f"{trace.exception}: {trace.message}" if trace else evidence.lines[candidate.line].body
    stated = table.by_status(trace.message) if trace and not broken_file else None
    kind = table.in_context(stated or candidate.type, message, trace.frames if trace else ()) or stated
    kind = kind or _named_by_outer(candidate, evidence, table)
    if kind is None:
        return candidate
    why = "the status, the subject or the place of the exception says more than its class"
    named = _renamed(candidate, kind, "heuristic:exception_context", why)
    return replace(named, action=table.action(kind, message))


def _named_by_outer(candidate: Candidate, evidence: Evidence, table: ExceptionTable) -> FailureType | None:
    """What those say that were raised from the exception, as a framework that restores a checkpoint says which
    variable did not fit."""
    links, kind = {candidate.trace}, None
    for number, trace in enumerate(evidence.tracebacks):
        if trace.cause in links and candidate.trace >= 0:
            links.add(number)
            kind = kind or table.in_context(candidate.type, f"{trace.exception}: {trace.message}", ())
    return kind


def _named_by_message(candidate: Candidate, evidence: Evidence, keywords: KeywordClassifier) -> Candidate:
    """An exception whose class says nothing gets its type from its message, where keywords recognise that."""
    printed = candidate.raised or candidate.by == "heuristic:exception_line"
    if candidate.type is not FailureType.RUNTIME_ERROR or candidate.specificity > Specificity.CLASS or not printed:
        return candidate
    trace = evidence.tracebacks[candidate.trace] if candidate.trace >= 0 else None
    kind = keywords.says(trace.message if trace else evidence.lines[candidate.line].body)
    return _renamed(candidate, kind, "heuristic:words", candidate.why) if kind else candidate


def _renamed(candidate: Candidate, kind: FailureType, by: str, why: str) -> Candidate:
    """Nothing of the rule that named it before holds for the new type: not what it advises, nor that it is proven."""
    return replace(candidate, type=kind, by=by, why=why, mitigation="", action=None, maturity=None)


def _opened(candidate: Candidate, candidates: Sequence[Candidate], evidence: Evidence, tables: Heuristics) -> Candidate:
    """An exception that only quotes another: a wrapper where the quoted one was read, else named by what it quotes."""
    trace = evidence.tracebacks[candidate.trace] if candidate.trace >= 0 else None
    if (
        trace is None
        or candidate.role is not Role.ROOT
        or not tables.exceptions.is_carrier(trace.exception, trace.message)
    ):
        return candidate
    quoted = list(_quoted(evidence, trace))
    if any(other.raised and other.role is Role.ROOT and other.line in quoted for other in candidates):
        return replace(candidate, role=Role.WRAPPER)
    kinds = (tables.keywords.says(evidence.lines[index].body) for index in quoted)
    kind = next((kind for kind in kinds if kind), None) if candidate.specificity <= Specificity.CLASS else None
    return _renamed(candidate, kind, "heuristic:words", candidate.why) if kind else candidate


def _quoted(evidence: Evidence, trace: Traceback) -> Iterator[int]:
    """Indices of the lines below an exception, as far as the same process speaks and no code is shown."""
    raised = evidence.lines[trace.raised]
    for index in range(trace.raised + 1, min(len(evidence.lines), trace.raised + _QUOTED)):
        line = evidence.lines[index]
        same_voice = line.stream == raised.stream and line.rank == raised.rank
        if same_voice and line.number - raised.number <= _QUOTED and not line.body.startswith("  "):
            yield index


def _is_death(candidate: Candidate) -> bool:
    """The line says how a process ended, not why: an abort follows the error that led to it, a code has no words."""
    return candidate.role is Role.SYMPTOM and (_is_crash(candidate) or candidate.by == EXIT_CODE)


def _is_crash(candidate: Candidate) -> bool:
    return candidate.type is FailureType.SEGMENTATION_FAULT


def _from_terminations(evidence: Evidence, tables: Heuristics) -> Iterator[Candidate]:
    """What an uncaught C++ exception says: it caused the abort that is reported afterwards."""
    for index, line in enumerate(evidence.lines[:-1]):
        thrown = _THROWN.search(line.body)
        below = evidence.lines[index + 1]
        what = _WHAT.match(below.body) if thrown and below.stream == line.stream and below.rank == line.rank else None
        if not thrown or not what:
            continue
        reading = tables.exceptions.read(thrown["name"], what["message"])
        kind = tables.keywords.says(what["message"]) if reading.generic else reading.type
        if kind is None and thrown["name"].endswith(_PROGRAM_ERRORS):
            continue  # a bug in native code: the abort names it as well as can be
        yield Candidate(
            line=index + 1,
            type=kind or reading.type,
            role=Role.SYMPTOM,
            by="heuristic:words" if kind and reading.generic else "heuristic:exception_class",
            why=f"an uncaught {thrown['name']} ended the process",
            specificity=Specificity.CLASS if reading.generic else Specificity.FAMILY,
            explains=_AFTER_ABORT,
            blame=Blame.SELF,
            rank=line.rank if line.rank >= 0 else None,
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
            rank = line.rank if line.rank >= 0 else None
            candidates.append(Candidate(index, kind, Role.ROOT, "heuristic:words", why, Specificity.WORD, rank=rank))
    return candidates


def _at_assert(candidate: Candidate, evidence: Evidence) -> Candidate:
    """A bare AssertionError says nothing: point at the line of the assert statement."""
    trace = evidence.tracebacks[candidate.trace] if candidate.trace >= 0 else None
    if trace is None or trace.exception != "AssertionError" or trace.message.strip():
        return candidate
    asserts = [index for index in trace.lines if evidence.lines[index].body.lstrip().startswith("assert ")]
    return replace(candidate, line=asserts[-1]) if asserts else candidate


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


def _from_traces(evidence: Evidence, table: ExceptionTable) -> Iterator[Candidate]:
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


def _from_lines(evidence: Evidence, table: ExceptionTable) -> Iterator[Candidate]:
    """Exception lines outside joined tracebacks: truncated logs, loggers that print only the last line."""
    traced = {index for trace in evidence.tracebacks for index in trace.lines}
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
                rank=line.rank if line.rank >= 0 else None,
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
