"""The sources of candidates: each is one way in which a line of a log shows what failed, and names itself in ``by``."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from diagnoser.model import LOSS_SERIES, Evidence, ExitReport, Traceback
from diagnoser.model.choice import only
from diagnoser.model.taxonomy import Action, Category, FailureType, category_of
from diagnoser.records.reader import without_fields
from diagnoser.rules.candidate import Candidate, LossDivergence
from diagnoser.rules.clean_end import CleanEnd, EndTable
from diagnoser.rules.engine import Hit
from diagnoser.rules.exception_lines import ExceptionLines, PrintedException
from diagnoser.rules.exception_words import Classification, ExceptionClassifier, RaisedException
from diagnoser.rules.exceptions import ExceptionTable
from diagnoser.rules.keyword_classifier import KeywordClassifier
from diagnoser.rules.likely_lines import LineRanker
from diagnoser.rules.schema import Blame, Maturity, Role, Rule, Specificity

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
_IGNORED = ("Exception ignored in", "Error in atexit", "--- Logging error ---")
_LOGGER = re.compile(r"logging/__init__\.py\", line \d{1,6}, in emit$")
"""The outermost frame of an error that Python's logging met, printed and went on from."""
_LOGGED_CALL = "Message"
"""Stands where an exception would, below the stack of the call that logging could not print."""
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
_BELOW = 64
"""Lines below an exception that may belong to it: a message, a stack, the exception that caused it."""
_STACK_LINE = re.compile(r"\s+at |\s+\.\.\. \d+ (?:more|common frames)|\s+Suppressed: |\s*$")
_SURE, _LIKELY = 0.7, 0.4
"""Probabilities from which the classifier is sure of the type of an exception, and from which it outweighs a class."""
WIDE_CLASSES = frozenset(
    {FailureType.VALUE_ERROR, FailureType.ASSERTION_ERROR, FailureType.OS_ERROR, FailureType.RUNTIME_ERROR}
)
"""Types of classes that programs raise for anything: settings, records and checkpoints that they refuse."""
_SETTINGS = frozenset({"any:config", "call:config", "any:parallelism"})
"""Features of exceptions that speak of settings."""
_OF_CLASSES = WIDE_CLASSES | {
    FailureType.TYPE_ERROR,
    FailureType.KEY_ERROR,
    FailureType.NAME_ERROR,
    FailureType.ATTRIBUTE_ERROR,
    FailureType.ZERO_DIVISION_ERROR,
    FailureType.SYNTAX_ERROR,
    FailureType.IMPORT_ERROR,
}
"""Types that say which class was raised, no deeper cause."""
BY_WORDS, BY_LIKELY_WORDS = "heuristic:exception_words", "heuristic:exception_words_likely"
BY_FEW_WORDS, BY_DOUBTED_CLASS = "heuristic:exception_words_few", "heuristic:exception_class_doubted"
"""Deciders that read the words of an exception: each is right differently often."""
DOWNSTREAM = frozenset(
    {
        FailureType.NCCL_TIMEOUT_ERROR,
        FailureType.NCCL_REMOTE_ERROR,
        FailureType.CONNECTION_ERROR,
        FailureType.NETWORK_ERROR,
        FailureType.CALLED_PROCESS_ERROR,
    }
)
"""What peers, their network library and the launcher print once a process has ended."""
_WHAT_BELOW = 4
"""Lines of its process within which an uncaught C++ exception prints its message."""
_THROWN = re.compile(r"terminate called after throwing an instance of '(?P<name>[\w:]+)")
_WHAT = re.compile(r"\s*what\(\): +(?=\S)")
_AFTER_ABORT = frozenset(map(str, (FailureType.SEGMENTATION_FAULT, FailureType.CALLED_PROCESS_ERROR)))


