"""Bodies of the API's answers. The model's classes are shown as they are; times become ISO 8601."""

from collections.abc import Mapping
from datetime import datetime

from diagnoser.model import (
    Advice,
    AskReason,
    Attempt,
    BreakerState,
    CheckpointPhase,
    Compression,
    DecisionBasis,
    Event,
    EventKind,
    EvidenceLine,
    Feedback,
    FeedbackVerdict,
    HangFindings,
    Incident,
    IncidentState,
    Job,
    LeftOut,
    Mode,
    ModelUse,
    NodeActor,
    NodeEvent,
    NodeEventKind,
    NodeProof,
    Plan,
    PlanState,
    ProofKind,
    QueryResult,
    QueryState,
    Rejected,
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
from diagnoser.web.api.params import utc
from diagnoser.web.http.routing import Schema


class ChangeShape(Schema):
    """One entry of a plan's history."""

    time: datetime
    state: PlanState
    by: str
    why: str


class StepShape(Schema):
    """One command that an executor ran; exit_code is null when it could not be started."""

    command: str
    exit_code: int | None
    output: str


class RollbackShape(Schema):
    """Checkpoint to continue from, and the steps whose data batches to skip (both ends included). ``verified``: whether
    the job reported that it read the checkpoint back and its checksums held."""

    checkpoint: str
    step: int | None
    skip_from: int | None
    skip_to: int | None
    verified: bool


class ProofShape(Schema):
    """Why a node may be taken out. ``source``: of the line, or the query that was asked; ``by``: the person, if any."""

    node: str
    kind: ProofKind
    source: str
    text: str
    line: int
    time: datetime | None
    by: str


class QueryResultShape(Schema):
    """What the node check asked a suspected node. ``text``: the line that proves a fault, else part of the answer."""

    node: str
    query: str
    state: QueryState
    exit_code: int | None
    text: str


class PlanShape(Schema):
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
    created: datetime
    expires: datetime
    diagnosis: str
    rollback: RollbackShape | None
    drained: tuple[str, ...]
    requeued: str
    executor: str
    history: list[ChangeShape]
    steps: list[StepShape]
    proofs: list[ProofShape]
    queries: list[QueryResultShape]


class NodeShape(Schema):
    """The last event of a node. feedback: what a person's act says about an earlier plan."""

    cluster: str
    node: str
    kind: NodeEventKind
    by: NodeActor
    time: datetime
    reason: str
    feedback: str


class BreakerShape(Schema):
    """A breaker; ``scope`` is a cluster or ``cluster:partition``."""

    scope: str
    tripped: bool
    time: datetime | None
    reason: str
    by: str


class FeedbackShape(Schema):
    """Feedback of a person on a diagnosis; null: the original value stands. ``root_stream``: the stream that the line
    is of, null where only its number was given and several streams have it."""

    id: str
    time: datetime
    by: str
    verdict: FeedbackVerdict
    type: FailureType | None
    root_line: int | None
    root_stream: Stream | None
    node: str | None
    rank: int | None
    comment: str


class DiagnosisShape(Schema):
    """The verdict on one attempt. ``current`` is false once a later one of the same attempt replaced it.

    ``correction``: what a person says is right; the verdict itself stays as it was. ``feedback``: everything that
    people said, the newest first.
    """

    id: str
    job: str
    attempt: int
    created: datetime
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
    rollback: RollbackShape | None
    proofs: list[ProofShape]
    new_lines: tuple[EvidenceLine, ...]
    clean_runs: int
    doubts: tuple[AskReason, ...]
    needs_review: str
    hang: HangFindings | None


class DiagnosisPage(Schema):
    """Newest first. ``next`` is the cursor of the following page, null on the last one."""

    items: list[DiagnosisShape]
    next: str | None


class IncidentChangeShape(Schema):
    """One entry of an incident's history: the state and the assignee since then, who changed them, and why."""

    time: datetime
    state: IncidentState
    by: str
    assignee: str
    comment: str


class IncidentShape(Schema):
    """Failures that one cause explains, or that one node caused. ``node`` is empty where what they printed groups them.

    category, type, line, diagnosis: of the newest failure. failures: attempts; jobs: how many jobs these are of.
    """

    id: str
    cluster: str
    node: str
    category: Category
    type: FailureType
    line: str
    diagnosis: str
    first_seen: datetime
    last_seen: datetime
    failures: int
    jobs: int
    state: IncidentState
    assignee: str
    history: list[IncidentChangeShape]
    url: str


class IncidentPage(Schema):
    """The one with the newest failure first. ``next`` is the cursor of the following page, null on the last one."""

    items: list[IncidentShape]
    next: str | None


class EventShape(Schema):
    """An event that the launcher, the scheduler or the job reported. ``phase`` and what follows it: of a checkpoint;
    ``reason`` then says why it is bad."""

    kind: EventKind
    time: datetime
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


class AttemptShape(Schema):
    """One launch of a job. ``fatal``: time of the first line that looked fatal."""

    number: int
    opened: datetime
    last_line: datetime | None
    fatal: datetime | None
    ended: datetime | None
    events: list[EventShape]
    diagnosis: DiagnosisShape | None


class VerdictShape(Schema):
    """The current diagnosis of an attempt in short."""

    id: str
    outcome: Outcome
    category: Category
    type: FailureType
    url: str


class RunShape(Schema):
    """One launch of a job, and where it stands. What its newest lines do not say is null; so is all of it once the
    launch has ended.

    heard: when it last printed, else when it began. step_seconds: of one step. ends: when the last step will be done at
    this speed. last_text: its newest line, cut to 300 characters.
    """

    job: str
    attempt: int
    state: AttemptState
    opened: datetime
    heard: datetime
    ended: datetime | None
    stage: Stage | None
    step: int | None
    total_steps: int | None
    loss: float | None
    step_seconds: float | None
    tokens_per_second: float | None
    ends: datetime | None
    last_text: str | None
    verdict: VerdictShape | None
    url: str


class RunPage(Schema):
    """``next`` is the cursor of the following page, null on the last one."""

    items: list[RunShape]
    next: str | None


class JobShape(Schema):
    id: str
    cluster: str
    name: str
    nodes: tuple[str, ...]
    rank_nodes: Mapping[int, str]
    framework: str
    checkpoint_dir: str
    tenant: str
    labels: Mapping[str, str]
    created: datetime | None
    url: str


class JobPage(JobShape):
    """A job with its attempts, oldest first, each with its current diagnosis."""

    attempts: list[AttemptShape]


def of_diagnosis(record: DiagnosisRecord, base_url: str) -> DiagnosisShape:
    verdict, feedback = record.diagnosis, [of_feedback(entry) for entry in record.feedback]
    return DiagnosisShape(
        id=record.id,
        job=record.attempt.job,
        attempt=record.attempt.number,
        created=utc(record.created),
        current=record.current,
        url=f"{base_url}/diagnoses/{record.id}",
        correction=feedback[0] if feedback and feedback[0].verdict is FeedbackVerdict.CORRECTED else None,
        feedback=feedback,
        plan=of_plan(record.plan) if record.plan else None,
        rollback=_rollback(verdict.rollback),
        proofs=[of_proof(proof) for proof in verdict.proofs],
        **{name: getattr(verdict, name) for name in verdict.__slots__ if name not in ("rollback", "proofs")},
    )


def of_feedback(feedback: Feedback) -> FeedbackShape:
    names = ("id", "by", "verdict", "type", "root_line", "root_stream", "node", "rank", "comment")
    return FeedbackShape(time=utc(feedback.created), **{name: getattr(feedback, name) for name in names})


def of_incident(incident: Incident, base_url: str) -> IncidentShape:
    changes = [
        IncidentChangeShape(
            time=utc(change.time), state=change.state, by=change.by, assignee=change.assignee, comment=change.comment
        )
        for change in incident.history
    ]
    names = ("id", "cluster", "node", "category", "type", "line", "diagnosis", "failures", "jobs", "state", "assignee")
    return IncidentShape(
        first_seen=utc(incident.first_seen),
        last_seen=utc(incident.last_seen),
        history=changes,
        url=f"{base_url}/incidents/{incident.id}",
        **{name: getattr(incident, name) for name in names},
    )


def of_event(event: Event) -> EventShape:
    return EventShape(
        time=utc(event.time), **{name: getattr(event, name) for name in EventShape.model_fields if name != "time"}
    )


def of_run(attempt: AttemptSummary, status: RunStatus | None, silent_since: float, base_url: str) -> RunShape:
    known = status or RunStatus()
    verdict = None
    if attempt.outcome is not None and attempt.category is not None and attempt.type is not None:
        link = f"{base_url}/diagnoses/{attempt.diagnosis}"
        verdict = VerdictShape(
            id=attempt.diagnosis, outcome=attempt.outcome, category=attempt.category, type=attempt.type, url=link
        )
    return RunShape(
        job=attempt.key.job,
        attempt=attempt.key.number,
        state=attempt.state(silent_since),
        opened=utc(attempt.opened),
        heard=utc(attempt.heard),
        ended=_maybe(attempt.ended),
        stage=known.stage,
        step=known.step,
        total_steps=known.total,
        loss=known.loss,
        step_seconds=known.step_seconds,
        tokens_per_second=known.tokens_per_second,
        ends=_maybe(known.ends),
        last_text=known.last_line or None,
        verdict=verdict,
        url=f"{base_url}/jobs/{attempt.key.job}",
    )


def of_job(job: Job, base_url: str) -> JobShape:
    return JobShape(**_job_fields(job, base_url))


def of_job_page(job: Job, attempts: list[Attempt], diagnoses: Mapping[int, DiagnosisRecord], base_url: str) -> JobPage:
    shapes = [_attempt(attempt, diagnoses.get(attempt.key.number), base_url) for attempt in attempts]
    return JobPage(attempts=shapes, **_job_fields(job, base_url))


def _job_fields(job: Job, base_url: str) -> dict[str, object]:
    fields = {name: getattr(job, name) for name in job.__slots__}
    return fields | {"created": _maybe(job.created), "url": f"{base_url}/jobs/{job.id}"}


def _attempt(attempt: Attempt, record: DiagnosisRecord | None, base_url: str) -> AttemptShape:
    return AttemptShape(
        number=attempt.key.number,
        opened=utc(attempt.opened),
        last_line=_maybe(attempt.last_line),
        fatal=_maybe(attempt.fatal),
        ended=_maybe(attempt.ended),
        events=[of_event(event) for event in attempt.events],
        diagnosis=of_diagnosis(record, base_url) if record else None,
    )


def of_plan(plan: Plan) -> PlanShape:
    names = ("id", "key", "job", "attempt", "cluster", "action", "nodes", "mode", "state", "reason", "row", "diagnosis")
    fields = {name: getattr(plan, name) for name in (*names, "tenant", "drained", "requeued")}
    return PlanShape(
        created=utc(plan.created),
        expires=utc(plan.expires),
        rollback=_rollback(plan.rollback),
        executor=plan.lease.executor if plan.lease else "",
        history=[
            ChangeShape(time=utc(change.time), state=change.state, by=change.by, why=change.why)
            for change in plan.history
        ],
        steps=[StepShape(command=step.command, exit_code=step.exit_code, output=step.output) for step in plan.steps],
        proofs=[of_proof(proof) for proof in plan.proofs],
        queries=[_query(query) for query in plan.check.queries] if plan.check else [],
        **fields,
    )


def _query(query: QueryResult) -> QueryResultShape:
    return QueryResultShape(**{name: getattr(query, name) for name in query.__slots__})


def of_node(mark: NodeEvent) -> NodeShape:
    fields = {name: getattr(mark, name) for name in mark.__slots__ if name != "time"}
    return NodeShape(time=utc(mark.time), **fields)


def of_breaker(state: BreakerState) -> BreakerShape:
    fields = {name: getattr(state, name) for name in state.__slots__ if name != "time"}
    return BreakerShape(time=_maybe(state.time), **fields)


def of_proof(proof: NodeProof) -> ProofShape:
    fields = {name: getattr(proof, name) for name in proof.__slots__ if name != "time"}
    return ProofShape(time=_maybe(proof.time), **fields)


def _rollback(rollback: Rollback | None) -> RollbackShape | None:
    return RollbackShape(**{name: getattr(rollback, name) for name in rollback.__slots__}) if rollback else None


def _maybe(seconds: float | None) -> datetime | None:
    return utc(seconds) if seconds else None
