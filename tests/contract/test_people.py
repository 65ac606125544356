"""Contract of users and their sessions."""

import asyncio
from dataclasses import replace

import pytest

from diagnoser.adapters.passwords import Argon2Passwords
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model.errors import Conflict, Denied, NotFound, Throttled
from diagnoser.model.people import Identity, Role, Session, User, UserChange
from diagnoser.web.http.sign_in import ACCOUNT_TRIES, PasswordSignIn

MARIA = User("maria", Role.OPERATOR, 100.0)
ISSUER = "https://login.example"
KAI = Identity(ISSUER, "u1", "kai", Role.VIEWER)


def session(hash: str = "h1", user: str = "maria", **other: float) -> Session:
    return replace(Session(hash, user, 200.0, 200.0, 900.0, "192.0.2.1", "a browser"), **other)  # type: ignore[arg-type]


async def test_a_user_is_found_with_the_hash_of_the_password(store: SqlStore, second: SqlStore) -> None:
    """On every replica; the list has no hashes."""
    assert not await store.users.has_users()
    await store.users.add(MARIA, "hash")
    assert await second.users.has_users()
    assert (await second.users.list_all(), await second.users.find_with_password("maria")) == ([MARIA], (MARIA, "hash"))
    assert await second.users.find_with_password("mario") is None


async def test_a_name_is_given_once(store: SqlStore, second: SqlStore) -> None:
    """Also when two people choose it at once, and to a person of the identity provider."""
    results = await asyncio.gather(store.users.add(MARIA, "h1"), second.users.add(MARIA, "h2"), return_exceptions=True)
    assert [type(result) for result in results if result] == [Conflict]
    with pytest.raises(Conflict):
        await store.users.sign_in_identity(replace(KAI, name="maria"), 1.0)
    assert len(await store.users.list_all()) == 1


@pytest.mark.parametrize(
    ("change", "expected", "ends"),
    [
        (UserChange(role=Role.VIEWER), replace(MARIA, role=Role.VIEWER), True),
        (UserChange(role=Role.ADMIN), replace(MARIA, role=Role.ADMIN), False),
        (UserChange(password="new"), MARIA, True),
        (UserChange(disabled=True), replace(MARIA, disabled=300.0), True),
        (UserChange(disabled=False), MARIA, False),
    ],
)
async def test_who_loses_rights_is_signed_out(store: SqlStore, change: UserChange, expected: User, ends: bool) -> None:
    """In the same transaction; who gains some goes on."""
    await store.users.add(MARIA, "hash")
    await store.users.add_session(session())
    assert await store.users.change("maria", change, 300.0) == replace(expected, last_sign_in=200.0)
    found = await store.users.session("h1")
    assert found is not None and found[0].ended == (300.0 if ends else None)
    stored = await store.users.find_with_password("maria")
    assert stored is not None and stored[1] == (change.password or "hash")


async def test_a_user_that_is_not_there_cannot_be_changed(store: SqlStore) -> None:
    """A slip in the name is told."""
    with pytest.raises(NotFound):
        await store.users.change("mario", UserChange(disabled=True), 1.0)
    with pytest.raises(NotFound):
        await store.users.add_session(session(user="mario"))


async def test_a_password_is_renewed_unless_it_was_changed_meanwhile(store: SqlStore) -> None:
    """Compare and set; sessions stay."""
    await store.users.add(MARIA, "weak")
    await store.users.add_session(session())
    await store.users.renew_password("maria", "weak", "strong")
    await store.users.renew_password("maria", "weak", "lost")
    found = await store.users.find_with_password("maria")
    assert found is not None and found[1] == "strong"
    assert len(await store.users.sessions("maria")) == 1


async def test_a_person_of_the_provider_is_made_once_and_keeps_the_first_name(
    store: SqlStore, second: SqlStore
) -> None:
    """The role is that of the last sign-in; a name that changed at the provider changes nothing here."""
    results = await asyncio.gather(
        *(replica.users.sign_in_identity(KAI, 100.0) for replica in (store, second)), return_exceptions=True
    )
    assert User("kai", Role.VIEWER, 100.0, ISSUER, "u1") in results
    again = await second.users.sign_in_identity(replace(KAI, name="kay", role=Role.ADMIN), 200.0)
    assert (again.name, again.role, again.created) == ("kai", Role.ADMIN, 100.0)
    assert len(await store.users.list_all()) == 1
    other = await store.users.sign_in_identity(Identity(ISSUER, "u2", "lee", Role.VIEWER), 300.0)
    assert other.name == "lee"
    with pytest.raises(Conflict):
        await store.users.change("kai", UserChange(password="x"), 300.0)
    await store.users.change("kai", UserChange(disabled=True), 300.0)
    with pytest.raises(Denied):
        await second.users.sign_in_identity(KAI, 400.0)