@dataclass(frozen=True, slots=True)
class Heuristics:
    """The tables that classify lines no rule knows."""

    exceptions: ExceptionTable
    keywords: KeywordClassifier
    ends: EndTable
    classifier: ExceptionClassifier
    printed: ExceptionLines
    ranker: LineRanker

    def name(self, raised: RaisedException) -> tuple[FailureType, str] | None:
        """The type of an exception, and what decided, where its words say more than its class; None where the class
        or what the exception states stands.

        The table of words is asked where the classifier is not sure.
        """
        if _is_final(raised):
            return None
        said = self.classifier.classify(raised)
        if said and said.probability >= _SURE:
            return _as_deep(raised, said, BY_WORDS)
        says_little = raised.is_generic or raised.class_type is FailureType.RUNTIME_ERROR
        kind = self.keywords.says(raised.message) if says_little else None
        if kind:
            return kind, "heuristic:words"
        if said is None:
            return None
        if said.probability >= _LIKELY:
            return _as_deep(raised, said, BY_LIKELY_WORDS)
        return _of_few_words(raised, said)

    def named(self, raised: RaisedException) -> tuple[FailureType, str]:
        """The type of an exception, and what decided: its words, else its class."""
        return self.name(raised) or (raised.type, "heuristic:exception_class")


def _of_few_words(raised: RaisedException, said: Classification) -> tuple[FailureType, str] | None:
    """What a class says that the words speak against; where it says nothing, the likeliest type of the program's own: a
    few words prove no fault of a machine, and no crash."""
    if raised.is_generic and not raised.is_known:
        is_far = category_of(said.type) is Category.INFRASTRUCTURE or said.type is FailureType.SEGMENTATION_FAULT
        return (FailureType.RUNTIME_ERROR if is_far else said.type), BY_FEW_WORDS
    return (raised.type, BY_DOUBTED_CLASS) if said.type is not raised.type else None


def _is_final(raised: RaisedException) -> bool:
    """Whether the class, or what is stated, says what went wrong, whatever it quotes: a KeyError of a setting
    is a KeyError."""
    if raised.is_stated:
        return True
    if not raised.is_known:
        return False
    if not raised.message.strip():
        return True
    if raised.is_generic:
        return False
    return raised.class_type not in WIDE_CLASSES


def _as_deep(raised: RaisedException, said: Classification, by: str) -> tuple[FailureType, str] | None:
    """What the words say; None where they only name another class than a standard one that was raised."""
    is_own_check = raised.class_type is FailureType.ASSERTION_ERROR
    if is_own_check and said.type is FailureType.DATASET_LOADING_ERROR:
        return None  # of a record that was read
    if not raised.is_known:
        return said.type, by
    if said.type in _OF_CLASSES:
        return None
    if said.type is FailureType.CONFIGURATION_ERROR and said.features.isdisjoint(_SETTINGS):
        return None  # a value that is refused, whoever set it
    return said.type, by


