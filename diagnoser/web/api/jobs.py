"""Routes to register jobs and report their events."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator

from diagnoser.model import AttemptKey, Event, EventKind, Job, Provenance
from diagnoser.model.errors import NotFound
from diagnoser.ports import DiagnosisFilter, DiagnosisRecord, Store
from diagnoser.web.access import own_cluster
from diagnoser.web.api.params import JobId, JobPath, Node, TimeField, moment
from diagnoser.web.api.schemas import EventShape, JobPage, JobShape, of_event, of_job, of_job_page
from diagnoser.web.authentication import AGENT, INGEST, READ, Caller, Provided
from diagnoser.web.problems import answers

NODES_LIMIT = 100_000
ATTEMPTS_SHOWN = 200

router = APIRouter(tags=["jobs"])

Short = Annotated[str, Field(max_length=200)]
Long = Annotated[str, Field(max_length=2000)]


class NewJob(BaseModel):
    """A job as its launcher knows it. Fields that are left out keep their stored value."""

    model_config = ConfigDict(extra="forbid")

    id: JobId
    attempt: int | None = Field(
        None, ge=1, lt=1 << 31, description="Launch that the nodes are of; by default the latest"
    )
    cluster: Short = ""
    name: Short = ""
    nodes: tuple[Node, ...] = Field((), max_length=NODES_LIMIT)
    rank_nodes: dict[Annotated[int, Field(ge=0)], Node] = Field(
        default_factory=dict, max_length=NODES_LIMIT, description="Rank -> node that it runs on"
    )
    framework: Short = ""
    checkpoint_dir: Long = ""
    tenant: Short = Field("", description="Whom the scheduler knows the job to belong to; agents tell it")
    labels: dict[Short, Long] = Field(default_factory=dict, max_length=100)


class NewEvent(BaseModel):
    """``code`` and ``signal`` go with exit, ``step`` and ``path`` with checkpoint."""

    model_config = ConfigDict(extra="forbid")

    kind: EventKind
    attempt: int | None = Field(None, ge=1, lt=1 << 31, description="Launch of the job; the latest one by default")
    time: TimeField | None = Field(None, description="Seconds since the epoch or ISO 8601; now by default")
    code: int | None = Field(None, ge=-(1 << 31), lt=1 << 32, description="Exit code")
    signal: int | None = Field(None, ge=1, le=64, description="Signal that ended the process")
    step: int | None = Field(None, ge=0, lt=1 << 62, description="Training step")
    path: Long = Field("", description="Path of the checkpoint")
    node: Node | None = None
    rank: int | None = Field(None, ge=0, lt=1 << 31)
    reason: Long = Field("", description="The scheduler's reason, verbatim: TIMEOUT, NODE_FAIL, OOMKilled")

    @model_validator(mode="after")
    def _ends_belong_to_exit(self) -> "NewEvent":
        if self.kind is not EventKind.EXIT and (self.code is not None or self.signal is not None):
            raise ValueError("code and signal go with kind 'exit' only")
        return self

    def event(self, now: float, provenance: Provenance) -> Event:
        """A time in the future becomes now: an end in the future would delay the diagnosis."""
        fields = self.model_dump(exclude={"attempt", "time", "node"})
        return Event(time=min(moment(self.time, now), now), node=self.node or "", provenance=provenance, **fields)


class Noted(BaseModel):
    """The event as it is stored, with the attempt it was counted to."""

    job: str
    attempt: int
    event: EventShape


@router.post(
    "/jobs",
    dependencies=AGENT,
    responses=answers(400, 401, 403, 413, 503),
    summary="Register a job",
)
async def register(body: NewJob, services: Provided, caller: Caller) -> JobShape:
    """Optional: a job also appears with its first log line. May be repeated; given fields replace stored ones."""
    fields = body.model_dump(exclude={"attempt"}) | {"cluster": own_cluster(caller, body.cluster)}
    await services.job_access.check(caller, body.id)
    job = await services.store.register(Job(created=services.clock(), **fields), body.attempt)
    return of_job(job, services.config.base_url)


@router.post(
    "/jobs/{id}/events",
    dependencies=INGEST,
    responses=answers(400, 401, 403, 413, 503),
    summary="Report an event of a job",
)
async def report(id: JobPath, body: NewEvent, services: Provided, caller: Caller) -> Noted:
    """Exit, cancelled and preempted end the attempt; its diagnosis follows shortly after."""
    await services.job_access.check(caller, id)
    event = body.event(services.clock(), Provenance.SCHEDULER if caller.vouches else Provenance.JOB)
    number = await services.store.current_attempt(id) if body.attempt is None else body.attempt
    await services.store.add_event(AttemptKey(id, number), event)
    services.attempts_due.notify()
    return Noted(job=id, attempt=number, event=of_event(event))


@router.get("/jobs/{id}", dependencies=READ, responses=answers(400, 401, 404, 503), summary="One job")
async def show(id: JobPath, services: Provided) -> JobPage:
    """The job with its attempts and the current diagnosis of each."""
    job = await services.store.job(id)
    if job is None:
        raise NotFound(f"no job is called {id!r}")
    attempts = await services.store.attempts(id)
    return of_job_page(job, attempts, await latest(services.store, id), services.config.base_url)


async def latest(store: Store, job: str) -> dict[int, DiagnosisRecord]:
    """Attempt number -> its current diagnosis."""
    records = await store.diagnoses(DiagnosisFilter(job=job), "", ATTEMPTS_SHOWN)
    return {record.attempt.number: record for record in records}
