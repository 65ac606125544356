"""Bodies of the API's answers. The model's classes are shown as they are; times become ISO 8601."""

from collections.abc import Mapping
from typing import Self

from pydantic import Field

from diagnoser.model import (
    Advice,
    AskReason,
    Attempt,
    CheckpointPhase,
    Compression,
    DecisionBasis,
    EventKind,
    EvidenceLine,
    FeedbackVerdict,
    HangFindings,
    Incident,
    IncidentState,
    Job,
    LeftOut,
    Mode,
    ModelUse,
    NodeActor,
    NodeEventKind,
    Plan,
    PlanState,
    Precedent,
    ProofKind,
    QueryResult,
    Rejected,
    Rival,
    Rollback,
    RootCause,
    RunStatus,
    Stage,
    Stream,
    Suspect,
    Symptom,
)
from diagnoser.model.queries import AttemptState, AttemptSummary
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.web.api.params import Moment, MomentIfSet
from diagnoser.web.http.routing import Answer


class ChangeShape(Answer):
    """One entry of a plan's history."""

    time: Moment
    state: PlanState
    by: str
    why: str


class StepShape(Answer):
    """One command that an executor ran; exit_code is null when it could not be started."""

    command: str
    exit_code: int | None
    output: str


class ProofShape(Answer):
    """Why a node may be taken out. ``source``: of the line, or the query that was asked; ``by``: the person, if any."""

    node: str
    kind: ProofKind
    source: str
    text: str
    line: int
    time: MomentIfSet
    by: str


class PlanShape(Answer):
    """A recovery plan and its progress. ``reason``: why it is in its state, from a closed list; ``row``: the row of
    the policy table; ``proofs``: what says that its nodes are at fault; ``queries``: what suspects were asked."""

    id: str
    key: str
    job: str
    attempt: int
    cluster: str
    tenant: str
    action: Action
    nodes: tuple[str, ...]
    mode: Mode
    state: PlanState
    reason: str
    row: str
    created: Moment
    expires: Moment
    diagnosis: str
    rollback: Rollback | None
    drained: tuple[str, ...]
    requeued: str
    executor: str
    history: list[ChangeShape]
    steps: list[StepShape]
    proofs: list[ProofShape]
    queries: list[QueryResult]

    @classmethod
    def from_plan(cls, plan: Plan) -> Self:
        executor = ""
        queries: tuple[QueryResult, ...] = ()
        if plan.lease:
            executor = plan.lease.executor
        if plan.check:
            queries = plan.check.queries
        return cls.filled_from(plan, executor=executor, queries=queries)


class NodeShape(Answer):
    """The last event of a node. feedback: what a person's act says about an earlier plan."""

    cluster: str
    node: str
    kind: NodeEventKind
    by: NodeActor
    time: Moment
    reason: str
    feedback: str


class BreakerShape(Answer):
    """A breaker; ``scope`` is a cluster or ``cluster:partition``."""

    scope: str
    tripped: bool
    time: MomentIfSet
    reason: str
    by: str


class FeedbackShape(Answer):
    """Feedback of a person on a diagnosis; null: the original value stands. ``root_stream``: the stream that the line
    is of, null where only its number was given and several streams have it."""

    id: str
    time: Moment = Field(validation_alias="created")
    by: str
    verdict: FeedbackVerdict
    type: FailureType | None
    root_line: int | None
    root_stream: Stream | None
    node: str | None
    rank: int | None
    comment: str


class DiagnosisShape(Answer):
    """The verdict on one attempt. ``current`` is false once a later one of the same attempt replaced it.

    ``correction``: what a person says is right; the verdict itself stays as it was. ``feedback``: everything that
    people said, the newest first. ``precedent``: the judged failure that decided this one, and what the rules say.
    """

    id: str
    job: str
    attempt: int
    created: Moment
    current: bool
    url: str
    correction: FeedbackShape | None
    feedback: list[FeedbackShape]
    outcome: Outcome
    category: Category
    type: FailureType
    confidence: float
    decided_by: str
    root_cause: RootCause | None
    evidence: tuple[EvidenceLine, ...]
    symptoms: tuple[Symptom, ...]
    rejected: tuple[Rejected, ...]
    nodes: tuple[Suspect, ...]
    recovery: Advice
    plan: PlanShape | None
    mitigation: str
    notes: tuple[str, ...]
    left_out: LeftOut
    compression: Compression
    ruleset: str
    policy: str
    model: ModelUse | None
    grounds: DecisionBasis
    step: int | None
    rollback: Rollback | None
    proofs: list[ProofShape]
    new_lines: tuple[EvidenceLine, ...]
    clean_runs: int
    doubts: tuple[AskReason, ...]
    needs_review: str
    hang: HangFindings | None
    rivals: tuple[Rival, ...]
    precedent: Precedent | None

    @classmethod
    def from_record(cls, record: DiagnosisRecord, base_url: str) -> Self:
        feedback = record.feedback
        correction = plan = None
        if feedback and feedback[0].verdict is FeedbackVerdict.CORRECTED:
            correction = feedback[0]
        if record.plan:
            plan = PlanShape.from_plan(record.plan)
        return cls.filled_from(
            record.diagnosis,
            id=record.id,
            job=record.attempt.job,
            attempt=record.attempt.number,
            created=record.created,
            current=record.current,
            url=f"{base_url}/diagnoses/{record.id}",
            correction=correction,
            feedback=feedback,
            plan=plan,
        )


