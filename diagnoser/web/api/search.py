"""One search over jobs, nodes, incidents, lines of diagnoses and rules."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import Query
from pydantic import Field

from diagnoser.model import Incident, LearnedRule
from diagnoser.model.queries import DiagnosisFilter, FoundNode
from diagnoser.model.work import DiagnosisRecord
from diagnoser.rules.schema import Rule
from diagnoser.web.api.params import Search, utc
from diagnoser.web.http.authentication import READ, Caller
from diagnoser.web.http.dependencies import Core, ShippedRules
from diagnoser.web.http.routing import ApiRouter, Schema, StrictSchema
from diagnoser.wording.phrases import plural
from diagnoser.wording.words import cause, name, visible

SHOWN, MOST = 5, 20
_EXCERPT = 200
_LEAD = 40
"""Characters of a long line that are shown before its first match."""

router = ApiRouter("search", dependencies=READ)


class HitKind(StrEnum):
    """What can be found, in the order in which it is shown. line: of a diagnosis: its root line or evidence."""

    JOB = "job"
    NODE = "node"
    INCIDENT = "incident"
    LINE = "line"
    RULE = "rule"


class SearchQuery(StrictSchema):
    q: Search = Field(description="Part of a name, or words of a line: all of them, in any order and case")
    limit: int = Field(SHOWN, ge=1, le=MOST, description="Hits of each kind")


class SearchHit(Schema):
    """title, detail: for people, with control characters written out. url: its page. time: when it last happened."""

    title: str
    detail: str
    url: str
    time: datetime | None = None


class HitGroup(Schema):
    """The hits of one kind. more: a page that lists all of them, where there is one; else empty."""

    kind: HitKind
    hits: list[SearchHit]
    more: str


class SearchResult(Schema):
    """Kinds without a hit are left out."""

    q: str
    groups: list[HitGroup]


@router.get("/search", summary="Search everything")
async def search(
    query: Annotated[SearchQuery, Query()], core: Core, shipped_rules: ShippedRules, caller: Caller
) -> SearchResult:
    """Jobs by their id, nodes by their name, incidents by their node, cause, line and assignee, lines of current
    diagnoses by their words, rules by their id and title. The newest come first; each kind is bounded."""
    asked, base, limit = query.q.strip(), core.config.base_url, query.limit
    if not asked:
        return SearchResult(q=query.q, groups=[])
    store = core.store
    jobs, nodes, incidents, records, learned = await asyncio.gather(
        store.search.jobs_like(asked, limit),
        store.search.nodes_containing(asked, limit),
        store.search.incidents_like(asked, limit),
        store.diagnoses.page(DiagnosisFilter(text=asked), "", limit),
        store.search.learned_rules_like(asked, limit),
    )
    words = asked.casefold().split()
    diagnosed = [record.attempt.job for record in records if _has_all(record.attempt.job, words)]
    all_jobs = list(dict.fromkeys([*jobs, *diagnosed]))
    shipped = [rule for rule in shipped_rules() if _has_all(f"{rule.id} {rule.title} {rule.type}", words)]
    hits = {
        HitKind.JOB: [
            SearchHit(title=visible(job), detail="", url=f"{base}/jobs/{quote(job, safe='')}")
            for job in all_jobs[:limit]
        ],
        HitKind.NODE: [_of_node(node, base) for node in nodes],
        HitKind.INCIDENT: [_of_incident(incident, base) for incident in incidents],
        HitKind.LINE: [_of_record(record, words, base) for record in records],
        HitKind.RULE: _of_rules(learned, shipped, base, sees_all=caller.viewer.sees_all)[:limit],
    }
    all_lines = f"{base}/diagnoses?{urlencode({'q': asked})}"
    more = {HitKind.LINE: all_lines} if len(records) == limit else {}
    groups = [HitGroup(kind=kind, hits=found, more=more.get(kind, "")) for kind, found in hits.items() if found]
    return SearchResult(q=query.q, groups=groups)


def _has_all(text: str, words: Iterable[str]) -> bool:
    folded = text.casefold()
    return all(word in folded for word in words)


def _of_node(found: FoundNode, base: str) -> SearchHit:
    cluster = f"?{urlencode({'cluster': found.cluster})}" if found.cluster else ""
    url = f"{base}/nodes/{quote(found.node, safe='')}{cluster}"
    return SearchHit(title=visible(found.node), detail=visible(found.cluster), url=url)


def _of_incident(incident: Incident, base: str) -> SearchHit:
    title = cause(incident.type)
    if incident.node:
        title = f"{incident.node}: {title}"
    return SearchHit(
        title=visible(title),
        detail=visible(f"{incident.state}, {plural(incident.failures, 'failure')}. {incident.line[:_EXCERPT]}".strip()),
        url=f"{base}/incidents/{incident.id}",
        time=utc(incident.last_seen),
    )


def _of_record(record: DiagnosisRecord, words: Sequence[str], base: str) -> SearchHit:
    verdict, root = record.diagnosis, record.diagnosis.root_cause
    lines = [*([root.text] if root else []), *(line.text for line in verdict.evidence)]
    best = max(lines, key=lambda line: sum(word in line.casefold() for word in words), default=verdict.mitigation)
    return SearchHit(
        title=visible(f"{cause(verdict.type)}, {record.attempt.job}"),
        detail=visible(excerpt(best, words)),
        url=f"{base}/diagnoses/{record.id}",
        time=utc(record.created),
    )


def excerpt(line: str, words: Sequence[str]) -> str:
    """The part of a line that begins shortly before the first of the words."""
    folded = line.casefold()
    start = 0
    if len(line) > _EXCERPT:
        places = [folded.find(word) for word in words if word in folded]
        start = max(0, min(places, default=0) - _LEAD)
    return ("\u2026" if start else "") + line[start : start + _EXCERPT]


def _of_rules(learned: Iterable[LearnedRule], shipped: Iterable[Rule], base: str, *, sees_all: bool) -> list[SearchHit]:
    """A shipped rule leads to the workbench, which is for those who see all; for others to what it decided."""
    hits = []
    for own in learned:
        detail = f"learned, {own.state}; {name(own.type)}"
        hits.append(SearchHit(title=own.id, detail=detail, url=f"{base}/rules#{own.id}"))
    for rule in shipped:
        url = f"{base}/diagnoses?{urlencode({'decided_by': f'rule:{rule.id}'})}"
        if sees_all:
            url = f"{base}/rules/workbench?{urlencode({'rule': rule.id})}"
        hits.append(SearchHit(title=rule.id, detail=f"{rule.title}; {name(rule.type)}", url=url))
    return hits
