"""Recovery plans: people read, approve and refuse them; executors claim them, report, and run node checks."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Literal

from fastapi import Path, Query, Request, Response
from pydantic import Field

from diagnoser.model import AttemptKey, CheckVerdict, Job, NodeCheck, PairResult, Plan, PlanReason, PlanState, Step
from diagnoser.model.access import Credential
from diagnoser.model.errors import BadInput, Conflict, NotFound, existing
from diagnoser.model.jobs import DEFAULT_CLUSTER
from diagnoser.model.queries import PlanFilter
from diagnoser.planning.transitions import CheckRequest, NodeAnswer
from diagnoser.recovery import node_check
from diagnoser.recovery.node_query import LOOKBACK_SECONDS, SITE_CHECK_SECONDS, Answer
from diagnoser.recovery.plan_states import PlanReport
from diagnoser.web.api.params import DROP_NUL, IS_NUMBER, JobId, Node, first_page
from diagnoser.web.api.schemas import PlanShape
from diagnoser.web.http.access import cluster_for
from diagnoser.web.http.authentication import AGENT, OPERATE, READ, Caller
from diagnoser.web.http.dependencies import Core, Plans
from diagnoser.web.http.long_poll import WAIT_LIMIT, long_poll
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import ApiRouter, Schema, StrictSchema

PAGE, PAGE_LIMIT = 50, 200
STEPS_LIMIT = 200

router = ApiRouter("recovery")

PlanId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_.@:+=-]{1,250}$", description="Id of the plan")]
Who = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Ignored = Annotated[
    str | None,
    Field(max_length=200, deprecated=True, description="Not used any more: the name of the token is stored."),
]
Comment = Annotated[str, Field(max_length=2000), DROP_NUL]
ClusterField = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
LeaseToken = Annotated[str, Field(min_length=1, max_length=200)]
Output = Annotated[str, Field(max_length=100_000), DROP_NUL]


class PlanQuery(StrictSchema):
    state: PlanState | None = None
    job: JobId | None = None
    after: str = Field("", max_length=250, description="`next` of the page before")
    limit: int = Field(PAGE, ge=1, le=PAGE_LIMIT)


class PlanPage(Schema):
    """Newest first. ``next`` is what ``after`` must be for the following page, null on the last one."""

    items: list[PlanShape]
    next: str | None


class DecisionBody(StrictSchema):
    """Why. Who decides is whose token it is."""

    by: Ignored = None
    comment: Comment = ""


class ClaimBody(StrictSchema):
    """What is claimed is handed to one agent at a time, again when its lease ends."""

    cluster: ClusterField = Field("", description=f"Cluster as jobs are registered with; empty is `{DEFAULT_CLUSTER}`")
    wait: Annotated[float, Field(ge=0, le=WAIT_LIMIT), IS_NUMBER] = Field(
        0.0, description="Seconds to wait until there is something to claim (long poll)"
    )


class ClaimRequest(ClaimBody):
    executor: Who = Field(description="Name of the executor, the same after a restart")


class Claimed(Schema):
    """A plan with the token of the claim. Without a report the claim ends after ``lease_seconds``."""

    plan: PlanShape
    token: str
    lease_seconds: float


class StepBody(StrictSchema):
    command: Annotated[str, Field(max_length=10_000), DROP_NUL]
    exit_code: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31), IS_NUMBER] | None = Field(
        None, description="null: it could not be started"
    )
    output: Output = ""
    time: Annotated[float, Field(ge=0, lt=1e11), IS_NUMBER] = Field(
        0.0, description="When it ran; tells equal steps apart"
    )


class ReportBody(StrictSchema):
    token: LeaseToken
    state: Literal["progress", "reached", "not_reached"]
    steps: tuple[StepBody, ...] = Field((), max_length=STEPS_LIMIT, description="New steps, or all so far")
    detail: Comment = ""
    drained: tuple[Node, ...] = Field((), max_length=10_000, description="Nodes taken out")
    requeued: Annotated[str, Field(max_length=250)] = Field("", description="Id of the job that runs (again)")
    refused: (
        Literal["foreign_node", "allocation_unknown", "unproven", "bad_checkpoint", "still_running", "not_confirmed"]
        | None
    ) = Field(None, description="With `not_reached`: why the executor would not carry the plan out")

    def report(self) -> PlanReport:
        state = PlanState.SENT if self.state == "progress" else PlanState(self.state)
        steps = tuple(Step(**step.model_dump()) for step in self.steps)
        refused = PlanReason(self.refused) if self.refused else None
        return PlanReport(self.token, state, steps, self.detail, self.drained, self.requeued, refused)


class CheckBody(StrictSchema):
    token: LeaseToken
    nodes: tuple[Node, ...] = Field(
        (), max_length=10_000, description="Nodes of the job, when it was registered without them"
    )
    queries: bool = Field(False, description="The executor can ask nodes: the check begins with `queries` then")
    site_check: bool = Field(False, description="It has a check script of the site, which is one more query")
    pairs: bool = Field(True, description="false: the executor has no program to test pairs; answers to queries decide")


class ResultBody(StrictSchema):
    nodes: tuple[Node, ...] = Field(min_length=1, max_length=3)
    ok: bool
    seconds: Annotated[float, Field(ge=0, lt=1e6), IS_NUMBER] = 0.0
    detail: Comment = ""


class AnswerBody(StrictSchema):
    node: Node
    id: Annotated[str, Field(min_length=1, max_length=100, description="Id of the query")]
    exit_code: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31), IS_NUMBER] | None = Field(
        description="null: the program is missing, or took too long"
    )
    output: Output = Field("", description="What it printed, without the middle where that is long")


class ResultsBody(StrictSchema):
    token: LeaseToken
    round: Annotated[int, Field(ge=1, le=100_000), IS_NUMBER]
    results: tuple[ResultBody, ...] = Field((), max_length=10_000)
    answers: tuple[AnswerBody, ...] = Field((), max_length=200)
    vouched: bool | None = Field(
        None,
        description="Whether `results` are those of a program that the operator chose, where the job has no say. "
        "false, as when it is left out: a node that they find faulty waits for a person",
    )


class QueryShape(Schema):
    """A query to run on a node as it stands, without a shell. ``argv`` is empty for the site's own script."""

    node: str
    id: str
    argv: tuple[str, ...]
    timeout_seconds: float


