"""`audit`: who did what, from where, and what was before and after."""

import time
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from diagnoser.commands.open_store import with_store
from diagnoser.commands.terminal import AsJson, iso, print_list
from diagnoser.model.audit import ActorKind, AuditEntry, AuditResult
from diagnoser.model.lines import printable
from diagnoser.model.queries import AuditFilter
from diagnoser.model.record_json import fields_of
from diagnoser.model.spans import seconds

PAGE = 500
WIDTH = 200
"""Characters of a change that the table shows."""


def audit_(
    actor: Annotated[str, typer.Option(help="Only of this person or token.")] = "",
    kind: Annotated[ActorKind | None, typer.Option(help="Only of this kind of caller.")] = None,
    object_kind: Annotated[str, typer.Option("--object", help="Only about this kind of object, such as plan.")] = "",
    object_id: Annotated[str, typer.Option("--id", help="Only about objects with this in their id.")] = "",
    result: Annotated[AuditResult | None, typer.Option(help="Only what was done, refused or failed.")] = None,
    within: Annotated[str, typer.Option(help="Only of the last span, such as 24h or 30d.")] = "",
    limit: Annotated[int, typer.Option(help="Entries to print, the newest first.", min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """Show what people, agents, tokens and commands did. The service keeps it for DIAGNOSER_AUDIT_RETENTION_DAYS."""
    since = None
    if within:
        since = time.time() - seconds(within)
    where = AuditFilter(
        actor=actor, kind=kind, object_kind=object_kind, object_id=object_id, result=result, since=since
    )
    entries = with_store(lambda store: _read(store, where, limit), "audit")
    print_list(entries, as_json, _fields, ("when", "who", "what", "object", "before and after"), _row)


async def _read(store: Any, where: AuditFilter, limit: int) -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    last = 0
    while page := await store.audit.page(where, last, min(PAGE, limit - len(entries))):
        entries += page
        last = page[-1].id
        if len(entries) >= limit:
            break
    return entries


def _row(entry: AuditEntry) -> tuple[str, ...]:
    actor, what = entry.actor, entry.action
    if entry.result is not AuditResult.DONE:
        what += f" {entry.result}"
    if entry.detail:
        what += f": {entry.detail}"
    before, after = entry.before or {}, entry.after or {}
    changes = [f"{name}: {before.get(name, '')} -> {after.get(name, '')}" for name in sorted({*before, *after})]
    return (
        datetime.fromtimestamp(entry.time, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        f"{actor.name} ({actor.kind}, {actor.address})",
        what,
        f"{entry.object_kind} {entry.object_id}".strip(),
        printable("; ".join(changes))[:WIDTH],
    )


def _fields(entry: AuditEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "time": iso(entry.time),
        "actor": entry.actor.name,
        "actor_kind": entry.actor.kind.value,
        "address": entry.actor.address,
        **fields_of(entry, ("action", "object_kind", "object_id", "result", "detail", "before", "after")),
    }
