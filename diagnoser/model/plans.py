"""Recovery plans, who carries them out and how far they are; and the messages that leave the service."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from diagnoser.model.diagnosis import NodeProof, Rollback
from diagnoser.model.hangs import HangLook
from diagnoser.model.taxonomy import Action, FailureType


class Mode(StrEnum):
    """How far an action may go without a person."""

    OBSERVE = "observe"
    APPROVE = "approve"
    ACT = "act"


class PlanState(StrEnum):
    ADVISED = "advised"  # shown only: observe mode, or a person is to act
    WAITING = "waiting"  # needs a person's approval
    SENT = "sent"  # handed to the outbox, and free to be claimed by an executor
    REACHED = "reached"
    NOT_REACHED = "not_reached"
    HELD = "held"  # a guardrail keeps it from acting; the reason says which
    SUPERSEDED = "superseded"  # a later diagnosis of the same failure planned something else
    REFUSED = "refused"
    EXPIRED = "expired"


class PlanReason(StrEnum):
    OBSERVE = "observe_only"  # the mode of its row
    NEEDS_APPROVAL = "needs_approval"
    ACT = "may_act"
    FOR_A_PERSON = "for_a_person"  # only a person can repair it
    SAME_STEP = "same_failure_at_same_step"  # another launch would end there again
    RETRIES_SPENT = "retries_spent"
    NODE_AGAIN = "node_fails_again"  # the same failure on the same node, more often than allowed
    ON_PROBATION = "node_on_probation"  # suspected again within a day after it was given back
    PLACE_FAILS = "place_fails"  # several nodes of one switch or rack within minutes: the place is checked once
    REQUEUE_CAP = "requeue_cap"  # too many launches on this cluster within an hour
    WRONG_EVICTION = "wrong_eviction"  # it failed again right after a node was taken out
    BREAKER = "breaker_open"
    PERSON_HANDLES_NODE = "person_handles_node"
    FOREIGN_NODE = "foreign_node"  # the scheduler did not give this node to the attempt
    ONE_LOOK = "one_look"  # it would end a launch that hangs: a second look at its ranks has to agree
    HANG_AGAIN = "hang_again"  # the job was launched again within the hour
    ALLOCATION_UNKNOWN = "allocation_unknown"  # no agent reported which nodes the scheduler gave the attempt
    UNPROVEN = "unproven"  # only the job's own text, or a check in its own image, speaks against the node
    SUSPECTED_AGAIN = "suspected_again"  # unproven, but another tenant's job suspected the same node
    BAD_CHECKPOINT = "bad_checkpoint"  # the checkpoint to go back to was reported bad after the plan was made
    TENANT_CAP = "tenant_cap"  # the tenant's share of launches or evictions is spent
    ATTEMPT_CLOSED = "attempt_closed"  # a person refused a plan for this attempt, or the job ran again and completed
    STILL_RUNNING = "still_running"  # the scheduler shows that the job runs, and the verdict is not a hang
    NOT_CONFIRMED = "not_confirmed"  # the node itself was asked, and does not confirm what its shipped log says
    APPROVED = "approved"
    TAKEN_BACK = "taken_back"  # a person took an approval or a refusal back: it waits again
    REFUSED = "refused"
    EXPIRED = "expired"
    LATER_DIAGNOSIS = "later_diagnosis"
    REACHED = "reached"
    NOT_REACHED = "not_reached"


@dataclass(frozen=True, slots=True)
class PlanChange:
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


class QueryState(StrEnum):
    """How far a query on a node is."""

    ASKED = "asked"
    PROVES = "proves"  # its answer proves that the node is at fault
    PROVES_NOTHING = "proves_nothing"
    NOT_AVAILABLE = "not_available"  # no such program, no rights, too slow, or nobody who can ask


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What one query on one node came to. text: the proving line, else an excerpt of the answer.

    exit_code: None when the command could not be started or took too long.
    """

    node: str
    query: str
    state: QueryState = QueryState.ASKED
    exit_code: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """State of a node check. groups: of the round that runs; results: those of them that are known.

    suspects: come first in every round. queries: on suspects, before the first round. types: of the failure; since: in
    logs of nodes, what is older has nothing to do with it.
    healthy: proven so, fastest first. open: nodes that still need a group. seconds: fastest passing time of each node.
    rounds: results of the rounds that are over, without what the groups printed; of large rounds those that failed
    first. vouched: whether all results so far are those of a program that the operator chose, where the job has no say.
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
    suspects: tuple[str, ...] = ()
    queries: tuple[QueryResult, ...] = ()
    types: tuple[FailureType, ...] = ()
    since: float = 0.0
    vouched: bool = True
    rounds: tuple[tuple[PairResult, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Desired state after a failure.

    key: the same for the same attempt, action and nodes, so that nothing is done twice. reason: a ``PlanReason``.
    row: id of the policy row. family, fingerprint: what the retry ledger counts by. progress: (what is measured, how
    far the attempt came), so that only equal measures are compared. not_before: end of a cool-down.
    tenant: whom the scheduler bills the job to. allocation: the nodes that the scheduler gave the attempt, empty where
    no agent told them. proofs: why each of ``nodes`` may be taken out. unproven_suspects: whom the job's own text
    blames, so that a person has to say what becomes of them where the node check proves nothing. incident: of the
    failure, "" in plans of earlier versions. look: at the ranks of a running attempt that hangs, by agents.
    relaunches: most launches after the same failure that the job's contract asks for, None where it does not say.
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
    history: tuple[PlanChange, ...] = ()
    steps: tuple[Step, ...] = ()
    drained: tuple[str, ...] = ()
    requeued: str = ""
    lease: PlanLease | None = None
    check: NodeCheck | None = None
    tenant: str = ""
    allocation: tuple[str, ...] = ()
    proofs: tuple[NodeProof, ...] = ()
    unproven_suspects: tuple[str, ...] = ()
    incident: str = ""
    look: HangLook | None = None
    relaunches: int | None = None

    def is_leased(self, now: float) -> bool:
        """Tell whether an executor works on the plan: its lease has not run out."""
        return self.lease is not None and self.lease.until > now

    @property
    def shown(self) -> str:
        """Its id and state of change, for a press that comes back: what a person approves is what they saw."""
        return f"{self.id}~{len(self.history)}"

    @property
    def unproven(self) -> tuple[str, ...]:
        """Nodes that it takes out and that nothing proves to be at fault."""
        proven = {proof.node for proof in self.proofs}
        return tuple(node for node in self.nodes if node not in proven)


class NodeEventKind(StrEnum):
    CORDONED = "cordoned"
    UNCORDONED = "uncordoned"
    DOWN = "down"
    RESUMED = "resumed"


class NodeActor(StrEnum):
    PERSON = "person"
    DIAGNOSER = "diagnoser"


@dataclass(frozen=True, slots=True)
class NodeEvent:
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
class ClusterHistory:
    """What the guardrails look at when they decide on a plan; read under the lock of its cluster.

    past: plans of the cluster's last day, those of its last week with the same failure or the same first suspect, and
    those of the same job; oldest first. marks: the last event of each node that has one. fleet: scope -> number of
    nodes that are known. open: tripped scopes. completed: number of the newest attempt of the plan's job that ended
    well, 0 for none. places: of each node of the cluster that has some.
    """

    past: tuple[Plan, ...] = ()
    marks: Mapping[str, NodeEvent] = field(default_factory=dict)
    fleet: Mapping[str, int] = field(default_factory=dict)
    open: frozenset[str] = frozenset()
    completed: int = 0
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class MessageKind(StrEnum):
    RECOVERY = "recovery"
    ALERT = "alert"
    ANSWER = "slack"  # to a person who pressed a button in an alert; the first channel with buttons gave the name


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """Something that must leave the service. ``key`` is unique: a message that was decided twice is sent once."""

    key: str
    kind: MessageKind
    target: str
    body: bytes
    created: float
    expires: float


@dataclass(frozen=True, slots=True)
class TransitionResult:
    """What follows from a decision about a plan; written in one transaction.

    others: further plans that change. before: the plan as it stood, filled in by the store that wrote the result.
    """

    plan: Plan | None
    others: tuple[Plan, ...] = ()
    messages: tuple[OutboxMessage, ...] = ()
    trips: tuple[BreakerState, ...] = ()
    node_events: tuple[NodeEvent, ...] = ()
    before: Plan | None = None

    @property
    def reasons(self) -> list[str]:
        """The reason of each plan whose state or reason changed, for the counter of transitions."""
        changed = [plan for plan in self.others if plan.state is PlanState.SUPERSEDED]
        if self.plan and self.before and self._has_changed(self.plan, self.before):
            changed.append(self.plan)
        return [plan.reason for plan in changed]

    @staticmethod
    def _has_changed(plan: Plan, before: Plan) -> bool:
        if plan.id != before.id:
            return False
        if not before.history:  # nothing had happened to it: it was not stored before
            return True
        return (plan.state, plan.reason) != (before.state, before.reason)


PlanUpdate = Callable[[Plan], TransitionResult]
"""Decides what becomes of a plan. Pure: the store calls it inside the transaction that writes the result."""

PlanTransition = Callable[[Plan, ClusterHistory], TransitionResult]
"""Decides what becomes of a plan, given what happened on its cluster. Pure, as above."""

ClaimTransition = Callable[[Plan, Collection[str]], TransitionResult]
"""Decides whether an executor gets a plan, given the nodes that the scheduler gave its attempt. Pure, as above."""


@dataclass(frozen=True, slots=True)
class DueMessage:
    """A lease on a message. tries: how often it was claimed for sending, this time included."""

    message: OutboxMessage
    tries: int
    token: str


@dataclass(frozen=True, slots=True)
class OutboxRecord:
    """The state of a message. state: pending, sent, dead (gave up), expired, withheld (on purpose). error: why."""

    message: OutboxMessage
    state: str
    tries: int
    due: float
    error: str = ""
