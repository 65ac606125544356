"""What the compressor keeps of a log."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from itertools import chain

from diagnoser.model.lines import Stream

_ONLY = Stream()
"""The stream of a log that has but one."""
ORDERED_SIGNALS = frozenset({1, 2, 3, 15})
"""Signals by which a person, a scheduler or a launcher asks a process to end."""


class Mark(IntEnum):
    CONTEXT = 1  # near a line that matters
    SAMPLE = 2  # one of the few samples of a routine template
    EDGE = 3  # among the first or last lines of its stream or rank
    NOVEL = 4  # rare shape
    SEVERITY = 5  # labels itself an error or a warning
    TRACEBACK = 6  # part of a traceback or of a native stack
    ANCHOR = 7  # carries a rule's anchor


class Severity(IntEnum):
    """How bad the program that prints a record calls it."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


def process_of(rank: int, instance: str, label: str, node: str) -> int | str:
    """Who prints: the rank, else where it runs and what its prefix calls it, else its node; -1 where nothing tells."""
    if rank >= 0:
        return rank
    return "/".join(filter(None, (instance, label))) or node or -1


@dataclass(frozen=True, slots=True)
class Line:
    """One kept line.

    number: 1-based in its stream.
    text: as it came, decoded; very long lines are cut in the middle with the cut counted in the text.
    body: without terminal codes and without launcher prefixes (``12: ``, ``[default0]:``, ``[rank12]:``, pod, host).
    rank, node: from the prefixes, else from the stream; -1 and "" when unknown.
    time: from the record or parsed from the line or from one before it, else the time the block was received; 0.0 when
    unknown. arrived: whether it is when the block was received.
    task: the number that ``srun --label`` put in front; it is also the rank only where each task is one rank.
    received: when the service received it, by its own clock; 0.0 in a file.
    continues: of a node's log, where it goes on with the message before it.
    severity: of the record that the line is of; None where it has none.
    part: which text line of a record this is, where a record that is one line as printed holds several (a traceback in
    a field of JSON); they share ``number`` and ``text``.
    instance: the pod, service or container that printed it. label: what the prefix calls who printed it.
    """

    stream: Stream
    number: int
    text: str
    body: str
    rank: int = -1
    node: str = ""
    time: float = 0.0
    mark: Mark = Mark.CONTEXT
    task: int = -1
    received: float = 0.0
    arrived: bool = False
    continues: bool = False
    severity: Severity | None = None
    part: int = 0
    instance: str = ""
    label: str = ""

    @property
    def process(self) -> int | str:
        """Who printed the line, of all that print into its stream; -1 where nothing tells."""
        return process_of(self.rank, self.instance, self.label, self.node)

    @property
    def speaker(self) -> tuple[Stream, int | str]:
        """The process, of all of the log: alike for what one process prints, as far as the log tells."""
        return self.stream, self.process

    @property
    def names_process(self) -> bool:
        """Whether the log tells the process that printed the line from others of its stream."""
        return self.process != -1

    @property
    def is_indented(self) -> bool:
        """Whether the line is a detail, or quoted: its text does not begin at the margin."""
        return self.body[:1].isspace()

    @property
    def known_rank(self) -> int | None:
        return self.rank if self.rank >= 0 else None

    @property
    def is_dated(self) -> bool:
        """Whether ``time`` is when the line was printed."""
        return self.time > 0 and not self.arrived

    def is_of_another(self, other: "Line") -> bool:
        """Whether the prefixes of the two lines name different ranks, tasks or nodes."""
        if self.rank != other.rank and min(self.rank, other.rank) >= 0:
            return True
        if self.task != other.task and min(self.task, other.task) >= 0:
            return True
        return "" not in (self.node, other.node) and self.node != other.node


@dataclass(frozen=True, slots=True)
class Traceback:
    """A Python traceback joined for one rank. Indices point into ``Evidence.lines``.

    exception: class as printed (``torch.OutOfMemoryError``); message: the rest of the exception line and what follows.
    raised: index of the exception line. frames: ``File "...", line N, in f`` bodies, outermost first.
    cause: index into ``Evidence.tracebacks`` of the exception that this one was raised from or while handling, or -1.
    """

    rank: int
    lines: tuple[int, ...]
    frames: tuple[str, ...]
    exception: str
    message: str
    raised: int
    cause: int = -1

    @property
    def start(self) -> int:
        return self.lines[0] if self.lines else self.raised

    @property
    def left_program(self) -> bool:
        """Whether nobody caught the exception: its outermost frame is the module of a program."""
        return "".join(self.frames[:1]).endswith("in <module>")