class CheckRound(Schema):
    """What is next: queries that still need an answer, else groups that still need a result, else the verdict."""

    round: int
    queries: tuple[QueryShape, ...] | None = None
    pairs: tuple[tuple[str, ...], ...] = ()
    timeout_seconds: float
    verdict: CheckVerdict | None = None


@router.get("/plans", dependencies=READ, summary="List plans")
async def index(query: Annotated[PlanQuery, Query()], core: Core) -> PlanPage:
    where = PlanFilter(query.state.value if query.state else "", query.job or "")
    plans = await core.store.plans.page(where, query.after, query.limit + 1)
    shown, after = first_page(plans, query.limit, attrgetter("id"))
    return PlanPage(items=list(map(PlanShape.from_plan, shown)), next=after)


@router.get("/plans/{id}", dependencies=READ, responses=answers(404), summary="One plan")
async def show(id: PlanId, core: Core) -> PlanShape:
    return PlanShape.from_plan(await find(core, id))


@router.post("/plans/{id}/approve", dependencies=OPERATE, responses=answers(404, 409), summary="Approve a plan")
async def approve(id: PlanId, body: DecisionBody, core: Core, plans: Plans, caller: Caller) -> PlanShape:
    """Lets a waiting plan act. 409 when the plan is not waiting."""
    return PlanShape.from_plan(await approve_plan(core, plans, caller, id, body.comment))


@router.post("/plans/{id}/refuse", dependencies=OPERATE, responses=answers(404, 409), summary="Refuse a plan")
async def refuse(id: PlanId, body: DecisionBody, core: Core, plans: Plans, caller: Caller) -> PlanShape:
    """Ends a waiting plan without acting. 409 when the plan is not waiting."""
    return PlanShape.from_plan(await refuse_plan(core, plans, caller, id, body.comment))


