"""What the cluster says of a job."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from diagnoser.model.baseline import Baseline
from diagnoser.model.diagnosis import EarlierHang
from diagnoser.model.hangs import RuntimeFile
from diagnoser.model.lines import Provenance
from diagnoser.model.node_alerts import NodeAlert
from diagnoser.model.plans import NodeEvent

DEFAULT_CLUSTER = "default"
"""Name of the cluster of jobs that do not name theirs."""


class EventKind(StrEnum):
    STARTED = "started"
    HEARTBEAT = "heartbeat"
    CHECKPOINT = "checkpoint"
    EXIT = "exit"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    SUSPENDED = "suspended"  # it does nothing, and holds its nodes, until it is resumed
    RESUMED = "resumed"


class CheckpointPhase(StrEnum):
    """How far a checkpoint came, as the job reports it. Each outweighs those before it."""

    STAGED = "staged"  # copied, while training goes on; not written out yet
    DURABLE = "durable"  # written out completely
    VERIFIED = "verified"  # read back, and its checksums hold
    BAD = "bad"  # incomplete, or its checksums do not hold


@dataclass(frozen=True, slots=True)
class Event:
    """Something the launcher, the scheduler or the job itself reports about an attempt. ``code`` and ``signal`` only
    with EXIT; ``step``, ``path`` and the fields from ``phase`` to ``just_in_time`` only with CHECKPOINT; ``submitted``
    and ``time_limit`` only with STARTED, whose ``reason`` is why the launch waited.

    phase: None where the job names none, which means that the checkpoint is saved. blocked_ms: for how long training
    stood still for it. finite: whether loss and weights were when it was saved. just_in_time: saved because the job was
    about to end. submitted: when the launch was put into the queue. time_limit: seconds that it may run.
    """

    kind: EventKind
    time: float
    code: int | None = None
    signal: int | None = None
    step: int | None = None
    path: str = ""
    node: str = ""
    rank: int | None = None
    reason: str = ""
    provenance: Provenance = Provenance.JOB
    phase: CheckpointPhase | None = None
    blocked_ms: float | None = None
    bytes: int | None = None
    finite: bool | None = None
    just_in_time: bool = False
    submitted: float | None = None
    time_limit: float | None = None

    @property
    def waited(self) -> float | None:
        """Seconds in the queue, of a start whose scheduler says when the launch was submitted."""
        if self.submitted is None:
            return None
        return max(0.0, self.time - self.submitted)

    @property
    def is_clean_end(self) -> bool:
        """Whether it says that the whole attempt ended well; the exit of a single rank does not."""
        if self.signal:
            return False
        return (self.kind, self.code, self.rank) == (EventKind.EXIT, 0, None)


@dataclass(frozen=True, slots=True)
class Job:
    """A training job as registered. An attempt is one launch of it.

    tenant: whom the scheduler knows the job to belong to (a user, a namespace), as an agent told; empty when none did.
    registered: an agent told of it, so that it also tells how each launch ends.
    """

    id: str
    cluster: str = ""
    name: str = ""
    nodes: tuple[str, ...] = ()
    rank_nodes: Mapping[int, str] = field(default_factory=dict)
    framework: str = ""
    checkpoint_dir: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0
    tenant: str = ""
    registered: bool = False


_OF_TENANT = "~of~"
"""Between an id and the tenant whose own it is: no id holds it, and no log is likely to."""


def own_job_id(job: str, tenant: str) -> str:
    """The name in the store of what a tenant's token says under an id that no agent registered for that tenant. No
    request can choose it: an id of a job holds no ``~``. Answers to the tenant have the id alone."""
    return f"{job}{_OF_TENANT}{tenant}"


def spoken_job_id(job: str) -> str:
    """The id as its tenant says it."""
    return job.partition(_OF_TENANT)[0] or job


def is_made_by_agent(job: str, cluster: str) -> bool:
    """Whether the id has the form of those that the agent of a cluster makes: a word, the cluster, and what the
    scheduler calls the job, with the same separator between them."""
    head = re.match(r"[A-Za-z0-9]+([-:])", job)
    return head is not None and job.startswith(f"{cluster}{head[1]}", head.end())


MAX_LEAP = 2_000_000_000
"""The highest number that attempts may leap to, so that the store has room for those that follow."""


@dataclass(frozen=True, slots=True, order=True)
class AttemptKey:
    job: str
    number: int = 1


@dataclass(frozen=True, slots=True)
class Attempt:
    """One launch of a job.

    revision grows with every append and event; the attempt is dirty while ``revision > diagnosed``.
    fatal: time of the first line that looked fatal, ended: time of the event that ended it; None when there is none.
    nodes: those that the scheduler gave it, as an agent told; empty when no agent did. first_step: when the line of its
    first training step came in, as its newest verdict read it; None where it is not known.
    """

    key: AttemptKey
    opened: float
    last_line: float = 0.0
    fatal: float | None = None
    ended: float | None = None
    revision: int = 0
    diagnosed: int = 0
    events: tuple[Event, ...] = ()
    nodes: tuple[str, ...] = ()
    first_step: float | None = None

    @property
    def failed(self) -> tuple[float, float]:
        """When its failure first showed, and when it ended; of one that is open, when its newest line came."""
        ended = self.last_seen
        return min(self.fatal or ended, ended), ended

    @property
    def is_suspended(self) -> bool:
        """Whether somebody has stopped it for a while, as the newest event about that says."""
        for event in reversed(self.events):
            if event.kind in (EventKind.SUSPENDED, EventKind.RESUMED):
                return event.kind is EventKind.SUSPENDED
        return False

    def heard(self, since: float) -> "Attempt":
        """The same, silent for no longer than since then, nor since it was resumed."""
        resumed = [event.time for event in self.events if event.kind is EventKind.RESUMED]
        return replace(self, last_line=max(self.last_line, since, *resumed))

    @property
    def last_seen(self) -> float:
        """When it ended; while it runs, when its newest line came in, 0.0 before the first."""
        return self.ended or self.last_line


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about an attempt beside its log.

    node_logs: node -> compressed parts of that node's own log, of about the time. failed: when the service first saw
    that it failed, and when it ended; zeros when not known. baseline: of the job's family, empty where no clean run is
    known. nodes: those that the scheduler gave the attempt, empty when not known. runtime: dumps of its ranks.
    last_line: when the newest line came in, 0.0 when not known. earlier_checkpoints: checkpoint events of the attempts
    before this one, an entry each, the oldest first. node_events: what agents told of ``nodes`` at about that time.
    hang: the verdict that stood when the attempt ended, where it was one of a hang. metrics: what was noteworthy about
    ``nodes`` at about that time, as the site's Prometheus has it.
    """

    job: Job = Job(id="")
    attempt: int = 1
    events: tuple[Event, ...] = ()
    node_logs: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    failed: tuple[float, float] = (0.0, 0.0)
    baseline: Baseline = field(default_factory=Baseline)
    nodes: tuple[str, ...] = ()
    runtime: tuple[RuntimeFile, ...] = ()
    last_line: float = 0.0
    earlier_checkpoints: tuple[tuple[Event, ...], ...] = ()
    node_events: tuple[NodeEvent, ...] = ()
    hang: EarlierHang | None = None
    metrics: tuple[NodeAlert, ...] = ()


ENDS = frozenset({EventKind.EXIT, EventKind.CANCELLED, EventKind.PREEMPTED})
"""Events after which an attempt writes no more."""


def stored_cluster(name: str) -> str:
    """Name the cluster under which nodes are stored. name: as jobs and requests give it, "" for the one cluster that
    need not be named."""
    return name or DEFAULT_CLUSTER


def cluster_of(job: Job | None) -> str:
    """Name the cluster of a job that may not be known, or may not name one."""
    return stored_cluster(job.cluster) if job else DEFAULT_CLUSTER