@dataclass(frozen=True, slots=True)
class ExitReport:
    """What a launcher, scheduler or shell says about the end of processes.

    line: index into ``Evidence.lines``. ranks: global ranks or tasks, empty where it does not tell. local: local rank.
    code: None where a signal ended them, or nobody can tell. signal: number, or None.
    """

    line: int
    launcher: str
    ranks: tuple[int, ...] = ()
    local: int | None = None
    node: str = ""
    pid: int | None = None
    code: int | None = None
    signal: int | None = None

    @property
    def failed(self) -> bool:
        """It ended neither well nor because somebody asked it to."""
        return self.code != 0 and self.signal not in ORDERED_SIGNALS


class Stage(StrEnum):
    LAUNCH = "launch"
    INIT = "init"
    DATA = "data"
    LOAD = "load_checkpoint"
    TRAIN = "train"
    SAVE = "save_checkpoint"
    EVAL = "eval"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Progress:
    """One point of the progress series. NaN in ``loss`` and ``grad_norm`` is a finding, None is "not printed".

    line: 1-based number in its stream. step: training iteration. step_seconds: mean time of one iteration.
    checkpoint: path or name of a checkpoint that this line says was saved, else "". stream, received, arrived: as of a
    ``Line``. metric: what the line calls its loss. is_objective: whether that measures progress, and so may only fall.
    batch_size: of a step, where its line prints one.
    """

    line: int
    rank: int
    time: float
    step: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    checkpoint: str = ""
    stage: Stage = Stage.TRAIN
    received: float = 0.0
    stream: Stream = _ONLY
    arrived: bool = False
    node: str = ""
    instance: str = ""
    label: str = ""
    metric: str = ""
    is_objective: bool = True
    batch_size: float | None = None

    @property
    def process(self) -> int | str:
        """As of a ``Line``."""
        return process_of(self.rank, self.instance, self.label, self.node)

    @property
    def number(self) -> int:
        return self.line

    @property
    def steps_made(self) -> int:
        """``step``; 0 for a point that counts none."""
        return self.step or 0

    @property
    def is_dated(self) -> bool:
        """Whether ``time`` is when the line was printed."""
        return self.time > 0 and not self.arrived


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Where a run stands, by its newest lines; None and "" for what they do not say.

    step_seconds: of one step, as printed or as the times of the lines show. total: the step at which it ends.
    at: when the line came that ``step`` is of. last_line: cut to a few hundred characters.
    """

    stage: Stage | None = None
    step: int | None = None
    total: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    at: float = 0.0
    last_line: str = ""

    @property
    def ends(self) -> float | None:
        if self.step is None or self.total is None or not self.step_seconds or not self.at:
            return None
        return self.at + max(0, self.total - self.step) * self.step_seconds


@dataclass(frozen=True, slots=True)
class Phase:
    """A stage of the run as the log shows it: its first line (stream, line) and its last (last_stream, last)."""

    stage: Stage
    stream: Stream
    line: int
    last_stream: Stream
    last: int


@dataclass(frozen=True, slots=True)
class ProcessLines:
    """Where a process prints lines of one shape. process: as of a ``Line``. kept: numbers of those of its lines that
    were kept, ascending, with the first and the last that are known."""

    process: int | str
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """Routine lines of one shape. first, last: (stream, number). ranks: those that printed it (may be empty).

    processes: those that print it by turns in one stream, where only prefixes that were learned, or records,
    tell them apart.
    """

    text: str
    count: int
    first: tuple[Stream, int]
    last: tuple[Stream, int]
    ranks: frozenset[int]
    samples: tuple[str, ...]
    filtered_by: str = ""
    processes: tuple[ProcessLines, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """The log says where a rank runs. weight: size of the communicator whose ranks are counted, or more where the line
    says it in words. number: of the last line in its stream that says so.
    """

    rank: int
    node: str
    weight: int
    stream: Stream
    number: int


def rank_nodes(lines: Sequence[Line], placements: Iterable[Placement]) -> dict[int, str]:
    """rank -> node: by the placement of the largest communicator, else by the node that sent the rank's lines."""
    nodes = {line.rank: line.node for line in reversed(lines) if line.rank >= 0 and line.node}
    ranked = sorted(placements, key=lambda placement: (placement.weight, placement.number, placement.node))
    nodes.update({placement.rank: placement.node for placement in ranked})
    return dict(sorted(nodes.items()))