@router.post("/plans/{id}/take-back", dependencies=OPERATE, responses=answers(404, 409), summary="Take a decision back")
async def take_back(id: PlanId, body: DecisionBody, core: Core, plans: Plans, caller: Caller) -> PlanShape:
    """Lets an approved plan that nobody has claimed yet, or a refused one, wait for a decision again. 409 when it is
    too late, and for an approved plan also where the webhook tells of plans."""
    return PlanShape.from_plan(await take_plan_back(core, plans, caller, id, body.comment))


@router.post(
    "/plans/claim",
    dependencies=AGENT,
    response_model=Claimed,
    responses={204: {"description": "There is no plan to carry out"}},
    summary="Claim the oldest open plan",
)
async def claim(body: ClaimRequest, request: Request, core: Core, plans: Plans, caller: Caller) -> Claimed | Response:
    """One executor at a time holds a plan. When its lease expires it is handed out again, with its steps so far."""
    cluster = cluster_for(caller, body.cluster)
    lease = plans.commands.lease
    now, record_agent = core.clock(), core.store.vitals.record_agent
    await request.app.state.agents_seen.note(cluster, now, partial(record_agent, cluster, body.executor, now))

    async def look() -> Plan | None:
        return await plans.claim(body.executor, cluster, core.clock())

    plan = await long_poll(look, body.wait, request, caller)
    if plan is None or plan.lease is None:
        return Response(status_code=204)
    return Claimed(plan=PlanShape.from_plan(plan), token=plan.lease.token, lease_seconds=lease)


@router.post(
    "/plans/{id}/report",
    dependencies=AGENT,
    responses=answers(404, 409),
    summary="Report progress or the end of a plan",
)
async def report(id: PlanId, body: ReportBody, core: Core, plans: Plans) -> PlanShape:
    """Progress renews the lease; `reached` and `not_reached` end the plan. A repeated report changes nothing."""
    report = partial(plans.commands.report, report=body.report())
    return PlanShape.from_plan(await _decided(core, plans, id, report))


@router.post(
    "/plans/{id}/check/next",
    dependencies=AGENT,
    response_model_exclude_none=True,
    responses=answers(404, 409),
    summary="Get the next round of the node check",
)
async def check_next(id: PlanId, body: CheckBody, core: Core, plans: Plans) -> CheckRound:
    """Starts the check if needed. Repeating the request returns the same answer. 409 when the plan waits for a person
    (again)."""
    plan, now = await find(core, id), core.clock()
    record, job = await core.store.diagnoses.find(plan.diagnosis), await core.store.jobs.find(plan.job)
    outside = set(body.nodes).difference(plan.allocation) if plan.allocation else ()
    if outside:
        raise BadInput(f"not nodes of attempt {plan.attempt}: {', '.join(sorted(outside)[:5])}")
    request = CheckRequest(
        nodes=body.nodes or plan.allocation or _nodes_of(job),
        types=(record.diagnosis.type,) if record else (),
        since=await _since(plan, core),
        queries=body.queries,
        site_check=body.site_check,
        pairs=body.pairs,
    )
    check_next = partial(plans.commands.check_next, token=body.token, request=request, now=now)
    return _round(await plans.decide(id, now, check_next), plans)


@router.post(
    "/plans/{id}/check/results",
    dependencies=AGENT,
    response_model_exclude_none=True,
    responses=answers(404, 409),
    summary="Send results of a round of the node check",
)
async def check_results(id: PlanId, body: ResultsBody, core: Core, plans: Plans) -> CheckRound:
    """Returns what is next, as `check/next` does. The first result of a group counts, and the first answer to a query.
    If the verdict names more nodes than the breaker allows, or nothing proves that the suspected node is at fault, or
    only results speak against it that are not `vouched`, the plan waits for approval: 409, and the token becomes
    invalid."""
    await find(core, id)
    now, results = core.clock(), [PairResult(**result.model_dump()) for result in body.results]
    node_answers = []
    for given in body.answers:
        node_answers.append(NodeAnswer(given.node, given.id, Answer(text=given.output, exit_code=given.exit_code)))
    record_results = partial(
        plans.commands.check_results,
        token=body.token,
        round=body.round,
        results=results,
        now=now,
        answers=node_answers,
        vouched=bool(body.vouched),
    )
    return _round(await plans.decide(id, now, record_results), plans)


