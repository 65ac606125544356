"""Routes of the rule workbench: try a pattern, and propose the rule that becomes of it."""

from typing import Annotated

from pydantic import AliasPath, Field, StringConstraints

from diagnoser.learning.template_rules import RuleDraft
from diagnoser.learning.workbench import ExampleHit, LineHit, RuleProposal
from diagnoser.model import LearnedRule, ValidationResult
from diagnoser.model.access import Credential
from diagnoser.model.errors import BadInput
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.line_match import PATTERN_LENGTH, PATTERNS_MAX, LineConditions
from diagnoser.web.api.rules import LearnedShape
from diagnoser.web.http.access import check_whole_service
from diagnoser.web.http.authentication import OPERATE, READ, Caller
from diagnoser.web.http.dependencies import Workbench
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Answer, ApiRouter, StrictSchema

router = ApiRouter("learned rules")

_PRINTED = r"^[^\x00-\x1f\x7f]*$"
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=PATTERN_LENGTH, pattern=_PRINTED)]
Literal = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_PRINTED)]
Prose = Annotated[str, StringConstraints(max_length=2000, pattern=_PRINTED)]


class TrialBody(StrictSchema):
    """What a rule asks of one line: one of the anchors (if there are any), one of the patterns, and none of ``unless``.
    Patterns are RE2 and are searched in the line without terminal codes and launcher prefixes."""

    patterns: list[Pattern] = Field(min_length=1, max_length=PATTERNS_MAX)
    anchors: list[Literal] = Field(default_factory=list, max_length=PATTERNS_MAX)
    unless: list[Pattern] = Field(default_factory=list, max_length=PATTERNS_MAX)


class ProposalBody(TrialBody):
    """A rule for the failure of a diagnosis whose cause a person named. Type, role and examples follow from that
    failure."""

    anchors: list[Literal] = Field(min_length=1, max_length=PATTERNS_MAX)
    source: Annotated[str, StringConstraints(min_length=1, max_length=200)] = Field(description="Id of the diagnosis")
    title: Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_PRINTED)]
    mitigation: Prose = ""
    replaces: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{0,200}$")] = Field(
        "",
        description="Id of the learned rule that this one is an edition of; it is retired when this one is in shadow",
    )

    @property
    def proposal(self) -> RuleProposal:
        draft = RuleDraft(self.title, tuple(self.anchors), tuple(self.patterns), tuple(self.unless), self.mitigation)
        return RuleProposal(self.source, draft, self.replaces)


class MatchedAttempt(Answer):
    """The root line of an attempt where it matches, else the first line that does. lines: how many different ones,
    10 for so many or more."""

    job: str = Field(validation_alias=AliasPath("attempt", "job"))
    attempt: int = Field(validation_alias=AliasPath("attempt", "number"))
    diagnosis: str
    type: FailureType
    is_root: bool
    lines: int
    line: LineHit


class AttemptMatches(Answer):
    """known: attempts that there are; searched: those that were looked at; items: the first of those that match."""

    matched: int
    searched: int
    known: int
    items: list[MatchedAttempt]


class ExampleMatches(Answer):
    matched: int
    searched: int
    items: list[ExampleHit]


class TrialShape(Answer):
    """cases: failures whose cause is confirmed. types: those that match, by cause. healthy: completed runs.

    is_complete is false where logs are still being read or the time was over: the same request searches more.
    """

    cases: AttemptMatches
    types: dict[FailureType, int]
    examples: ExampleMatches
    healthy: AttemptMatches
    is_complete: bool


@router.post("/rules/try", dependencies=READ, summary="Try a pattern")
async def try_pattern(body: TrialBody, bench: Workbench, caller: Caller) -> TrialShape:
    """What it matches in confirmed failures, in the examples of rules and filters, and in completed runs: those of all
    tenants, so it is for none of them."""
    conditions = LineConditions(tuple(body.patterns), tuple(body.anchors), tuple(body.unless))
    check_whole_service(caller)
    return TrialShape.model_validate(await bench.trial(conditions))


@router.post("/rules", dependencies=OPERATE, responses=answers(404), summary="Propose a rule")
async def propose(body: ProposalBody, bench: Workbench, caller: Caller) -> LearnedShape:
    """It is held against stored attempts and then runs in shadow: it is counted, and decides nothing until somebody
    promotes it. The same rule again is the rule that is there."""
    rule, checks = await proposed(bench, caller, body.proposal)
    if wrong := faults(checks):
        raise BadInput("; ".join(wrong))
    return LearnedShape.from_rule(rule)


async def proposed(
    bench: Workbench, caller: Credential, proposal: RuleProposal
) -> tuple[LearnedRule, tuple[ValidationResult, ...]]:
    """As ``RuleWorkbench.propose``. Raises OutOfScope for a credential of one cluster or tenant."""
    check_whole_service(caller)
    return await bench.propose(proposal, caller.name)


def faults(checks: tuple[ValidationResult, ...]) -> list[str]:
    """What the checks that failed say."""
    return [f"{check.name.replace('_', ' ')}: {check.reason}" for check in checks if not check.passed]
