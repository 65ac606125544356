"""The nouns that all rings share. Frozen, plain, and without a clock.

Reading order: a ``Block`` of lines arrives on a ``Stream`` of an attempt; the compressor keeps some as ``Line`` and
turns all of them into ``Evidence``; the pipeline turns that and the ``Facts`` of the attempt into a ``Diagnosis``; the
policy turns that into a ``Plan``; what leaves the service is an ``Effect``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from diagnoser.taxonomy import Action, Category, FailureType, Outcome

JOB_ID = r"^[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,199}$"
"""What a job may be called: what schedulers make, and what fits into one part of a URL."""

NODE_SOURCES = frozenset({"kernel", "dmesg", "syslog", "scheduler"})
"""Sources whose lines speak of a node: sent without a job they belong to it, and to no attempt."""

NODE_LOG = "~node/"


CLEAN_RUNS = "~runs/"
"""Before the name of a job family: what its clean runs print is stored under it."""


def node_log_id(cluster: str, node: str) -> str:
    """Under which name the log of a node is stored: no job can have it. Short and full host names are one node."""
    short = node if node.replace(".", "").isdecimal() else node.partition(".")[0]
    return f"{NODE_LOG}{cluster}/{short}"


# --- what comes in -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Stream:
    """Where lines come from. A stream belongs to one attempt; its lines are numbered from 1.

    ``node`` is "" and ``rank`` is -1 where the shipper did not say: the lines' own prefixes may still tell.
    """

    source: str = "stdout"
    node: str = ""
    rank: int = -1


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of one stream.

    data: the lines, split by ``\\n`` only; a last line without ``\\n`` counts as whole.
    first: number of the first line in its stream (1-based).
    times: one time a line (seconds since the epoch, NaN where unknown), or None when the format carries none.
    received: when the block arrived (seconds since the epoch).
    """

    stream: Stream
    data: bytes
    first: int = 1
    times: tuple[float, ...] | None = None
    received: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class Anchor:
    """A literal that every line a rule can match carries. fatal: the rule names a root, so the line may end the run.

    Digits in ``text`` are ignored by the gate: it looks at digit-free skeletons.
    """

    text: str
    fatal: bool = False


# --- what the compressor keeps -----------------------------------------------------------------------------------


class Mark(IntEnum):
    """Why a line is kept verbatim; the highest one that holds."""

    CONTEXT = 1  # near a line that matters
    SAMPLE = 2  # one of the few samples of a routine template
    EDGE = 3  # among the first or last lines of its stream or rank
    NOVEL = 4  # rare shape
    SEVERITY = 5  # says itself that it is an error or a warning
    TRACEBACK = 6  # part of a traceback or of a native stack
    ANCHOR = 7  # carries a rule's anchor


@dataclass(frozen=True, slots=True)
class Line:
    """One kept line.

    number: 1-based in its stream.
    text: as it came, decoded; very long lines are cut in the middle with the cut counted in the text.
    body: without terminal codes and without launcher prefixes (``12: ``, ``[default0]:``, ``[rank12]:``, pod, host).
    rank, node: from the prefixes, else from the stream; -1 and "" when unknown.
    time: from the record or parsed from the line, else the time the block was received; 0.0 when unknown.
    task: the number that ``srun --label`` put in front; it is also the rank only where each task is one rank.
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
    checkpoint: path or name of a checkpoint that this line says was saved, else "".
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


@dataclass(frozen=True, slots=True)
class Phase:
    """A stage of the run as the log shows it: its first line (stream, line) and its last (last_stream, last)."""

    stage: Stage
    stream: Stream
    line: int
    last_stream: Stream
    last: int


@dataclass(frozen=True, slots=True)
class Template:
    """Routine lines of one shape. first, last: (stream, number). ranks: those that printed it (may be empty)."""

    text: str
    count: int
    first: tuple[Stream, int]
    last: tuple[Stream, int]
    ranks: frozenset[int]
    samples: tuple[str, ...]
    filtered_by: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a reader of the evidence does not see: the service never hides that it cut."""

    lines: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Compression:
    lines_in: int = 0
    bytes_in: int = 0
    lines_out: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that later stages see of a log.

    lines: in order of time (corrected), then stream, then number. ends: the last line number of each stream.
    rank_nodes: rank -> node as the log itself shows it.
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


