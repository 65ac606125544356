"""Contract of the audit log: written with the effect, found by its fields, changed by nobody."""

from dataclasses import replace

import pytest
from sqlalchemy import text

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import Job
from diagnoser.model.access import Credential, Scope, StoredToken
from diagnoser.model.audit import TEXT_MOST, Actor, ActorKind, AuditEntry, AuditResult
from diagnoser.model.errors import Conflict, DiagnoserError
from diagnoser.model.queries import AuditFilter
from diagnoser.ports import AuditedCall, auditing, current_call

MARIA = Actor("maria", ActorKind.PERSON, "192.0.2.1")
ENTRY = AuditEntry(100.0, MARIA, "POST /x", "plan", "p1", before={"state": "waiting"}, after={"state": "sent"})
TOKEN = StoredToken(Credential("shipper", Scope.INGEST, created=1.0), "the-hash")


def call() -> AuditedCall:
    return AuditedCall("POST /x", 100.0, "192.0.2.1", MARIA)


async def test_an_entry_comes_back_as_it_was_written(store: SqlStore) -> None:
    """With its place in the log."""
    await store.audit.add(ENTRY)
    await store.audit.add(replace(ENTRY, before=None, after=None, result=AuditResult.REFUSED, detail="no\0"))
    second, first = await store.audit.page(AuditFilter(), 0, 10)
    assert replace(first, id=0) == ENTRY
    assert (second.before, second.after, second.result, second.detail) == (None, None, AuditResult.REFUSED, "no")
    assert second.id > first.id
    assert await store.audit.page(AuditFilter(), second.id, 10) == [first]


async def test_entries_are_found_by_each_field(store: SqlStore) -> None:
    """Names and kinds as a whole, actions and ids by a part; a wildcard is a character like any other."""
    await store.audit.add(ENTRY)
    await store.audit.add(
        AuditEntry(200.0, Actor("bot%", ActorKind.TOKEN), "POST /y", "node", "n_1", AuditResult.REFUSED, "403")
    )
    one, two = {"p1"}, {"n_1"}
    for where, expected in (
        (AuditFilter(actor="maria"), one),
        (AuditFilter(actor="mar"), set()),
        (AuditFilter(kind=ActorKind.TOKEN), two),
        (AuditFilter(action="/y"), two),
        (AuditFilter(action="%"), set()),
        (AuditFilter(object_kind="plan"), one),
        (AuditFilter(object_id="_"), two),
        (AuditFilter(result=AuditResult.DONE), one),
        (AuditFilter(since=200.0), two),
        (AuditFilter(until=200.0), one),
        (AuditFilter(), one | two),
    ):
        assert {entry.object_id for entry in await store.audit.page(where, 0, 10)} == expected, where


async def test_what_the_store_changes_is_written_in_the_name_of_the_call(store: SqlStore) -> None:
    """Before and after, without the hash; nothing where nobody calls."""
    await store.jobs.register(Job("quiet", created=1.0))
    with auditing(call()) as made:
        await store.tokens.add(TOKEN)
        await store.tokens.revoke("shipper", 50.0)
    assert current_call() is None and made.entries == 2
    revoked, added = await store.audit.page(AuditFilter(), 0, 10)
    assert (added.actor, added.object_kind, added.object_id, added.before) == (MARIA, "token", "shipper", None)
    assert added.after is not None and added.after["scope"] == "ingest"
    assert (revoked.before, revoked.after) == ({"revoked": None}, {"revoked": 50.0})
    assert "the-hash" not in repr([added, revoked])


async def test_what_does_not_happen_is_not_written(store: SqlStore) -> None:
    """The entry goes with the transaction."""
    await store.tokens.add(TOKEN)
    with auditing(call()), pytest.raises(Conflict):
        await store.tokens.add(TOKEN)
    assert await store.audit.page(AuditFilter(), 0, 10) == []


async def test_long_values_are_cut(store: SqlStore) -> None:
    """To what a person reads, with how long they were."""
    with auditing(call()):
        await store.jobs.register(
            Job("j", name="n" * 2000, nodes=tuple(f"n{number}" for number in range(5000)), created=1.0)
        )
    (entry,) = await store.audit.page(AuditFilter(), 0, 10)
    assert entry.after is not None
    assert len(str(entry.after["name"])) < TEXT_MOST + 30 and "2000 characters" in str(entry.after["name"])
    assert len(str(entry.after)) < 2000


async def test_no_entry_can_be_changed(store: SqlStore) -> None:
    """The database itself refuses."""
    await store.audit.add(ENTRY)
    with pytest.raises(DiagnoserError, match="append-only"):
        async with store.db.writing() as connection:
            await connection.execute(text("UPDATE audit_log SET actor = 'nobody'"))
    (entry,) = await store.audit.page(AuditFilter(), 0, 10)
    assert entry.actor == MARIA


async def test_old_entries_are_dropped_by_steps(store: SqlStore) -> None:
    """The oldest first; ids are not given again."""
    for time in (1.0, 2.0, 3.0):
        await store.audit.add(replace(ENTRY, time=time))
    last = (await store.audit.page(AuditFilter(), 0, 1))[0].id
    assert (await store.audit.drop(3.0, 1), await store.audit.drop(4.0, 10)) == (1, 2)
    await store.audit.add(ENTRY)
    assert (await store.audit.page(AuditFilter(), 0, 1))[0].id > last
