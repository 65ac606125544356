"""Routes of learned rules: people read, promote, retire and restore them."""

from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Self

from fastapi import Path, Query
from pydantic import AliasPath, Field

from diagnoser.learning import rule_lifecycle
from diagnoser.model import Author, HitVerdict, LearnedRule, LearnedState, ValidationResult
from diagnoser.model.access import Credential
from diagnoser.model.errors import existing
from diagnoser.model.learned import Counts
from diagnoser.model.queries import LearnedRuleQuery
from diagnoser.web.api.params import Moment, first_page
from diagnoser.web.api.plans import DecisionBody
from diagnoser.web.http.access import check_whole_service
from diagnoser.web.http.authentication import OPERATE, READ, Caller
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Answer, ApiRouter, Schema, StrictSchema

PAGE, PAGE_LIMIT = 50, 500
HITS = 50

router = ApiRouter("learned rules")

RuleId = Annotated[str, Path(pattern=r"^[a-z0-9_]{1,200}$", description="Id of the rule")]


class RuleQuery(StrictSchema):
    state: LearnedState | None = None
    filters: bool = Field(False, description="Filter Rules of job families instead of rules that name causes")
    after: str = Field("", max_length=250, description="`next` of the page before")
    limit: int = Field(PAGE, ge=1, le=PAGE_LIMIT)


class TurnShape(Answer):
    """An entry of the rule's history."""

    time: Moment
    state: LearnedState
    by: str
    why: str


class HitShape(Answer):
    """An attempt in which the rule hit, or (active is false) would have decided."""

    job: str = Field(validation_alias=AliasPath("attempt", "job"))
    attempt: int = Field(validation_alias=AliasPath("attempt", "number"))
    diagnosis: str
    time: Moment
    verdict: HitVerdict
    active: bool


class LearnedShape(Answer):
    """A learned rule. path, text: the file that `diagnoser rules export` writes; text is empty until it is written.

    source: the diagnosis that it is learned from. replaces: the rule that a person made it from, empty for none.
    family: the job family whose log a Filter Rule shortens, empty for a rule that names a cause.
    """

    id: str
    state: LearnedState
    type: str
    source: str
    by: str
    replaces: str
    family: str
    created: Moment
    changed: Moment
    path: str
    text: str
    author: Author
    gates: list[ValidationResult]
    history: list[TurnShape]
    counts: Counts

    @classmethod
    def from_rule(cls, rule: LearnedRule, **values: object) -> Self:
        path = rule_lifecycle.file_of(rule)
        return cls.filled_from(rule, changed=rule.changed or rule.created, path=path, **values)


class LearnedDetail(LearnedShape):
    hits: list[HitShape]


class LearnedPage(Schema):
    """Newest first. ``next`` is what ``after`` must be for the following page, null on the last one."""

    items: list[LearnedShape]
    next: str | None


@router.get("/rules", dependencies=READ, summary="List learned rules")
async def index(query: Annotated[RuleQuery, Query()], core: Core) -> LearnedPage:
    where = LearnedRuleQuery((query.state,) if query.state else (), filters=query.filters)
    rules = await core.store.rules.page(where, query.after, query.limit + 1)
    shown, after = first_page(rules, query.limit, attrgetter("id"))
    return LearnedPage(items=list(map(LearnedShape.from_rule, shown)), next=after)


@router.get("/rules/{id}", dependencies=READ, responses=answers(404), summary="One learned rule")
async def one(id: RuleId, core: Core) -> LearnedDetail:
    """The rule with the newest attempts in which it hit."""
    rule = await find(core, id)
    return LearnedDetail.from_rule(rule, hits=await core.store.rules.hits(id, HITS))


_CHANGE = answers(404, 409)


@router.post("/rules/{id}/promote", dependencies=OPERATE, responses=_CHANGE, summary="Promote a rule from shadow")
async def promote(id: RuleId, body: DecisionBody, core: Core, caller: Caller) -> LearnedShape:
    """It stays in `sandbox`: it names causes for a person and leads to no action."""
    return LearnedShape.from_rule(await changed(core, caller, id, rule_lifecycle.promoted, body.comment))


@router.post("/rules/{id}/retire", dependencies=OPERATE, responses=_CHANGE, summary="Retire a rule")
async def retire(id: RuleId, body: DecisionBody, core: Core, caller: Caller) -> LearnedShape:
    """From shadow or from active use. Every replica drops the rule before its next diagnosis."""
    return LearnedShape.from_rule(await changed(core, caller, id, rule_lifecycle.retired, body.comment))


@router.post("/rules/{id}/restore", dependencies=OPERATE, responses=_CHANGE, summary="Restore a retired rule")
async def restore(id: RuleId, body: DecisionBody, core: Core, caller: Caller) -> LearnedShape:
    """The rule has to pass the tests again and then runs in shadow."""
    return LearnedShape.from_rule(await changed(core, caller, id, rule_lifecycle.restored, body.comment))


Move = Callable[[LearnedRule, str, str, float], LearnedRule]
"""Rule, who, why, when -> the rule in its new state. Raises Conflict."""


async def changed(core: Core, caller: Credential, id: str, move: Move, comment: str) -> LearnedRule:
    """Raises NotFound, Conflict, OutOfScope."""
    check_whole_service(caller)
    rule = await find(core, id)
    return await core.store.rules.change(rule, move(rule, caller.name, comment.replace("\0", ""), core.clock()))


async def find(core: Core, id: str) -> LearnedRule:
    return existing(await core.store.rules.find(id), f"there is no learned rule {id!r}")