class Cap(StrEnum):
    """A limit of what is kept of an attempt. What exceeds it is counted."""

    SHAPES = "shapes"  # of lines
    LINES = "lines"  # kept verbatim
    VOICES = "voices"  # ranks, or processes where a line does not tell its rank
    SERIES = "series"  # of progress
    NODES = "nodes"  # that ranks run on
    TEMPLATES = "templates"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is missing from the evidence: the service never hides what it cut. caps: those that were reached."""

    lines: int = 0
    why: str = ""
    caps: tuple[Cap, ...] = ()


@dataclass(frozen=True, slots=True)
class Compression:
    lines_in: int = 0
    bytes_in: int = 0
    lines_out: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that later stages see of a log.

    lines: in order of time (corrected), then stream, then number.
    rank_nodes: rank -> node as the log itself shows it, all launches together. placements: the lines that say so.
    exits: what launchers report about ended processes, in order; filled in when the rules read the log.
    process_nouns: word by which the log numbers the ranks, in lower case -> how many it numbers.
    process_hosts: the hosts beside which it counts processes.
    """

    lines: tuple[Line, ...] = ()
    tracebacks: tuple[Traceback, ...] = ()
    progress: tuple[Progress, ...] = ()
    templates: tuple[Template, ...] = ()
    ranks: frozenset[int] = frozenset()
    rank_nodes: Mapping[int, str] = field(default_factory=dict)
    left_out: LeftOut = LeftOut()
    compression: Compression = Compression()
    phases: tuple[Phase, ...] = ()
    placements: tuple[Placement, ...] = ()
    exits: tuple[ExitReport, ...] = ()
    process_nouns: Mapping[str, int] = field(default_factory=dict)
    process_hosts: frozenset[str] = frozenset()

    @property
    def job_lines(self) -> list[Line]:
        return [line for line in self.lines if line.stream.from_job]

    @property
    def newest_time(self) -> float:
        """The newest time of a line; 0.0 without any."""
        return max((line.time for line in self.lines), default=0.0)

    @property
    def steps(self) -> tuple[Progress, ...]:
        """The points of the progress series that count a step."""
        return tuple(point for point in self.progress if point.step is not None)

    @property
    def first_step(self) -> float | None:
        """When the line of the first training step came in; None where no line with a time counts one."""
        times = [point.received or point.time for point in self.steps if point.stage is Stage.TRAIN]
        return min(filter(None, times), default=None)

    @property
    def traceback_lines(self) -> frozenset[int]:
        return frozenset(chain.from_iterable(trace.lines for trace in self.tracebacks))

    @property
    def last_numbers(self) -> dict[Stream, int]:
        """The number of the last line that is kept of each stream."""
        last: dict[Stream, int] = {}
        for line in self.lines:
            last[line.stream] = max(last.get(line.stream, 0), line.number)
        return last


def numbers_of(steps: Iterable[Progress]) -> set[int]:
    """The numbers of the steps that these points count."""
    return {point.step for point in steps if point.step is not None}


def in_order(evidence: Evidence, lines: Sequence[Line]) -> Evidence:
    """The evidence in the order of new times. lines: its own lines, one by one, with those times."""
    order = sorted(range(len(lines)), key=lambda old: (lines[old].time, lines[old].stream, lines[old].number))
    return selected(replace(evidence, lines=tuple(lines)), order)


def selected(evidence: Evidence, order: Sequence[int]) -> Evidence:
    """The evidence with the lines of these indices in this order. A traceback loses the lines that are left out, and
    goes where the one that raises is; ``exits`` are not read yet."""
    new_index = {old: new for new, old in enumerate(order)}
    kept = [number for number, trace in enumerate(evidence.tracebacks) if trace.raised in new_index]
    traces = {old: new for new, old in enumerate(kept)}
    return replace(
        evidence,
        lines=tuple(evidence.lines[old] for old in order),
        tracebacks=tuple(_renumbered(evidence.tracebacks[old], new_index, traces) for old in traces),
    )


def _renumbered(trace: Traceback, new_index: Mapping[int, int], numbers: Mapping[int, int]) -> Traceback:
    lines = tuple(new_index[old] for old in trace.lines if old in new_index)
    return replace(trace, lines=lines, raised=new_index[trace.raised], cause=numbers.get(trace.cause, -1))
