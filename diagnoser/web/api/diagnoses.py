"""Routes that list and show diagnoses."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from diagnoser.model import Advice
from diagnoser.model.errors import NotFound
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from diagnoser.ports import DiagnosisFilter, DiagnosisRecord, Store
from diagnoser.recovery.policy import case_of
from diagnoser.web.api.params import JobId, Node, Search, TimeField, moment
from diagnoser.web.api.schemas import DiagnosisPage, DiagnosisShape, PlanShape, of_diagnosis, of_plan
from diagnoser.web.authentication import READ, Provided
from diagnoser.web.problems import answers

PAGE = 50
PAGE_LIMIT = 200

router = APIRouter(tags=["diagnoses"], dependencies=READ)

DiagnosisId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="Id of the diagnosis")]


class DiagnosisQuery(BaseModel):
    """Filters; all that are given must match."""

    model_config = ConfigDict(extra="forbid")

    category: Category | None = None
    type: FailureType | None = None
    outcome: Outcome | None = None
    job: JobId | None = None
    node: Node | None = Field(None, description="Node of the root cause or among the suspects")
    since: TimeField | None = Field(None, description="Seconds since the epoch or ISO 8601")
    q: Search = Field("", description="Text in the job, type, root line, evidence or advice")
    cursor: str = Field("", max_length=64, description="`next` of the page before")
    limit: int = Field(PAGE, ge=1, le=PAGE_LIMIT)

    def where(self, now: float) -> DiagnosisFilter:
        return DiagnosisFilter(
            job=self.job or "",
            category=self.category or "",
            type=self.type or "",
            outcome=self.outcome or "",
            node=self.node or "",
            since=moment(self.since, now) if self.since is not None else 0.0,
            text=self.q,
        )


@router.get("/diagnoses", responses=answers(400, 401, 503), summary="List diagnoses")
async def index(query: Annotated[DiagnosisQuery, Query()], services: Provided) -> DiagnosisPage:
    """Newest first; only the current diagnosis of each attempt."""
    records, after = await page(services.store, query, services.clock())
    return DiagnosisPage(items=[of_diagnosis(record, services.config.base_url) for record in records], next=after)


@router.get("/diagnoses/{id}", responses=answers(400, 401, 404, 503), summary="One diagnosis")
async def show(id: DiagnosisId, services: Provided) -> DiagnosisShape:
    """One diagnosis, even if a later one replaced it."""
    return of_diagnosis(await find(services.store, id), services.config.base_url)


class RowVerdict(BaseModel):
    """One row of the policy table. why_not: the condition that does not hold, "" for the row that applies."""

    row: str
    why_not: str


class PolicyShape(BaseModel):
    """rows: up to the one that applies now. advice: as stored with the diagnosis. plan: its current state."""

    rows: list[RowVerdict]
    action: Action
    advice: Advice
    plan: PlanShape | None


@router.get(
    "/diagnoses/{id}/policy", responses=answers(400, 401, 404, 503), summary="Explain the action of a diagnosis"
)
async def explain(id: DiagnosisId, services: Provided) -> PolicyShape:
    """Which row of the policy table applies to the diagnosis, and why the rows before it do not."""
    record = await find(services.store, id)
    job = await services.store.job(record.attempt.job)
    case, policy = case_of(record.diagnosis, job.labels if job else {}), services.plans.commands.policy
    return PolicyShape(
        rows=[RowVerdict(row=row, why_not=why) for row, why in policy.explain(case)],
        action=policy.advise(case).action,
        advice=record.diagnosis.recovery,
        plan=of_plan(record.plan) if record.plan else None,
    )


async def page(store: Store, query: DiagnosisQuery, now: float) -> tuple[list[DiagnosisRecord], str | None]:
    """One page and the cursor of the next one, None on the last page."""
    records = await store.diagnoses(query.where(now), query.cursor, query.limit + 1)
    items = records[: query.limit]
    return items, items[-1].id if len(records) > query.limit else None


async def find(store: Store, id: str) -> DiagnosisRecord:
    """Raises NotFound."""
    record = await store.diagnosis(id)
    if record is None:
        raise NotFound(f"there is no diagnosis {id!r}")
    return record
