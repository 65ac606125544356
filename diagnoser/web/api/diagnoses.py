"""Routes that list and show diagnoses."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated

from fastapi import Path, Query
from pydantic import Field, model_validator

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import Advice
from diagnoser.model.errors import existing
from diagnoser.model.job_contract import labels_of
from diagnoser.model.queries import DiagnosisFilter
from diagnoser.model.sorting import DIAGNOSIS_SORTS, NEWEST, Sort
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.recovery.policy import case_of
from diagnoser.web.api.params import JobId, Name, Node, Search, TimeField, first_page, seconds_of, sort_field
from diagnoser.web.api.schemas import DiagnosisPage, DiagnosisShape, PlanShape
from diagnoser.web.http.authentication import READ
from diagnoser.web.http.dependencies import Core, Plans
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import ApiRouter, Schema, StrictSchema

PAGE = 50
PAGE_LIMIT = 200

router = ApiRouter("diagnoses", dependencies=READ)

DiagnosisId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="Id of the diagnosis")]


class DiagnosisQuery(StrictSchema):
    """Filters; all that are given must match."""

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

    def where(self) -> DiagnosisFilter:
        same = {"category", "type", "outcome", "job", "node", "cluster", "family", "decided_by"}
        given = self.model_dump(include=same, exclude_none=True)
        if self.since is not None:
            given["since"] = seconds_of(self.since)
        return DiagnosisFilter(newer=self.since_id, text=self.q, **given)


@router.get("/diagnoses", summary="List diagnoses")
async def index(query: Annotated[DiagnosisQuery, Query()], core: Core) -> DiagnosisPage:
    """The newest first, unless `sort` says otherwise; only the current diagnosis of each attempt."""
    records, after = await page(core.store, query)
    return DiagnosisPage(
        items=[DiagnosisShape.from_record(record, core.config.base_url) for record in records], next=after
    )


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


@router.get("/diagnoses/facets", summary="Count diagnoses by their facets")
async def facets(query: Annotated[DiagnosisQuery, Query()], core: Core) -> FacetsShape:
    """What the diagnoses that match are: outcome, category, type, cluster, family, node, and who decided. `cursor` and
    `limit` mean nothing here."""
    counted = await core.store.diagnoses.facets(query.where())
    values = {
        name: [FacetValue(value=value, count=count) for value, count in counts]
        for name, counts in sorted(counted.counts.items())
    }
    return FacetsShape(facets=values, is_complete=counted.is_complete, limit=counted.limit)


@router.get("/diagnoses/{id}", responses=answers(404), summary="One diagnosis")
async def show(id: DiagnosisId, core: Core) -> DiagnosisShape:
    """One diagnosis, even if a later one replaced it."""
    return DiagnosisShape.from_record(await find(core.store, id), core.config.base_url)


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


@router.get("/diagnoses/{id}/policy", responses=answers(404), summary="Explain the action of a diagnosis")
async def explain(id: DiagnosisId, core: Core, plans: Plans) -> PolicyShape:
    """Which row of the policy table applies to the diagnosis, and why the rows before it do not."""
    record = await find(core.store, id)
    job = await core.store.jobs.find(record.attempt.job)
    case, policy = case_of(record.diagnosis, labels_of(job) if job else {}), plans.commands.policy
    return PolicyShape(
        rows=[RowVerdict(row=row, why_not=why) for row, why in policy.explain(case)],
        action=policy.advise(case).action,
        advice=record.diagnosis.recovery,
        plan=PlanShape.from_plan(record.plan) if record.plan else None,
    )


async def page(store: SqlStore, query: DiagnosisQuery) -> tuple[Sequence[DiagnosisRecord], str | None]:
    """One page and the cursor of the next one, None on the last page."""
    records = await store.diagnoses.page(query.where(), query.cursor, query.limit + 1, query.order)
    return first_page(records, query.limit, attrgetter("id"))


async def find(store: SqlStore, id: str) -> DiagnosisRecord:
    """Raises NotFound."""
    return existing(await store.diagnoses.find(id), f"there is no diagnosis {id!r}")
