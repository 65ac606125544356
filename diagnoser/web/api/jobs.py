"""Routes to register jobs and report their events."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated

from fastapi import Query
from pydantic import Field, StringConstraints, model_validator

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import (
    ENDS,
    Attempt,
    AttemptKey,
    CheckpointPhase,
    Event,
    EventKind,
    Job,
    Provenance,
    RunStatus,
    spoken_job_id,
)
from diagnoser.model.access import Credential
from diagnoser.model.errors import BadInput, OwnerMoved, existing
from diagnoser.model.jobs import MAX_LEAP
from diagnoser.model.queries import AttemptState, AttemptSummary, DiagnosisFilter, JobFilter
from diagnoser.model.sorting import ATTEMPT_SORTS, NEWEST, Sort
from diagnoser.model.work import DiagnosisRecord
from diagnoser.observability.tracing import TraceStep
from diagnoser.web.api.params import (
    DROP_NUL,
    IS_NUMBER,
    LARGEST,
    JobId,
    JobPath,
    Node,
    TimeField,
    first_page,
    moment,
    optional_seconds,
    sort_field,
)
from diagnoser.web.api.schemas import EventShape, JobPage, JobShape, RunPage, RunShape
from diagnoser.web.http.access import own_cluster
from diagnoser.web.http.authentication import AGENT, INGEST, READ, Caller
from diagnoser.web.http.dependencies import Core, Intake, Logs, Plans
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import ApiRouter, Schema, StrictSchema

NODES_LIMIT = 100_000
ATTEMPTS_SHOWN = 200
PAGE, PAGE_LIMIT = 50, 200

router = ApiRouter("jobs")

Short = Annotated[str, Field(max_length=200), DROP_NUL]
Long = Annotated[str, Field(max_length=2000), DROP_NUL]
Rank = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]
"""As the name of a field in JSON."""


_ONLY_WITH: dict[EventKind, tuple[str, ...]] = {
    EventKind.EXIT: ("code", "signal"),
    EventKind.CHECKPOINT: ("phase", "blocked_ms", "bytes", "finite", "just_in_time", "why"),
    EventKind.STARTED: ("submitted", "time_limit"),
}
"""Fields of an event that only one kind has."""


class NewJob(StrictSchema):
    """A job as its launcher knows it. Fields that are left out keep their stored value."""

    id: JobId
    attempt: Annotated[int, Field(ge=1, lt=1 << 31), IS_NUMBER] | None = Field(
        None, description="Launch that the nodes are of; by default the latest"
    )
    cluster: Short = ""
    name: Short = ""
    nodes: tuple[Node, ...] = Field((), max_length=NODES_LIMIT)
    rank_nodes: dict[Rank, Node] = Field(
        default_factory=dict,
        max_length=NODES_LIMIT,
        description="Rank -> node that it runs on",
        json_schema_extra={"additionalProperties": False},
    )
    framework: Short = ""
    checkpoint_dir: Long = ""
    tenant: Short = Field("", description="Whom the scheduler knows the job to belong to; agents tell it")
    labels: dict[Short, Long] = Field(default_factory=dict, max_length=100)


class NewEvent(StrictSchema):
    """``code`` and ``signal`` go with exit; ``step``, ``path`` and the fields from ``phase`` on with checkpoint.

    The same phase of the same step and path counts once.
    """

    kind: EventKind
    attempt: Annotated[int, Field(ge=1, lt=1 << 31), IS_NUMBER] | None = Field(
        None, description="Launch of the job; the latest one by default"
    )
    time: TimeField | None = Field(None, description="Seconds since the epoch or ISO 8601; now by default")
    code: Annotated[int, Field(ge=-(1 << 31), lt=1 << 32), IS_NUMBER] | None = Field(None, description="Exit code")
    signal: Annotated[int, Field(ge=1, le=64), IS_NUMBER] | None = Field(
        None, description="Signal that ended the process"
    )
    step: Annotated[int, Field(ge=0, le=LARGEST), IS_NUMBER] | None = Field(None, description="Training step")
    path: Long = Field("", description="Path of the checkpoint")
    node: Node | None = None
    rank: Annotated[int, Field(ge=0, lt=1 << 31), IS_NUMBER] | None = None
    reason: Long = Field("", description="The scheduler's reason, verbatim: TIMEOUT, NODE_FAIL, OOMKilled")
    phase: CheckpointPhase | None = Field(
        None,
        description="How far the checkpoint came: copied (staged), written out (durable; also meant where this is left "
        "out), read back with its checksums right (verified), or not to be used (bad)",
    )
    blocked_ms: Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False), IS_NUMBER] | None = Field(
        None, description="Milliseconds for which training stood still for this checkpoint; with one of its phases"
    )
    bytes: Annotated[int, Field(ge=0, le=LARGEST), IS_NUMBER] | None = Field(None, description="Size of the checkpoint")
    finite: bool | None = Field(None, description="Whether loss and weights were finite when it was saved")
    just_in_time: bool | None = Field(None, description="Whether it was saved because the job was about to end")
    why: Long | None = Field(None, description="Why the checkpoint is bad")
    submitted: TimeField | None = Field(None, description="When the launch was put into the queue; with started")
    time_limit: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False), IS_NUMBER] | None = Field(
        None, description="Seconds that the launch may run; with started"
    )

    @model_validator(mode="after")
    def _fields_go_with_kind(self) -> "NewEvent":
        for kind, (*names, last) in _ONLY_WITH.items():
            given = self.model_dump(include={*names, last}, exclude_none=True)
            if given and self.kind is not kind:
                raise ValueError(f"{', '.join(names)} and {last} go with kind '{kind}' only")
        return self

    @model_validator(mode="after")
    def _phases_name_their_checkpoint(self) -> "NewEvent":
        if self.phase is not None and (self.step is None or not self.path):
            raise ValueError("a phase needs the step and the path of its checkpoint")
        return self

    def event(self, now: float, provenance: Provenance) -> Event:
        """A time in the future becomes now: an end in the future would delay the diagnosis. What is said of a
        checkpoint is the job's word, whoever sends it: it proves nothing about a node."""
        fields = self.model_dump(exclude={"attempt", "time", "node", "why", "just_in_time", "submitted"})
        fields |= {"reason": self.why or self.reason, "just_in_time": bool(self.just_in_time)}
        fields["submitted"] = optional_seconds(self.submitted)
        if self.kind is EventKind.CHECKPOINT:
            provenance = Provenance.JOB
        return Event(time=moment(self.time, now), node=self.node or "", provenance=provenance, **fields)