@dataclass(frozen=True)
class RuleLog:
    """A log, the tables that read it, and what the rules and the series already say of it."""

    evidence: Evidence
    tables: Heuristics
    hits: Sequence[Hit] = ()
    loss: LossDivergence | None = None
    end: CleanEnd | None = None

    @cached_property
    def terminations(self) -> Mapping[int, Candidate]:
        """What uncaught C++ exceptions say, by the lines of their messages: each caused the abort that is reported
        afterwards."""
        return {what: _from_termination(what, name, self) for what, name in self._thrown.values()}

    @cached_property
    def _thrown(self) -> Mapping[int, tuple[int, str]]:
        """Lines that name the class of an uncaught C++ exception: the line of its message, and the class."""
        thrown, read = dict[int, tuple[int, str]](), set[int]()
        for index, line in enumerate(self.evidence.lines):
            match = _THROWN.search(line.body)
            if match is None:
                continue
            what = self._message_of_thrown(index, read)
            if what is not None:
                read.add(what)
                thrown[index] = what, match["name"]
        return thrown

    def _message_of_thrown(self, index: int, read: Collection[int]) -> int | None:
        """The next line of the process that holds a message; of several that throw at once, each has its own.

        read: lines of messages that belong to another.
        """
        for below in islice(self._below(index), _WHAT_BELOW):
            if below not in read and _WHAT.match(self.evidence.lines[below].body):
                return below
        return None

    def is_named_below(self, index: int) -> bool:
        """Whether the line only says that a C++ exception was not caught, and one below it which."""
        return index in self._thrown

    def trace_of(self, candidate: Candidate) -> Traceback | None:
        """The traceback that the candidate's line raises."""
        if candidate.trace >= 0:
            return self.evidence.tracebacks[candidate.trace]
        return None

    def body_of(self, candidate: Candidate) -> str:
        return self.evidence.lines[candidate.line].body

    def raised_by(self, candidate: Candidate) -> RaisedException:
        """The exception that the line raises; a line that shows no class is a message without one."""
        trace = self.trace_of(candidate)
        if trace:
            return self.tables.exceptions.raised(trace.exception, trace.message, trace.frames)
        printed = self.printed.get(candidate.line)
        return self.raised_as(printed) if printed else RaisedException("", self.body_of(candidate))

    def raised_at(self, index: int) -> RaisedException:
        """What the line says, as an exception; one without a class where it shows none."""
        for trace in self.evidence.tracebacks:
            if trace.raised == index:
                return self.tables.exceptions.raised(trace.exception, trace.message, trace.frames)
        printed = self.printed.get(index)
        return (
            self.raised_as(printed) if printed else self.tables.exceptions.raised("", self.evidence.lines[index].body)
        )

    @cached_property
    def printed(self) -> Mapping[int, PrintedException]:
        """The exceptions that lines print outside of tracebacks, by the lines that say what went wrong. A cause without
        a message of its own is about what the exception says that carries it."""
        traced, printed = self.evidence.traceback_lines, dict[int, PrintedException]()
        carried = dict[int, str]()
        for index in range(len(self.evidence.lines)):
            exception = None if index in traced else self._printed_at(index)
            if exception is None:
                continue
            printed.setdefault(self._line_of(exception, index), exception)
            for cause in self.causes_below(index):
                carried[cause] = exception.message
            if not exception.message:
                printed[index] = replace(exception, message=carried.get(index, ""))
        return printed

    @cached_property
    def last_words(self) -> frozenset[int]:
        """Lines that a runtime prints only as it ends its process: an exception that nobody caught, with its causes."""
        last = {index for index, exception in self.printed.items() if exception.is_last}
        for index in tuple(last):
            last.update(self.causes_below(index))
        return frozenset((*last, *self.terminations))

    def causes_below(self, index: int) -> Iterator[int]:
        """The exceptions that caused the one whose stack stands below a line."""
        for below in self._below(index):
            body = self.evidence.lines[below].body
            if body.startswith("Caused by: "):
                yield below
            elif not _STACK_LINE.match(body):
                return

    def _printed_at(self, index: int) -> PrintedException | None:
        body = self.evidence.lines[index].body
        printed = self.tables.printed.read(without_fields(body), map(without_fields, self._bodies_below(index)))
        if printed or not any(mark in body for mark in _NAMED):
            return printed
        bare = _BARE_EXCEPTION.match(body)
        return PrintedException(bare["name"], bare["message"]) if bare else None

    def _line_of(self, printed: PrintedException, index: int) -> int:
        """The line of the deepest cause that an exception at ``index`` quotes, else its own."""
        return next(islice(self._below(index), printed.offset - 1, None)) if printed.offset else index

    def raised_as(self, printed: PrintedException) -> RaisedException:
        """What was printed, as the tables read exceptions."""
        frames = [f", in {printed.call}"] if printed.call else []
        return self.tables.exceptions.raised(printed.name, printed.message, frames)

    def _below(self, index: int) -> Iterator[int]:
        """The next lines of the process that printed a line."""
        lines, speaker = self.evidence.lines, self.evidence.lines[index].speaker
        near = range(index + 1, min(index + 1 + _BELOW, len(lines)))
        return (below for below in near if lines[below].speaker == speaker)

    def _bodies_below(self, index: int) -> Iterator[str]:
        return (self.evidence.lines[below].body for below in self._below(index))


