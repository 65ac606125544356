"""Routes that list and show diagnoses."""

from typing import Annotated

from fastapi import Path, Query
from pydantic import ConfigDict, Field, model_validator

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.client.service import API
from diagnoser.model import Advice
from diagnoser.model.errors import NotFound
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from diagnoser.ports import DIAGNOSIS_SORTS, NEWEST, DiagnosisFilter, DiagnosisRecord, Sort
from diagnoser.recovery.policy import case_of
from diagnoser.web.api.params import JobId, Name, Node, Search, TimeField, seconds_of, sort_field
from diagnoser.web.api.schemas import DiagnosisPage, DiagnosisShape, PlanShape, of_diagnosis, of_plan
from diagnoser.web.http.authentication import READ, Provided
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Router, Schema

PAGE = 50
PAGE_LIMIT = 200

router = Router(prefix=API, tags=["diagnoses"], dependencies=READ)

DiagnosisId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="Id of the diagnosis")]


class DiagnosisQuery(Schema):
    """Filters; all that are given must match."""

    model_config = ConfigDict(extra="forbid")

    category: Category | None = None
    type: FailureType | None = None
    outcome: Outcome | None = None
    job: JobId | None = None
    node: Node | None = Field(None, description="Node of the root cause or among the suspects")
    cluster: Name = ""
    family: Name = Field("", description="Launches of one training: the label `family`, else the name without numbers")
    decided_by: Name = Field("", description="Rule, model or heuristic, as `decided_by` of a diagnosis names it")
    since: TimeField | None = Field(None, description="Seconds since the epoch or ISO 8601")
    since_id: str = Field("", pattern=r"^[A-Za-z0-9_.-]{0,64}$", description="Id: only diagnoses made after that one")
    q: Search = Field(
        "",
        description="Words in the job, type, root line, evidence or advice: all of them, in any order; from three "
        "characters on a word also stands for longer ones that begin so",
    )
    sort: str = sort_field(DIAGNOSIS_SORTS, NEWEST)
    cursor: str = Field("", max_length=64, description="`next` of the page before")
    limit: int = Field(PAGE, ge=1, le=PAGE_LIMIT)

    @model_validator(mode="after")
    def _words_go_by_time(self) -> "DiagnosisQuery":
        if self.q and self.order != NEWEST:
            raise ValueError(f"what is searched for by words comes in the order {NEWEST}")
        return self

    @property
    def order(self) -> Sort:
        return Sort.parse(self.sort)

    def where(self, now: float) -> DiagnosisFilter:
        return DiagnosisFilter(
            job=self.job or "",
            category=self.category or "",
            type=self.type or "",
            outcome=self.outcome or "",
            node=self.node or "",
            cluster=self.cluster,
            family=self.family,
            decided_by=self.decided_by,
            newer=self.since_id,
            since=0.0 if self.since is None else seconds_of(self.since),
            text=self.q,
        )


@router.get("/diagnoses", responses=answers(400, 401, 503), summary="List diagnoses")
async def index(query: Annotated[DiagnosisQuery, Query()], services: Provided) -> DiagnosisPage:
    """The newest first, unless `sort` says otherwise; only the current diagnosis of each attempt."""
    records, after = await page(services.store, query, services.clock())
    return DiagnosisPage(items=[of_diagnosis(record, services.config.base_url) for record in records], next=after)


class FacetValue(Schema):
    """A value and the number of diagnoses that have it."""

    value: str
    count: int


class FacetsShape(Schema):
    """facets: by the name of the query parameter that narrows by it, most frequent values first. is_complete: all that
    match are counted; else the newest, of which `limit` were looked at."""

    facets: dict[str, list[FacetValue]]
    is_complete: bool
    limit: int


@router.get("/diagnoses/facets", responses=answers(400, 401, 503), summary="Count diagnoses by their facets")
async def facets(query: Annotated[DiagnosisQuery, Query()], services: Provided) -> FacetsShape:
    """What the diagnoses that match are: outcome, category, type, cluster, family, node, and who decided. `cursor` and
    `limit` mean nothing here."""
    counted = await services.store.diagnoses.facets(query.where(services.clock()))
    values = {
        name: [FacetValue(value=value, count=count) for value, count in counts]
        for name, counts in sorted(counted.counts.items())
    }
    return FacetsShape(facets=values, is_complete=counted.is_complete, limit=counted.limit)


@router.get("/diagnoses/{id}", responses=answers(400, 401, 404, 503), summary="One diagnosis")
async def show(id: DiagnosisId, services: Provided) -> DiagnosisShape:
    """One diagnosis, even if a later one replaced it."""
    return of_diagnosis(await find(services.store, id), services.config.base_url)


class RowVerdict(Schema):
    """One row of the policy table. why_not: the condition that does not hold, "" for the row that applies."""

    row: str
    why_not: str


class PolicyShape(Schema):
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
    job = await services.store.jobs.find(record.attempt.job)
    case, policy = case_of(record.diagnosis, job.labels if job else {}), services.plans.commands.policy
    return PolicyShape(
        rows=[RowVerdict(row=row, why_not=why) for row, why in policy.explain(case)],
        action=policy.advise(case).action,
        advice=record.diagnosis.recovery,
        plan=of_plan(record.plan) if record.plan else None,
    )


async def page(store: SqlStore, query: DiagnosisQuery, now: float) -> tuple[list[DiagnosisRecord], str | None]:
    """One page and the cursor of the next one, None on the last page."""
    records = await store.diagnoses.page(query.where(now), query.cursor, query.limit + 1, query.order)
    items = records[: query.limit]
    return items, items[-1].id if len(records) > query.limit else None


async def find(store: SqlStore, id: str) -> DiagnosisRecord:
    """Raises NotFound."""
    record = await store.diagnoses.find(id)
    if record is None:
        raise NotFound(f"there is no diagnosis {id!r}")
    return record
