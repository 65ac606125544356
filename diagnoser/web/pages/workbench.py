"""The rule workbench: type a pattern or load a rule, see what it matches, and save it to run in shadow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import ValidationError

from diagnoser.learning import rule_registry
from diagnoser.learning.workbench import LINES_COUNTED, LineHit, PatternTrial, RuleProposal
from diagnoser.model import LearnedRule
from diagnoser.model.errors import BadInput, NotFound, Overloaded, RuleFaults, existing
from diagnoser.model.queries import LearnedRuleQuery
from diagnoser.model.record_json import fields_of
from diagnoser.rules.line_match import LineConditions
from diagnoser.rules.schema import Rule
from diagnoser.web.api.workbench import ProposalBody, faults, proposed
from diagnoser.web.http.access import check_whole_service
from diagnoser.web.http.authentication import Caller, may_read
from diagnoser.web.http.dependencies import Core, Workbench
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.column_order import filled
from diagnoser.web.pages.forms import Pressed, line_of, lines_of, places_of, see_other
from diagnoser.web.pages.log_viewer import text_parts
from diagnoser.web.pages.rendering import Drawn, Pages

PATH = "/rules/workbench"
LISTED = 40
LEARNED = 500
HITS = 50
SHOWN_CHARS, BEFORE_HIT = 400, 80
"""Characters of a line that are shown, and how many of them stand before what matches."""
_SURROUNDINGS = ("frames", "near", "not_near", "severity")
"""What a rule may ask beyond one line."""

router = Router(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Draft:
    """What stands in the form. case: the diagnosis that the rule is for. rule: what it was loaded from."""

    patterns: tuple[str, ...] = ()
    anchors: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    title: str = ""
    mitigation: str = ""
    case: str = ""
    rule: str = ""

    @property
    def conditions(self) -> LineConditions:
        return LineConditions(self.patterns, self.anchors, self.unless)

    def address(self, **changes: str) -> str:
        values = {
            "patterns": "\n".join(self.patterns),
            "anchors": "\n".join(self.anchors),
            "unless": "\n".join(self.unless),
            **fields_of(self, ("title", "mitigation", "case", "rule")),
        }
        return f"{PATH}?{urlencode(filled(values | changes))}"


@dataclass(frozen=True, slots=True)
class ListedRule:
    """A rule to load. standing: where it comes from, or how far a learned one has come."""

    id: str
    title: str
    type: str
    standing: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong. checks: those that a saved rule did not pass."""

    text: str = ""
    checks: Sequence[str] = ()


@router.get(PATH, dependencies=[Depends(may_read)])
async def workbench(request: Request, core: Core, bench: Workbench, pages: Drawn, caller: Caller) -> Response:
    """What is typed decides; else the rule that is named; else what the named case suggests. It reads the cases of
    all tenants, so it is for none of them."""
    check_whole_service(caller)
    given = dict(request.query_params)
    draft = draft_of(given)
    if "patterns" not in given:
        draft = await _loaded(core, bench, draft) if draft.rule else await _suggested(bench, draft)
    return await _draw(core, bench, pages, draft, line_of(given.get("q", "")))


@router.post(PATH)
async def save(form: Pressed, core: Core, bench: Workbench, pages: Drawn) -> Response:
    """Stores the rule, then redirects to it. What is wrong is told on the page, with all that was typed."""
    check_whole_service(form.caller)
    draft = draft_of(form.unread())
    try:
        rule, checks = await proposed(bench, form.caller, await _proposal(core, draft))
    except RequestValidationError as error:
        wanted = [_WANTED[place] for place in places_of(error) if place in _WANTED]
        why = next(iter(wanted), "The rule cannot be read.")
        return await _draw(core, bench, pages, draft, "", Fault(why), 400)
    except (BadInput, NotFound) as error:
        return await _draw(core, bench, pages, draft, "", Fault(str(error)), 400)
    if wrong := faults(checks):
        return await _draw(core, bench, pages, draft, "", Fault("The rule fails its first tests.", wrong), 400)
    return see_other(f"{PATH}?{urlencode({'rule': rule.id})}#rule")


async def _draw(
    core: Core, bench: Workbench, pages: Pages, draft: Draft, q: str, fault: Fault = Fault(), status: int = 200
) -> Response:
    """A pattern that cannot be tried is told beside it; that is no error of the page, for people are still typing."""
    trial, untried = PatternTrial(), ""
    if draft.patterns:
        try:
            trial = await bench.trial(draft.conditions)
        except (BadInput, Overloaded) as error:
            untried = str(error)
    learned = await core.store.rules.find(draft.rule) if draft.rule else None
    shipped = _shipped(bench, draft)
    listed = await _listed(core, bench, q)
    return pages.draw(
        "workbench.html",
        status,
        draft=draft,
        q=q,
        fault=fault,
        trial=trial,
        untried=untried,
        case=await core.store.diagnoses.find(draft.case) if draft.case else None,
        learned=learned,
        shipped=shipped,
        asks_more=_asks_more(shipped or _parsed(learned)),
        hits=await core.store.rules.hits(learned.id, HITS) if learned else (),
        listed=listed[:LISTED],
        found=len(listed),
        pieces=pieces,
        lines_counted=LINES_COUNTED,
    )