def from_rules(log: RuleLog) -> Iterator[Candidate]:
    """The lines that rules know, on each line the most exact rule first."""
    traces = {trace.raised: number for number, trace in enumerate(log.evidence.tracebacks)}
    for hit in log.hits:
        candidate = from_hit(hit, log.evidence, traces.get(hit.line, -1))
        yield replace(candidate, role=_role_there(candidate, log))


def _role_there(candidate: Candidate, log: RuleLog) -> Role:
    """The role of a line that a rule knows, at its place in the log."""
    if log.is_named_below(candidate.line):
        return Role.WRAPPER  # says no more than that there is an exception; a line below says which
    if not candidate.is_root:
        return candidate.role
    trace = log.trace_of(candidate)
    if trace and _is_at_exit(log.evidence, trace):
        return Role.TEARDOWN
    return candidate.role


def from_hit(hit: Hit, evidence: Evidence, trace: int = -1) -> Candidate:
    """The line as its rule sees it.

    trace: index of the traceback that the line raises, or -1.
    """
    rule, line = hit.rule, evidence.lines[hit.line]
    return Candidate(
        line=hit.line,
        type=rule.type,
        role=rule.role,
        by=f"rule:{rule.id}",
        why=rule.title,
        specificity=rule.specificity,
        explains=frozenset(map(str, rule.explains)),
        overrides=frozenset(f"rule:{rule_id}" for rule_id in rule.overrides),
        blame=rule.blame,
        rank=line.known_rank if hit.rank is None else hit.rank,
        node=hit.node,
        gpu=hit.gpu,
        maturity=rule.maturity,
        action=_asked(rule, line.body),
        mitigation=rule.mitigation,
        trace=trace,
        raised=trace >= 0 or bool(_RAISED.match(line.body)),
    )


def _asked(rule: Rule, body: str) -> Action | None:
    """What the rule asks for. Where its line calls a fault outside the job temporary, nobody has to fix it first."""
    stops = (rule.action, category_of(rule.type)) == (Action.NOTIFY_USER, Category.INFRASTRUCTURE)
    if not stops:
        return rule.action
    if _TEMPORARY.search(body):
        return None
    return rule.action


def from_loss(log: RuleLog) -> Iterator[Candidate]:
    """The line at which the loss series breaks."""
    if log.loss is None:
        return
    yield Candidate(
        line=log.loss.line,
        type=FailureType.LOSS_DIVERGENCE,
        role=Role.ROOT,
        by=LOSS_SERIES,
        why=log.loss.why,
        specificity=Specificity.MESSAGE,
        rank=log.evidence.lines[log.loss.line].known_rank,
        mitigation="Go back to the last checkpoint before the break, and skip the batches since then.",
    )


def from_end(log: RuleLog) -> Iterator[Candidate]:
    """The line that says that the run ended well."""
    if log.end is None:
        return
    yield Candidate(
        line=log.end.line,
        type=FailureType.COMPLETED,
        role=Role.ROOT,
        by="heuristic:clean_end",
        why=log.end.why,
        specificity=log.end.specificity,
        rank=log.evidence.lines[log.end.line].known_rank,
    )


def outweighs(report: ExitReport, candidate: Candidate) -> bool:
    """Whether the report of a process's end says more than the candidate of its line."""
    if candidate.role is Role.WRAPPER:
        return True
    if not candidate.is_vague:
        return False
    if report.signal is not None:
        return True
    return candidate.raised and candidate.type is FailureType.RUNTIME_ERROR


def only_rank(report: ExitReport) -> int | None:
    return only(report.ranks)