async def test_sessions_are_found_used_and_ended(store: SqlStore, second: SqlStore) -> None:
    """One by its hash, or all of a user; what has ended stays known, and ends once."""
    await store.users.add(MARIA, "hash")
    await store.users.add(replace(MARIA, name="ida"), "hash")
    for made in (session("h1"), session("h2", created=250.0), session("h3"), session("h4", user="ida")):
        await store.users.add_session(made)
    await second.users.record_session_use("h1", 260.0)
    found = await second.users.session("h1")
    assert found is not None and (found[0].last_used, found[1].name) == (260.0, "maria")
    assert await store.users.session("h9") is None
    assert [one.hash for one in await store.users.sessions("maria")] == ["h2", "h1", "h3"]
    assert await store.users.end_sessions("maria", 300.0, "h4") == 0
    assert await store.users.end_sessions("maria", 300.0, "h1") == 1
    assert await second.users.end_sessions("maria", 310.0) == 2
    assert await second.users.end_sessions("maria", 320.0) == 0
    ended = await store.users.session("h1")
    assert ended is not None and ended[0].ended == 300.0
    assert [one.hash for one in await store.users.sessions("ida")] == ["h4"]


async def test_where_a_person_has_signed_in_is_known_until_the_session_is_dropped(store: SqlStore) -> None:
    """By the address, since a time."""
    await store.users.add(MARIA, "hash")
    await store.users.add_session(session())
    assert await store.users.has_signed_in("maria", "192.0.2.1", 200.0)
    assert not await store.users.has_signed_in("maria", "192.0.2.1", 201.0)
    assert not await store.users.has_signed_in("maria", "192.0.2.2", 0.0)
    assert not await store.users.has_signed_in("mario", "192.0.2.1", 0.0)
    assert await store.users.drop_sessions(900.0, 10) == 0
    assert await store.users.drop_sessions(901.0, 10) == 1
    assert not await store.users.has_signed_in("maria", "192.0.2.1", 0.0)


async def test_tries_to_sign_in_are_counted_by_all_replicas(store: SqlStore, second: SqlStore) -> None:
    """By key, within the window; what is refused counts for no key, so that the wait ends."""
    tries = {"account maria": 2, "address 192.0.2.1": 3}
    assert await store.logins.count(tries, 100.0, 60.0) == await second.logins.count(tries, 110.0, 60.0) == 0.0
    assert await store.logins.count(tries, 120.0, 60.0) == await second.logins.count(tries, 120.0, 60.0) == 40.0
    assert await second.logins.count({"account kai": 2, "address 192.0.2.1": 3}, 121.0, 60.0) == 0.0
    assert await store.logins.count({"account ida": 2, "address 192.0.2.1": 3}, 122.0, 60.0) == 38.0
    assert await store.logins.count(tries, 160.0, 60.0) == 0.0


async def test_tries_before_a_clock_was_set_back_lock_nobody_out(store: SqlStore) -> None:
    """And those after it are counted as before."""
    tries = {"account maria": 2}
    for time in (9_000.0, 9_001.0, 100.0, 101.0):
        assert await store.logins.count(tries, time, 60.0) == 0.0
    assert await store.logins.count(tries, 102.0, 60.0) == 58.0


async def test_a_right_password_takes_its_try_back(store: SqlStore, second: SqlStore) -> None:
    """At whichever replica; that of another try stays."""
    tries = {"account maria": 2}
    for time in (100.0, 101.0):
        await store.logins.count(tries, time, 60.0)
    await second.logins.uncount(tries, 100.0)
    await second.logins.uncount(tries, 99.0)
    assert await store.logins.count(tries, 102.0, 60.0) == 0.0
    assert await store.logins.count(tries, 103.0, 60.0) == 58.0


async def test_guesses_at_two_replicas_at_once_are_no_more_than_at_one(store: SqlStore, second: SqlStore) -> None:
    """Forty at the same moment, for two accounts from one address: each key gets its number, exactly."""
    hasher = Guesses()
    doors = [PasswordSignIn(replica, hasher, lambda: 100.0) for replica in (store, second)]
    guesses = (doors[number % 2].check(f"name-{number % 4 // 2}", "guess", "192.0.2.1") for number in range(40))
    results = await asyncio.gather(*guesses, return_exceptions=True)
    assert {type(result) for result in results} == {Denied, Throttled}
    assert hasher.count == 2 * ACCOUNT_TRIES == sum(type(result) is Denied for result in results)


async def test_what_was_tried_long_ago_is_dropped(store: SqlStore) -> None:
    """By the last try of each key."""
    await store.logins.count({"account maria": 2}, 100.0, 60.0)
    await store.logins.count({"account kai": 2}, 200.0, 60.0)
    assert [await store.logins.drop(150.0, 10) for _ in range(2)] == [1, 0]


class Guesses(Argon2Passwords):
    """A hasher that every password is wrong for, and that counts them."""

    count = 0

    async def hash(self, password: str) -> str:
        return ""

    async def verify(self, hash: str, password: str) -> bool:
        self.count += 1
        return False

    def is_outdated(self, hash: str) -> bool:
        return False