# --- what the cluster says ---------------------------------------------------------------------------------------


class EventKind(StrEnum):
    STARTED = "started"
    HEARTBEAT = "heartbeat"
    CHECKPOINT = "checkpoint"
    EXIT = "exit"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True)
class Event:
    """Something the launcher or scheduler reports about an attempt. ``code`` and ``signal`` only with EXIT."""

    kind: EventKind
    time: float
    code: int | None = None
    signal: int | None = None
    step: int | None = None
    path: str = ""
    node: str = ""
    rank: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A training job as registered. An attempt is one launch of it."""

    id: str
    cluster: str = ""
    name: str = ""
    nodes: tuple[str, ...] = ()
    rank_nodes: Mapping[int, str] = field(default_factory=dict)
    framework: str = ""
    checkpoint_dir: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class AttemptKey:
    job: str
    number: int = 1


@dataclass(frozen=True, slots=True)
class Attempt:
    """One launch of a job.

    revision grows with every append and event; the attempt is dirty while ``revision > diagnosed``.
    fatal: time of the first line that looked fatal, ended: time of the event that ended it; None when there is none.
    """

    key: AttemptKey
    opened: float
    last_line: float = 0.0
    fatal: float | None = None
    ended: float | None = None
    revision: int = 0
    diagnosed: int = 0
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about an attempt beside its log.

    node_logs: node -> compressed parts of that node's own log, of about the time. failed: when the service first saw
    that it failed, and when it ended; zeros when not known. clean_runs: what earlier clean runs of the job's family
    print; None when nobody asked for a baseline.
    """

    job: Job = Job(id="")
    attempt: int = 1
    events: tuple[Event, ...] = ()
    node_logs: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    failed: tuple[float, float] = (0.0, 0.0)
    clean_runs: Sequence[bytes] | None = None


ENDS = frozenset({EventKind.EXIT, EventKind.CANCELLED, EventKind.PREEMPTED})
"""Events after which an attempt writes no more."""


# --- what comes out ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RootCause:
    """The line that shows the cause. rank, node, gpu are None when the log does not show them."""

    line: int
    text: str
    rank: int | None = None
    node: str | None = None
    gpu: str | None = None
    source: str = "stdout"


@dataclass(frozen=True, slots=True)
class Cited:
    line: int
    text: str
    why: str
    rank: int | None = None
    source: str = "stdout"