async def approve_plan(core: Core, plans: Plans, caller: Credential, id: str, comment: str, shown: str = "") -> Plan:
    """shown: the plan as the person saw it, where that is known. Raises NotFound, Conflict."""
    now = core.clock()
    plan = await plans.check_rollback(await find(core, id), now)
    record = await core.store.diagnoses.find(plan.diagnosis)
    approve = partial(plans.commands.approve, record=record, by=caller.name, comment=comment, now=now, shown=shown)
    return await plans.change(id, now, approve)


async def refuse_plan(core: Core, plans: Plans, caller: Credential, id: str, comment: str, shown: str = "") -> Plan:
    """shown: as of ``approve_plan``; to refuse is safe, whatever the plan has become. Raises NotFound, Conflict."""
    return await _decided(core, plans, id, partial(plans.commands.refuse, by=caller.name, comment=comment))


async def take_plan_back(core: Core, plans: Plans, caller: Credential, id: str, comment: str, shown: str = "") -> Plan:
    """shown: as of ``approve_plan``; to take back is safe, whatever the plan has become. Raises NotFound, Conflict."""
    return await _decided(core, plans, id, partial(plans.commands.revoke_decision, by=caller.name, comment=comment))


async def _decided(core: Core, plans: Plans, id: str, update: Callable[..., Any]) -> Plan:
    """update: takes the plan and the time. Raises NotFound, Conflict."""
    await find(core, id)
    now = core.clock()
    return await plans.change(id, now, partial(update, now=now))


async def find(core: Core, id: str) -> Plan:
    """Raises NotFound."""
    return existing(await core.store.plans.find(id), f"there is no plan {id!r}")


def _nodes_of(job: Job | None) -> tuple[str, ...]:
    if job is None:
        return ()
    return job.nodes or tuple(job.rank_nodes.values())


async def _since(plan: Plan, core: Core) -> float:
    """What is older in the log of a node has nothing to do with this failure: it begins some minutes before the failure
    was seen, and never before the attempt."""
    attempt = await core.store.jobs.attempt(AttemptKey(plan.job, plan.attempt))
    if attempt is None:
        return plan.created - LOOKBACK_SECONDS
    seen = attempt.fatal or attempt.last_seen or plan.created
    started = min([attempt.opened, *(event.time for event in attempt.events)])
    return max(started, seen - LOOKBACK_SECONDS)


def _round(plan: Plan, plans: Plans) -> CheckRound:
    """Raises NotFound before the check has begun, Conflict for a plan that waits for a person."""
    check, limit = plan.check, plans.commands.policy.table.check.timeout_seconds
    if check is None:
        raise NotFound(f"plan {plan.id} has no node check")
    if plan.state is PlanState.WAITING:
        raise Conflict(f"plan {plan.id} waits for a person: {plan.history[-1].why}; stop and change nothing")
    verdict = check.verdict
    if verdict is not None:
        verdict = replace(verdict, faulty=plan.nodes)
    queries = _queries(check, plans)
    return CheckRound(
        round=check.round, queries=queries, pairs=node_check.todo(check), timeout_seconds=limit, verdict=verdict
    )


def _queries(check: NodeCheck, plans: Plans) -> tuple[QueryShape, ...] | None:
    """None where there is nothing to ask (any more): agents of before know no such field."""
    shapes = []
    for asked in node_check.unanswered(check):
        query = plans.commands.queries.query(asked.query)
        argv, seconds = (query.argv, query.timeout_seconds) if query else ((), SITE_CHECK_SECONDS)
        shapes.append(QueryShape(node=asked.node, id=asked.query, argv=argv, timeout_seconds=seconds))
    return tuple(shapes) or None
