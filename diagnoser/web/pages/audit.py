"""The page of the audit log, with its filters."""

from collections.abc import Mapping
from urllib.parse import urlencode

import orjson
from fastapi import Depends, Request
from fastapi.responses import Response

from diagnoser.model.audit import ActorKind, AuditEntry, AuditResult
from diagnoser.web.api.audit import AuditQuery, list_entries
from diagnoser.web.api.params import EARLIEST, LATEST
from diagnoser.web.api.views import WITHIN
from diagnoser.web.http.authentication import may_audit
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.column_order import filled
from diagnoser.web.pages.rendering import Drawn, page_query
from diagnoser.wording.words import iso

router = Router(include_in_schema=False, dependencies=[Depends(may_audit)])

OBJECTS = (
    "attempt",
    "breaker",
    "diagnosis",
    "evidence request",
    "incident",
    "job",
    "message",
    "node",
    "plan",
    "rule",
    "session",
    "silence",
    "token",
    "uncordon request",
    "user",
    "view",
)
PAGES = {"diagnosis": "/diagnoses/", "incident": "/incidents/", "job": "/jobs/"}
"""Kinds of objects that have a page of their own, with the beginning of its address."""


@router.get("/audit")
async def audit_page(request: Request, core: Core, pages: Drawn) -> Response:
    query, within = page_query(AuditQuery, request), request.query_params.get("within", "")
    if within in WITHIN and query.since is None:
        query = query.model_copy(update={"since": core.clock() - WITHIN[within]})
    entries, after = await list_entries(core.store.audit, query)
    filters = AuditQuery.model_fields.keys() - {"before"} | {"within"}
    chosen = {name: value for name, value in filled(request.query_params).items() if name in filters}
    return pages.draw(
        "audit.html",
        entries=[(entry, _changes(entry), _link(entry)) for entry in entries],
        chosen=chosen,
        is_first=not query.before,
        first_url="/audit?" + urlencode(chosen) if chosen else "/audit",
        next_url="/audit?" + urlencode(chosen | {"before": after}) if after else "",
        kinds=list(ActorKind),
        results=list(AuditResult),
        objects=OBJECTS,
        within=list(WITHIN),
    )


def _changes(entry: AuditEntry) -> list[tuple[str, str | None, str | None]]:
    """Field, before, after; None where the object was not there, or the field."""
    before, after = entry.before or {}, entry.after or {}
    return [(name, _text(before, name), _text(after, name)) for name in sorted({*before, *after})]


def _text(fields: Mapping[str, object], name: str) -> str | None:
    if name not in fields:
        return None
    value = fields[name]
    if isinstance(value, str):
        return value
    if isinstance(value, float) and EARLIEST < value < LATEST:
        return iso(value)
    return orjson.dumps(value).decode()


def _link(entry: AuditEntry) -> str:
    start = PAGES.get(entry.object_kind)
    if start is None:
        return ""
    if "/" in entry.object_id:
        return ""
    return start + entry.object_id
