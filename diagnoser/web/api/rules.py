"""Routes of learned rules: people read, promote, retire and restore them."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from diagnoser.client.service import API
from diagnoser.learning import rule_lifecycle
from diagnoser.model import HitVerdict, LearnedRule, LearnedState, RuleHit
from diagnoser.model.access import Credential
from diagnoser.model.errors import NotFound
from diagnoser.ports import LearnedRuleQuery
from diagnoser.web.api.params import utc
from diagnoser.web.api.plans import DecisionBody
from diagnoser.web.http.access import check_whole_service
from diagnoser.web.http.authentication import OPERATE, READ, Caller, Provided
from diagnoser.web.http.dependencies import AppDependencies
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Router, Schema

PAGE, PAGE_LIMIT = 50, 500
HITS = 50

router = Router(prefix=API, tags=["learned rules"])

RuleId = Annotated[str, Path(pattern=r"^[a-z0-9_]{1,200}$", description="Id of the rule")]


class RuleQuery(Schema):
    model_config = ConfigDict(extra="forbid")

    state: LearnedState | None = None
    after: str = Field("", max_length=250, description="`next` of the page before")
    limit: int = Field(PAGE, ge=1, le=PAGE_LIMIT)


class GateShape(Schema):
    """One test of a proposed rule with its result."""

    name: str
    passed: bool
    reason: str


class AuthorShape(Schema):
    """name: `template` (made from the shape of the line), `llm:<model>` or `person`. failure: why not the model."""

    name: str
    model: str
    prompt: str
    prompt_hash: str
    temperature: float
    calls: int
    tokens_in: int
    tokens_out: int
    failure: str


class TurnShape(Schema):
    """An entry of the rule's history."""

    time: datetime
    state: LearnedState
    by: str
    why: str


class CountsShape(Schema):
    """Attempts in which the rule hit, or would have; what became known of them."""

    hits: int
    confirmed: int
    wrong: int


class HitShape(Schema):
    """An attempt in which the rule hit, or (active is false) would have decided."""

    job: str
    attempt: int
    diagnosis: str
    time: datetime
    verdict: HitVerdict
    active: bool


class LearnedShape(Schema):
    """A learned rule. path, text: the file that `diagnoser rules export` writes; text is empty until it is written.

    source: the diagnosis that it is learned from. replaces: the rule that a person made it from, empty for none.
    """

    id: str
    state: LearnedState
    type: str
    source: str
    by: str
    replaces: str
    created: datetime
    changed: datetime
    path: str
    text: str
    author: AuthorShape
    gates: list[GateShape]
    history: list[TurnShape]
    counts: CountsShape


class LearnedDetail(LearnedShape):
    hits: list[HitShape]


class LearnedPage(Schema):
    """Newest first. ``next`` is what ``after`` must be for the following page, null on the last one."""

    items: list[LearnedShape]
    next: str | None


@router.get("/rules", dependencies=READ, responses=answers(400, 401, 503), summary="List learned rules")
async def index(query: Annotated[RuleQuery, Query()], services: Provided) -> LearnedPage:
    where = LearnedRuleQuery((query.state,) if query.state else ())
    rules = await services.store.rules.page(where, query.after, query.limit + 1)
    items = rules[: query.limit]
    after = items[-1].id if len(rules) > query.limit else None
    return LearnedPage(items=[of_learned(rule) for rule in items], next=after)


@router.get("/rules/{id}", dependencies=READ, responses=answers(400, 401, 404, 503), summary="One learned rule")
async def one(id: RuleId, services: Provided) -> LearnedDetail:
    """The rule with the newest attempts in which it hit."""
    rule = await find(services, id)
    hits = [_of_hit(hit) for hit in await services.store.rules.hits(id, HITS)]
    return LearnedDetail(**of_learned(rule).model_dump(), hits=hits)


_CHANGE = answers(400, 401, 403, 404, 409, 413, 503)


@router.post("/rules/{id}/promote", dependencies=OPERATE, responses=_CHANGE, summary="Promote a rule from shadow")
async def promote(id: RuleId, body: DecisionBody, services: Provided, caller: Caller) -> LearnedShape:
    """It stays in `sandbox`: it names causes for a person and leads to no action."""
    return of_learned(await changed(services, caller, id, rule_lifecycle.promoted, body.comment))


@router.post("/rules/{id}/retire", dependencies=OPERATE, responses=_CHANGE, summary="Retire a rule")
async def retire(id: RuleId, body: DecisionBody, services: Provided, caller: Caller) -> LearnedShape:
    """From shadow or from active use. Every replica drops the rule before its next diagnosis."""
    return of_learned(await changed(services, caller, id, rule_lifecycle.retired, body.comment))


@router.post("/rules/{id}/restore", dependencies=OPERATE, responses=_CHANGE, summary="Restore a retired rule")
async def restore(id: RuleId, body: DecisionBody, services: Provided, caller: Caller) -> LearnedShape:
    """The rule has to pass the tests again and then runs in shadow."""
    return of_learned(await changed(services, caller, id, rule_lifecycle.restored, body.comment))


Move = Callable[[LearnedRule, str, str, float], LearnedRule]
"""Rule, who, why, when -> the rule in its new state. Raises Conflict."""


async def changed(services: AppDependencies, caller: Credential, id: str, move: Move, comment: str) -> LearnedRule:
    """Raises NotFound, Conflict, OutOfScope."""
    check_whole_service(caller)
    rule = await find(services, id)
    return await services.store.rules.change(rule, move(rule, caller.name, comment.replace("\0", ""), services.clock()))


async def find(services: AppDependencies, id: str) -> LearnedRule:
    rule = await services.store.rules.find(id)
    if rule is None:
        raise NotFound(f"there is no learned rule {id!r}")
    return rule


def of_learned(rule: LearnedRule) -> LearnedShape:
    names = ("id", "state", "type", "source", "by", "replaces", "text")
    return LearnedShape(
        created=utc(rule.created),
        changed=utc(rule.changed or rule.created),
        path=rule_lifecycle.file_of(rule),
        author=AuthorShape(**_fields(rule.author, AuthorShape)),
        gates=[GateShape(**_fields(gate, GateShape)) for gate in rule.gates],
        history=[TurnShape(time=utc(turn.time), state=turn.state, by=turn.by, why=turn.why) for turn in rule.history],
        counts=CountsShape(**_fields(rule.counts, CountsShape)),
        **{name: getattr(rule, name) for name in names},
    )


def _of_hit(hit: RuleHit) -> HitShape:
    names = ("diagnosis", "verdict", "active")
    return HitShape(
        job=hit.attempt.job,
        attempt=hit.attempt.number,
        time=utc(hit.time),
        **{name: getattr(hit, name) for name in names},
    )


def _fields(source: object, shape: type[BaseModel]) -> dict[str, object]:
    return {name: getattr(source, name) for name in shape.model_fields}