def _shipped(bench: Workbench, draft: Draft) -> Rule | None:
    """The site's own rule that the draft was loaded from; None for a learned one."""
    return next((rule for rule in bench.rules if rule.id == draft.rule), None)


def draft_of(given: Mapping[str, str]) -> Draft:
    patterns, anchors, unless = (lines_of(given.get(name, "")) for name in ("patterns", "anchors", "unless"))
    title, mitigation, case, rule = (line_of(given.get(name, "")) for name in ("title", "mitigation", "case", "rule"))
    return Draft(patterns, anchors, unless, title, mitigation, case, rule)


def drafted(rule: Rule, draft: Draft) -> Draft:
    taken = fields_of(rule, ("patterns", "anchors", "unless", "title"))
    return replace(draft, mitigation=" ".join(rule.mitigation.split()), **taken)


def pieces(hit: LineHit) -> Iterator[tuple[str, bool]]:
    """A line in parts, with what matches told apart; of a long one what is around its first match."""
    start = 0
    if hit.spans and len(hit.text) > SHOWN_CHARS:
        start = max(0, hit.spans[0][0] - BEFORE_HIT)
    stop = min(len(hit.text), start + SHOWN_CHARS)
    if start:
        yield "…", False
    yield from text_parts(hit.text[start:stop], [(low - start, high - start) for low, high in hit.spans if low < stop])
    if stop < len(hit.text):
        yield "…", False


async def _loaded(core: Core, bench: Workbench, draft: Draft) -> Draft:
    """Raises NotFound."""
    shipped = _shipped(bench, draft)
    if shipped:
        return drafted(shipped, draft)
    learned = existing(await core.store.rules.find(draft.rule), f"there is no rule {draft.rule!r}")
    parsed = _parsed(learned)
    draft = replace(draft, case=draft.case or learned.source)
    if learned.family:
        return replace(draft, patterns=tuple(learned.text.splitlines()))
    if parsed is None:
        return draft
    return drafted(parsed, draft)


async def _suggested(bench: Workbench, draft: Draft) -> Draft:
    """From the shape of the line that shows the case's cause; as it is where that tells nothing."""
    if not draft.case:
        return draft
    suggestion = await bench.lifecycle.suggestion(draft.case)
    if suggestion is None:
        return draft
    return replace(
        draft,
        patterns=suggestion.patterns,
        anchors=suggestion.anchors,
        title=draft.title or suggestion.title,
        mitigation=draft.mitigation or suggestion.mitigation,
    )


async def _proposal(core: Core, draft: Draft) -> RuleProposal:
    """Raises RequestValidationError, BadInput."""
    if not draft.case:
        raise BadInput("Choose the case that the rule is for: it gives the rule its type and its example.")
    learned = await core.store.rules.find(draft.rule) if draft.rule else None
    try:
        body = ProposalBody(
            **fields_of(draft, ("patterns", "anchors", "unless", "title", "mitigation")),
            source=draft.case,
            replaces=learned.id if learned and learned.source == draft.case else "",
        )
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    return body.proposal


_WANTED = {
    "patterns": "Type a pattern, of at most 1000 characters a line.",
    "anchors": "Give an anchor: words that every matching line contains, of at most 200 characters.",
    "title": "Give the rule a title.",
}


async def _listed(core: Core, bench: Workbench, q: str) -> list[ListedRule]:
    """Learned rules first, the newest before others, then the site's own; those that have each word of ``q``."""
    rules = []
    for learned in await core.store.rules.page(LearnedRuleQuery(), "", LEARNED):
        rules.append((ListedRule(learned.id, "", learned.type, learned.state), learned.text))
    for rule in sorted(bench.rules, key=lambda rule: (rule.type, rule.id)):
        said = " ".join((rule.title, *rule.anchors, *rule.patterns))
        rules.append((ListedRule(rule.id, rule.title, rule.type, "shipped"), said))
    words = q.casefold().split()
    return [listed for listed, said in rules if _has(words, listed, said)]


def _has(words: Sequence[str], listed: ListedRule, said: str) -> bool:
    text = f"{listed.id} {listed.type} {listed.standing} {said}".casefold()
    text = f"{text} {text.replace('_', ' ')}"
    return all(word in text for word in words)


def _parsed(learned: LearnedRule | None) -> Rule | None:
    """None where there is no text yet, or none that this version reads."""
    if learned is None:
        return None
    if not learned.text:
        return None
    try:
        return rule_registry.parse(learned.text).rules[0]
    except RuleFaults:
        return None


def _asks_more(rule: Rule | None) -> bool:
    if rule is None:
        return False
    return any(getattr(rule, name) for name in _SURROUNDINGS)