def from_exit(report: ExitReport) -> Candidate:
    """The report of a process's end: its signal, else its code, says what ended it."""
    kind, role = _meaning(report)
    return Candidate(
        line=report.line,
        type=kind,
        role=role,
        by=EXIT_CODE if report.code else EXIT_SIGNAL,
        why=f"{report.launcher} reports that the process ended with {_how(report)}",
        exit=True,
        specificity=Specificity.CLASS if report.signal is None else Specificity.FAMILY,
        explains=DOWNSTREAM,
        blame=Blame.SELF,
        rank=only_rank(report),
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


def from_traces(log: RuleLog) -> Iterator[Candidate]:
    """The classes of exceptions that tracebacks end in."""
    table = log.tables.exceptions
    for number, trace in enumerate(log.evidence.tracebacks):
        reading = table.read(trace.exception, trace.message, trace.frames)
        yield Candidate(
            line=trace.raised,
            type=reading.type,
            role=Role.TEARDOWN if _is_at_exit(log.evidence, trace) else reading.role,
            by="heuristic:exception_class",
            why=f"a traceback ends in {trace.exception}",
            specificity=Specificity.CLASS if reading.generic else Specificity.FAMILY,
            rank=trace.rank if trace.rank >= 0 else None,
            action=table.action(reading.type, trace.message),
            trace=number,
            raised=True,
        )


def _is_at_exit(evidence: Evidence, trace: Traceback) -> bool:
    """Whether the exception was raised while the process was shutting down."""
    if _is_ignored(evidence, trace):
        return True
    return any(map(_HANDLER.search, trace.frames))


def _is_ignored(evidence: Evidence, trace: Traceback) -> bool:
    """Python and logging print such a line above errors that they swallow: the run goes on."""
    if trace.exception == _LOGGED_CALL:
        return True
    if any(map(_LOGGER.search, trace.frames[:1])):
        return True
    speaker = evidence.lines[trace.start].speaker
    for line in reversed(evidence.lines[max(0, trace.start - 39) : trace.start]):
        if line.speaker == speaker:
            return line.body.lstrip().startswith(_IGNORED)
    return False


def from_terminations(log: RuleLog) -> Iterator[Candidate]:
    """The uncaught C++ exceptions."""
    yield from log.terminations.values()


def _from_termination(index: int, name: str, log: RuleLog) -> Candidate:
    """What the message at ``index`` says."""
    line = log.evidence.lines[index]
    raised = log.tables.exceptions.raised(name, _WHAT.sub("", line.body))
    kind, by = log.tables.named(raised)
    specificity = Specificity.CLASS if raised.is_generic else Specificity.FAMILY
    return Candidate(
        line=index,
        type=kind,
        role=Role.SYMPTOM,
        by=by,
        why=f"an uncaught {name} ended the process",
        specificity=specificity,
        explains=_AFTER_ABORT,
        blame=Blame.SELF,
        rank=line.known_rank,
        raised=True,
    )


def from_lines(log: RuleLog) -> Iterator[Candidate]:
    """Exception lines outside joined tracebacks: of other languages, of truncated logs, of loggers that print only the
    last line."""
    for index, printed in log.printed.items():
        yield _from_printed(index, printed, log)


def _from_printed(index: int, printed: PrintedException, log: RuleLog) -> Candidate:
    raised, line = log.raised_as(printed), log.evidence.lines[index]
    return Candidate(
        line=index,
        type=raised.type,
        role=_role_of_printed(index, raised, log),
        by="heuristic:exception_line",
        why=f"a line names {printed.name}" if printed.name else "a line prints an error that ends a program",
        specificity=Specificity.WORD,
        rank=line.known_rank,
        raised=bool(_RAISED.match(line.body)),
    )


def _role_of_printed(index: int, raised: RaisedException, log: RuleLog) -> Role:
    """The role of an exception that a line prints: one that only quotes another is none for itself."""
    table = log.tables.exceptions
    role = table.role(raised.name, raised.message)
    if role is not Role.ROOT:
        return role
    if any(log.causes_below(index)):
        return Role.WRAPPER
    if raised.is_generic and table.is_carrier(raised.name, raised.message):
        return Role.WRAPPER
    return role
