"""Contract of stored tokens."""

import asyncio
from dataclasses import replace

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model.access import Credential, Owner, Scope, StoredToken
from diagnoser.model.errors import Conflict, NotFound

AGENT = Credential("slurm-east", Scope.AGENT, cluster="east", expires=1000.0, created=100.0)
MARIA = Credential("maria", Scope.OPERATE, tenant="vision", created=100.0)


async def test_a_token_is_found_with_all_that_it_may(store: SqlStore, second: SqlStore) -> None:
    """By name, in order, on every replica."""
    await store.tokens.add(StoredToken(AGENT, "h1"))
    await store.tokens.add(StoredToken(MARIA, "h2"))
    assert await second.tokens.list_all() == [StoredToken(MARIA, "h2"), StoredToken(AGENT, "h1")]


async def test_a_name_is_given_once(store: SqlStore, second: SqlStore) -> None:
    """Also when two people choose it at once, and when the first token is revoked: history names it."""
    results = await asyncio.gather(
        store.tokens.add(StoredToken(MARIA, "h1")), second.tokens.add(StoredToken(MARIA, "h2")), return_exceptions=True
    )
    assert [type(result) for result in results if result] == [Conflict]
    await store.tokens.revoke("maria", 200.0)
    with pytest.raises(Conflict):
        await store.tokens.add(StoredToken(MARIA, "h3"))
    assert len(await store.tokens.list_all()) == 1


async def test_a_rotated_token_has_two_secrets_for_a_while(store: SqlStore) -> None:
    """The new one begins its own life; the old one ends with the overlap, or before when it would have expired."""
    await store.tokens.add(StoredToken(AGENT, "h1"))
    await store.tokens.record_use("h1", 150.0)
    changed = await store.tokens.rotate("slurm-east", "h2", 2000.0, now=200.0, overlap=60.0)
    assert changed == replace(AGENT, created=200.0, expires=2000.0)
    assert await store.tokens.list_all() == [StoredToken(changed, "h2", "h1", 260.0, 150.0)]
    await store.tokens.rotate("slurm-east", "h3", None, now=1990.0, overlap=60.0)
    (token,) = await store.tokens.list_all()
    assert (token.hash, token.old_hash, token.old_until, token.credential.expires) == ("h3", "h2", 2000.0, None)


async def test_the_last_use_of_each_secret_is_known(store: SqlStore) -> None:
    """Whoever rotates sees whether anybody still sends the old one. A hash that is not there changes nothing."""
    await store.tokens.add(StoredToken(MARIA, "h1"))
    await store.tokens.rotate("maria", "h2", None, now=200.0, overlap=60.0)
    for digest, now in (("h1", 210.0), ("h2", 220.0), ("h9", 230.0)):
        await store.tokens.record_use(digest, now)
    (token,) = await store.tokens.list_all()
    assert (token.credential.last_used, token.old_used) == (220.0, 210.0)


async def test_a_revoked_token_stays_revoked(store: SqlStore, second: SqlStore) -> None:
    """The first time counts, and no new secret brings it back."""
    await store.tokens.add(StoredToken(MARIA, "h1"))
    assert (await store.tokens.revoke("maria", 200.0)).revoked == 200.0
    assert (await second.tokens.revoke("maria", 300.0)).revoked == 200.0
    with pytest.raises(Conflict):
        await second.tokens.rotate("maria", "h2", None, now=301.0, overlap=60.0)


async def test_a_token_that_is_not_there_can_neither_be_rotated_nor_revoked(store: SqlStore) -> None:
    """A slip in the name is told."""
    with pytest.raises(NotFound):
        await store.tokens.revoke("mario", 1.0)
    with pytest.raises(NotFound):
        await store.tokens.rotate("mario", "h", None, now=1.0, overlap=1.0)


async def test_a_job_belongs_to_the_cluster_that_speaks_of_it_first(store: SqlStore, second: SqlStore) -> None:
    """Known or not; what is registered says otherwise, and one who comes second changes nothing."""
    first, other = await asyncio.gather(
        store.jobs.assign_owner(["a", "b"], Owner("east"), 1.0),
        second.jobs.assign_owner(["b", "a"], Owner("west"), 1.0),
    )
    assert first == other and first in (dict.fromkeys("ab", Owner("east")), dict.fromkeys("ab", Owner("west")))
    assert await second.jobs.assign_owner(["a", "c"], Owner("north"), 2.0) == {"a": first["a"], "c": Owner("north")}
    job = await store.jobs.find("c")
    assert job is not None and (job.cluster, job.created) == ("north", 2.0)