class DiagnosisPage(Answer):
    """Newest first. ``next`` is the cursor of the following page, null on the last one."""

    items: list[DiagnosisShape]
    next: str | None


class IncidentChangeShape(Answer):
    """One entry of an incident's history: the state and the assignee since then, who changed them, and why."""

    time: Moment
    state: IncidentState
    by: str
    assignee: str
    comment: str


class IncidentShape(Answer):
    """Failures that one cause explains, or that one node caused. ``node`` is empty where what they printed groups them,
    and where several nodes of one ``place`` failed within minutes: then ``nodes`` names them.

    category, type, line, diagnosis: of the newest failure. failures: attempts; jobs: how many jobs these are of.
    """

    id: str
    cluster: str
    node: str
    place: str
    nodes: list[str]
    category: Category
    type: FailureType
    line: str
    diagnosis: str
    first_seen: Moment
    last_seen: Moment
    failures: int
    jobs: int
    state: IncidentState
    assignee: str
    escalated: MomentIfSet
    muted_until: MomentIfSet
    history: list[IncidentChangeShape]
    url: str

    @classmethod
    def from_incident(cls, incident: Incident, base_url: str) -> Self:
        return cls.filled_from(incident, url=f"{base_url}/incidents/{incident.id}")


class IncidentPage(Answer):
    """The one with the newest failure first. ``next`` is the cursor of the following page, null on the last one."""

    items: list[IncidentShape]
    next: str | None


class EventShape(Answer):
    """An event that the launcher, the scheduler or the job reported. ``phase`` and what follows it: of a checkpoint;
    ``reason`` then says why it is bad. Of a start, ``reason`` says why the launch waited since ``submitted``."""

    kind: EventKind
    time: Moment
    code: int | None
    signal: int | None
    step: int | None
    path: str
    node: str
    rank: int | None
    reason: str
    phase: CheckpointPhase | None
    blocked_ms: float | None
    bytes: int | None
    finite: bool | None
    just_in_time: bool
    submitted: MomentIfSet
    time_limit: float | None


class AttemptShape(Answer):
    """One launch of a job. ``fatal``: time of the first line that looked fatal."""

    number: int
    opened: Moment
    last_line: MomentIfSet
    fatal: MomentIfSet
    ended: MomentIfSet
    events: list[EventShape]
    diagnosis: DiagnosisShape | None

    @classmethod
    def from_attempt(cls, attempt: Attempt, record: DiagnosisRecord | None, base_url: str) -> Self:
        diagnosis = DiagnosisShape.from_record(record, base_url) if record else None
        return cls.filled_from(attempt, number=attempt.key.number, diagnosis=diagnosis)


class VerdictShape(Answer):
    """The current diagnosis of an attempt in short."""

    id: str
    outcome: Outcome
    category: Category
    type: FailureType
    url: str

    @classmethod
    def from_attempt(cls, attempt: AttemptSummary, base_url: str) -> Self | None:
        """None where the attempt has no diagnosis yet."""
        if not attempt.diagnosis:
            return None
        return cls.filled_from(attempt, id=attempt.diagnosis, url=f"{base_url}/diagnoses/{attempt.diagnosis}")


class RunShape(Answer):
    """One launch of a job, and where it stands. What its newest lines do not say is null; so is all of it once the
    launch has ended.

    heard: when it last printed, else when it began. step_seconds: of one step. ends: when the last step will be done at
    this speed. last_text: its newest line, cut to 300 characters.
    """

    job: str
    attempt: int
    state: AttemptState
    opened: Moment
    heard: Moment
    ended: MomentIfSet
    stage: Stage | None
    step: int | None
    total_steps: int | None
    loss: float | None
    step_seconds: float | None
    tokens_per_second: float | None
    ends: MomentIfSet
    last_text: str | None
    verdict: VerdictShape | None
    url: str

    @classmethod
    def from_attempt(
        cls, attempt: AttemptSummary, status: RunStatus | None, silent_since: float, base_url: str
    ) -> Self:
        known = status or RunStatus()
        return cls.filled_from(
            known,
            job=attempt.key.job,
            attempt=attempt.key.number,
            state=attempt.state(silent_since),
            opened=attempt.opened,
            heard=attempt.heard,
            ended=attempt.ended,
            total_steps=known.total,
            last_text=known.last_line or None,
            verdict=VerdictShape.from_attempt(attempt, base_url),
            url=f"{base_url}/jobs/{attempt.key.job}",
        )


class RunPage(Answer):
    """``next`` is the cursor of the following page, null on the last one."""

    items: list[RunShape]
    next: str | None


class JobShape(Answer):
    id: str
    cluster: str
    name: str
    nodes: tuple[str, ...]
    rank_nodes: Mapping[int, str]
    framework: str
    checkpoint_dir: str
    tenant: str
    labels: Mapping[str, str]
    created: MomentIfSet
    url: str

    @classmethod
    def from_job(cls, job: Job, base_url: str, **values: object) -> Self:
        return cls.filled_from(job, url=f"{base_url}/jobs/{job.id}", **values)


class JobPage(JobShape):
    """A job with its attempts, oldest first, each with its current diagnosis."""

    attempts: list[AttemptShape]

    @classmethod
    def from_attempts(
        cls, job: Job, attempts: list[Attempt], diagnoses: Mapping[int, DiagnosisRecord], base_url: str
    ) -> Self:
        shapes = [AttemptShape.from_attempt(entry, diagnoses.get(entry.key.number), base_url) for entry in attempts]
        return cls.from_job(job, base_url, attempts=shapes)