class RunQuery(StrictSchema):
    """Which attempts."""

    state: AttemptState | None = Field(
        None, description="All by default: by time the running ones first, then the silent and the ended ones"
    )
    user: Short = Field("", description="Whom the scheduler knows the job to belong to; 5,000 of their jobs")
    cluster: Short = Field("", description="Looked for among the 5,000 newest attempts of each state")
    framework: Short = Field("", description="Looked for among the 5,000 newest attempts of each state")
    sort: str = sort_field(ATTEMPT_SORTS, NEWEST)
    cursor: str = Field("", max_length=300, description="`next` of the page before")
    limit: int = Field(PAGE, ge=1, le=PAGE_LIMIT)

    @property
    def order(self) -> Sort:
        return Sort.parse(self.sort)


class Noted(Schema):
    """The event as it is stored, with the attempt it was counted to."""

    job: str
    attempt: int
    event: EventShape


@router.post("/jobs", dependencies=AGENT, summary="Register a job")
async def register(body: NewJob, core: Core, intake: Intake, caller: Caller) -> JobShape:
    """Optional: a job also appears with its first log line. May be repeated; given fields replace stored ones."""
    fields = body.model_dump(exclude={"attempt"}) | {"cluster": own_cluster(caller, body.cluster)}
    fields["rank_nodes"] = {int(rank): node for rank, node in body.rank_nodes.items()}
    name = await intake.job_access.check(caller, body.id)
    await _check_number(core, caller, name, body.attempt or 1)
    job = await core.store.jobs.register(Job(created=core.clock(), registered=True, **fields), body.attempt)
    return JobShape.from_job(job, core.config.base_url)