@dataclass(frozen=True, slots=True)
class Symptom:
    line: int
    text: str
    type: FailureType
    source: str = "stdout"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node that may be at fault. score in 0..1."""

    node: str
    score: float
    why: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that is not the root, and why."""

    line: int
    text: str
    type: FailureType
    why: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What should happen next, from the policy table. ``reason`` names the line of the table."""

    action: Action
    reason: str


@dataclass(frozen=True, slots=True)
class Grounds:
    """What the policy table looked at beside the verdict. hint: the action that the deciding rule asks for."""

    node_named: bool = False
    stable: bool = False
    hint: Action | None = None


@dataclass(frozen=True, slots=True)
class Rollback:
    """Where a diverged run should go on. checkpoint: path or name of the last one before the spike, "" when unknown;
    step: the step it was saved at. skip_from, skip_to: steps whose data batches are left out, both included."""

    checkpoint: str = ""
    step: int | None = None
    skip_from: int | None = None
    skip_to: int | None = None


@dataclass(frozen=True, slots=True)
class ModelUse:
    """How the language model took part. ``failure`` is a ``ModelFailure`` value when it gave no usable answer.

    calls, tokens and seconds are those of the whole consultation. temperature: of the sampling.
    """

    model: str
    prompt: str
    prompt_hash: str
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    failure: str = ""
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on one attempt: what `diagnoser diagnose --json` prints and the API serves."""

    outcome: Outcome
    category: Category
    type: FailureType
    confidence: float
    decided_by: str
    root_cause: RootCause | None = None
    evidence: tuple[Cited, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    nodes: tuple[Suspect, ...] = ()
    recovery: Advice = Advice(Action.NONE, "")
    mitigation: str = ""
    notes: tuple[str, ...] = ()
    left_out: LeftOut = LeftOut()
    compression: Compression = Compression()
    ruleset: str = ""
    model: ModelUse | None = None
    grounds: Grounds = Grounds()
    step: int | None = None  # the last training step that the log shows
    rollback: Rollback | None = None  # only when the loss diverged


class Mode(StrEnum):
    """How far an action may go by itself."""

    OBSERVE = "observe"
    APPROVE = "approve"
    ACT = "act"


class PlanState(StrEnum):
    ADVISED = "advised"  # shown only: observe mode, or a person is to act
    WAITING = "waiting"  # needs a person's approval
    SENT = "sent"  # handed to the outbox, and free to be claimed by an executor
    REACHED = "reached"
    NOT_REACHED = "not_reached"
    HELD = "held"  # the rails keep it from acting; the reason says which
    SUPERSEDED = "superseded"  # a later diagnosis of the same failure planned something else
    REFUSED = "refused"
    EXPIRED = "expired"


class PlanReason(StrEnum):
    """Why a plan stands as it does, also when nothing is done."""

    OBSERVE = "observe_only"  # the mode of its row
    NEEDS_APPROVAL = "needs_approval"
    ACT = "may_act"
    FOR_A_PERSON = "for_a_person"  # only a person can repair it
    SAME_STEP = "same_failure_at_same_step"  # another launch would end there again
    RETRIES_SPENT = "retries_spent"
    NODE_AGAIN = "node_fails_again"  # the same failure on the same node, more often than allowed
    REQUEUE_CAP = "requeue_cap"  # too many launches on this cluster within an hour
    WRONG_EVICTION = "wrong_eviction"  # it failed again right after a node was taken out
    BREAKER = "breaker_open"
    PERSON_HANDLES_NODE = "person_handles_node"
    APPROVED = "approved"
    REFUSED = "refused"
    EXPIRED = "expired"
    LATER_DIAGNOSIS = "later_diagnosis"
    REACHED = "reached"
    NOT_REACHED = "not_reached"


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of a plan's history. by: a person, an executor, or "diagnoser"."""

    time: float
    state: PlanState
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class Step:
    """One command that an executor ran. exit_code is None when it could not be started. time: 0.0 when not given."""

    command: str
    exit_code: int | None
    output: str = ""
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanLease:
    """Who carries a plan out. The token proves it; it stays after the end, so that a repeated report is known."""

    executor: str
    token: str
    until: float


@dataclass(frozen=True, slots=True)
class PairResult:
    """How the all-gather of one group of nodes went. seconds: how long it took."""

    nodes: tuple[str, ...]
    ok: bool
    seconds: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """What a node check found. shared_cause: all groups failed, so that no node can be told from another."""

    faulty: tuple[str, ...] = ()
    stragglers: tuple[str, ...] = ()
    shared_cause: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """State of a node check. groups: of the round that runs; results: those of them that are known.

    healthy: proven so, fastest first. open: nodes that still need a group. seconds: fastest passing time of each node.
    """

    nodes: tuple[str, ...]
    round: int
    groups: tuple[tuple[str, ...], ...]
    results: tuple[PairResult, ...] = ()
    healthy: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    faulty: tuple[str, ...] = ()
    stragglers: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    usual: float = 0.0
    verdict: CheckVerdict | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Desired state after a failure.

    key: the same for the same attempt, action and nodes, so that nothing is done twice. reason: a ``PlanReason``.
    row: id of the policy row. family, fingerprint: what the retry ledger counts by. progress: (what is measured, how
    far the attempt came), so that only equal measures are compared. not_before: end of a cool-down.
    """

    id: str
    key: str
    job: str
    attempt: int
    action: Action
    nodes: tuple[str, ...]
    mode: Mode
    state: PlanState
    reason: str
    created: float
    expires: float
    row: str = ""
    cluster: str = ""
    partition: str = ""
    diagnosis: str = ""
    family: str = ""
    fingerprint: str = ""
    progress: tuple[str, float] = ("", 0.0)
    not_before: float = 0.0
    suspects: tuple[str, ...] = ()
    rollback: Rollback | None = None
    history: tuple[Change, ...] = ()
    steps: tuple[Step, ...] = ()
    drained: tuple[str, ...] = ()
    requeued: str = ""
    lease: PlanLease | None = None
    check: NodeCheck | None = None


class NodeEventKind(StrEnum):
    CORDONED = "cordoned"
    UNCORDONED = "uncordoned"
    DOWN = "down"
    RESUMED = "resumed"


class NodeActor(StrEnum):
    PERSON = "person"
    DIAGNOSER = "diagnoser"


@dataclass(frozen=True, slots=True)
class NodeMark:
    """What last happened to a node. feedback: what a person's action says about ours, "" for nothing."""

    cluster: str
    node: str
    kind: NodeEventKind
    by: NodeActor
    time: float
    reason: str = ""
    feedback: str = ""


@dataclass(frozen=True, slots=True)
class BreakerState:
    """A tripped breaker lets plans of its scope act only after approval, until a person resets it."""

    scope: str
    tripped: bool
    time: float
    reason: str = ""
    by: str = "diagnoser"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the rails look at when they decide about a plan; read under the lock of its cluster.

    past: plans of the cluster's last day, of the same failure, and of the same attempt; oldest first. marks: the last
    event of each node that has one. fleet: scope -> number of nodes that are known. open: tripped scopes.
    """

    past: tuple[Plan, ...] = ()
    marks: Mapping[str, NodeMark] = field(default_factory=dict)
    fleet: Mapping[str, int] = field(default_factory=dict)
    open: frozenset[str] = frozenset()


class EffectKind(StrEnum):
    RECOVERY = "recovery"
    SLACK = "slack"


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that must leave the service. ``key`` is unique: an effect that was decided twice is sent once."""

    key: str
    kind: EffectKind
    target: str
    body: bytes
    created: float
    expires: float


@dataclass(frozen=True, slots=True)
class Ruling:
    """What follows from a decision about a plan; stored in one transaction. others: further plans that change."""

    plan: Plan | None
    others: tuple[Plan, ...] = ()
    effects: tuple[Effect, ...] = ()
    trips: tuple[BreakerState, ...] = ()
    marks: tuple[NodeMark, ...] = ()


# --- what people say about a verdict -----------------------------------------------------------------------------


class FeedbackVerdict(StrEnum):
    CONFIRMED = "confirmed"
    CORRECTED = "corrected"


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a person says about a diagnosis. type, root_line, node: what is right, None where the machine was.

    The newest one counts; the others stay as history.
    """

    id: str
    diagnosis: str
    created: float
    verdict: FeedbackVerdict
    by: str
    type: FailureType | None = None
    root_line: int | None = None
    node: str | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Signature:
    """What is told of a failure to find it again, without what differs from run to run.

    message: root line, or the lines that complain. chain: types, root first. frames: innermost first.
    """

    message: str = ""
    chain: str = ""
    frames: str = ""

    @property
    def text(self) -> str:
        return "\n".join(part for part in (self.message, self.chain, self.frames) if part)


@dataclass(frozen=True, slots=True)
class Incident:
    """A failure whose cause a person confirmed. type ``unknown``: nothing can be learned from it (any more).

    done: what was done about it, in words. vectors: name of what made it -> little-endian float32.
    """

    diagnosis: str
    attempt: AttemptKey
    created: float
    changed: float
    type: FailureType
    verdict: FeedbackVerdict
    by: str
    signature: Signature
    line: str = ""
    done: str = ""
    comment: str = ""
    vectors: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Similar:
    """A confirmed incident and how near it is: 1 is the same."""

    incident: Incident
    score: float