@router.post("/jobs/{id}/events", dependencies=INGEST, summary="Report an event of a job")
async def report(id: JobPath, body: NewEvent, core: Core, intake: Intake, plans: Plans, caller: Caller) -> Noted:
    """Exit, cancelled and preempted end the attempt; its diagnosis follows shortly after. Of a job whose scheduler has
    an agent, only the agent's do: any other makes the service look at it after a shorter silence."""
    now = core.clock()
    event = body.event(now, Provenance.SCHEDULER if caller.vouches else Provenance.JOB)
    try:
        key, is_new = await _add_event(core, intake, caller, id, body.attempt, event)
    except OwnerMoved:  # an agent registered it a moment ago
        intake.job_access.forget([id])
        key, is_new = await _add_event(core, intake, caller, id, body.attempt, event)
    if is_new:
        core.metrics.observe_event(event)
    # Also where it is not new: the first may be cut off.
    if event.phase is CheckpointPhase.BAD or event.finite is False:
        await plans.check_rollbacks(key.job, now)
    intake.attempts_due.notify()
    if event.kind in ENDS:
        intake.trace(TraceStep.EVENT, key, now, kind=event.kind.value)
    return Noted(job=key.job, attempt=key.number, event=EventShape.model_validate(event))


async def _add_event(
    core: Core, intake: Intake, caller: Credential, id: str, attempt: int | None, event: Event
) -> tuple[AttemptKey, bool]:
    """Where it is counted, and whether it is new. Raises BadInput, OwnerMoved."""
    job = await intake.job_access.check(caller, id)
    number = await core.store.logs.current_attempt(job) if attempt is None else attempt
    await _check_number(core, caller, job, number)
    key = AttemptKey(job, number)
    return key, await core.store.jobs.add_event(key, event, caller.viewer)


async def _check_number(core: Core, caller: Credential, job: str, number: int) -> None:
    """Raises BadInput for a launch that no agent has told of, of a job that one registered, and for a number that
    leaves no room for those that follow."""
    newest = MAX_LEAP
    if number > MAX_LEAP:
        newest = max(newest, await core.store.logs.current_attempt(job))
    if number > 1 and not caller.vouches:
        newest = (await core.store.logs.newest_of_registered([job])).get(job, newest)
    if number > newest + 1:
        raise BadInput(f"the job {spoken_job_id(job)!r} has no launch {number} yet: {newest + 1} is the highest now")


@router.get("/jobs", dependencies=READ, summary="List jobs, attempt by attempt")
async def index(query: Annotated[RunQuery, Query()], core: Core, logs: Logs) -> RunPage:
    """Where each attempt stands: its stage, step, speed and loss, how long it has been silent, and its verdict."""
    runs = await list_runs(core, logs, query)
    items = [
        RunShape.from_attempt(attempt, status, runs.silent_since, core.config.base_url)
        for attempt, status in runs.attempts
    ]
    return RunPage(items=items, next=runs.next)


@router.get("/jobs/{id}", dependencies=READ, responses=answers(404), summary="One job")
async def show(id: JobPath, core: Core) -> JobPage:
    """The job with its attempts and the current diagnosis of each."""
    job = await find_job(core.store, id)
    attempts = await core.store.jobs.attempts(id)
    return JobPage.from_attempts(job, attempts, await latest(core.store, id), core.config.base_url)


async def find_job(store: SqlStore, id: str) -> Job:
    """Raises NotFound."""
    return existing(await store.jobs.find(id), f"no job is called {id!r}")


async def find_attempt(store: SqlStore, key: AttemptKey) -> Attempt:
    """Raises NotFound."""
    return existing(await store.jobs.attempt(key), f"no attempt {key.number} of {key.job!r}")


async def latest(store: SqlStore, job: str) -> dict[int, DiagnosisRecord]:
    """Attempt number -> its current diagnosis."""
    records = await store.diagnoses.page(DiagnosisFilter(job=job), "", ATTEMPTS_SHOWN)
    return {record.attempt.number: record for record in records}


@dataclass(frozen=True, slots=True)
class Runs:
    """One page of attempts; those that have not ended with their status. silent_since: as of ``AttemptSummary.state``.
    next: the cursor of the following page, None on the last one."""

    attempts: Sequence[tuple[AttemptSummary, RunStatus | None]]
    silent_since: float
    next: str | None


async def list_runs(core: Core, logs: Logs, query: RunQuery) -> Runs:
    silent_since = core.clock() - core.config.silent_seconds
    summaries = core.store.attempts.page
    where = JobFilter(query.user, query.cluster, query.framework)
    listed = await summaries(query.state, silent_since, query.cursor, query.limit + 1, query.order, where)
    shown, after = first_page(listed, query.limit, attrgetter("position"))
    going = {attempt.key: attempt.revision for attempt in shown if attempt.ended is None}
    statuses = await logs.run_statuses.of(going)
    return Runs([(attempt, statuses.get(attempt.key)) for attempt in shown], silent_since, after)
