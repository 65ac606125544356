"""Contract of users and their sessions."""

import asyncio
from dataclasses import replace

import pytest

from diagnoser.model.errors import Conflict, Denied, NotFound, Throttled
from diagnoser.model.people import Identity, Role, Session, User
from diagnoser.ports import Store, UserChange
from diagnoser.web.http.login_throttle import ACCOUNT_TRIES
from diagnoser.web.http.sign_in import PasswordSignIn

MARIA = User("maria", Role.OPERATOR, 100.0)
ISSUER = "https://login.example"
KAI = Identity(ISSUER, "u1", "kai", Role.VIEWER)


def session(hash: str = "h1", user: str = "maria", **other: float) -> Session:
    return replace(Session(hash, user, 200.0, 200.0, 900.0, "192.0.2.1", "a browser"), **other)  # type: ignore[arg-type]


async def test_a_user_is_found_with_the_hash_of_the_password(store: Store, second: Store) -> None:
    """On every replica; the list has no hashes."""
    assert not await store.has_users()
    await store.add_user(MARIA, "hash")
    assert await second.has_users()
    assert (await second.users(), await second.user_password("maria")) == ([MARIA], (MARIA, "hash"))
    assert await second.user_password("mario") is None


async def test_a_name_is_given_once(store: Store, second: Store) -> None:
    """Also when two people choose it at once, and to a person of the identity provider."""
    results = await asyncio.gather(store.add_user(MARIA, "h1"), second.add_user(MARIA, "h2"), return_exceptions=True)
    assert [type(result) for result in results if result] == [Conflict]
    with pytest.raises(Conflict):
        await store.sign_in_identity(replace(KAI, name="maria"), 1.0)
    assert len(await store.users()) == 1


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
async def test_who_loses_rights_is_signed_out(store: Store, change: UserChange, expected: User, ends: bool) -> None:
    """In the same transaction; who gains some goes on."""
    await store.add_user(MARIA, "hash")
    await store.add_session(session())
    assert await store.change_user("maria", change, 300.0) == replace(expected, last_sign_in=200.0)
    found = await store.session("h1")
    assert found is not None and found[0].ended == (300.0 if ends else None)
    stored = await store.user_password("maria")
    assert stored is not None and stored[1] == (change.password or "hash")


async def test_a_user_that_is_not_there_cannot_be_changed(store: Store) -> None:
    """A slip in the name is told."""
    with pytest.raises(NotFound):
        await store.change_user("mario", UserChange(disabled=True), 1.0)
    with pytest.raises(NotFound):
        await store.add_session(session(user="mario"))


async def test_a_password_is_renewed_unless_it_was_changed_meanwhile(store: Store) -> None:
    """Compare and set; sessions stay."""
    await store.add_user(MARIA, "weak")
    await store.add_session(session())
    await store.renew_password("maria", "weak", "strong")
    await store.renew_password("maria", "weak", "lost")
    found = await store.user_password("maria")
    assert found is not None and found[1] == "strong"
    assert len(await store.user_sessions("maria")) == 1


async def test_a_person_of_the_provider_is_made_once_and_keeps_the_first_name(store: Store, second: Store) -> None:
    """The role is that of the last sign-in; a name that changed at the provider changes nothing here."""
    results = await asyncio.gather(
        *(replica.sign_in_identity(KAI, 100.0) for replica in (store, second)), return_exceptions=True
    )
    assert User("kai", Role.VIEWER, 100.0, ISSUER, "u1") in results
    again = await second.sign_in_identity(replace(KAI, name="kay", role=Role.ADMIN), 200.0)
    assert (again.name, again.role, again.created) == ("kai", Role.ADMIN, 100.0)
    assert len(await store.users()) == 1
    other = await store.sign_in_identity(Identity(ISSUER, "u2", "lee", Role.VIEWER), 300.0)
    assert other.name == "lee"
    with pytest.raises(Conflict):
        await store.change_user("kai", UserChange(password="x"), 300.0)
    await store.change_user("kai", UserChange(disabled=True), 300.0)
    with pytest.raises(Denied):
        await second.sign_in_identity(KAI, 400.0)


async def test_sessions_are_found_used_and_ended(store: Store, second: Store) -> None:
    """One by its hash, or all of a user; what has ended stays known, and ends once."""
    await store.add_user(MARIA, "hash")
    await store.add_user(replace(MARIA, name="ida"), "hash")
    for made in (session("h1"), session("h2", created=250.0), session("h3"), session("h4", user="ida")):
        await store.add_session(made)
    await second.note_session_use("h1", 260.0)
    found = await second.session("h1")
    assert found is not None and (found[0].last_used, found[1].name) == (260.0, "maria")
    assert await store.session("h9") is None
    assert [one.hash for one in await store.user_sessions("maria")] == ["h2", "h1", "h3"]
    assert await store.end_sessions("maria", 300.0, "h4") == 0
    assert await store.end_sessions("maria", 300.0, "h1") == 1
    assert await second.end_sessions("maria", 310.0) == 2
    assert await second.end_sessions("maria", 320.0) == 0
    ended = await store.session("h1")
    assert ended is not None and ended[0].ended == 300.0
    assert [one.hash for one in await store.user_sessions("ida")] == ["h4"]


async def test_where_a_person_has_signed_in_is_known_until_the_session_is_dropped(store: Store) -> None:
    """By the address, since a time."""
    await store.add_user(MARIA, "hash")
    await store.add_session(session())
    assert await store.has_signed_in("maria", "192.0.2.1", 200.0)
    assert not await store.has_signed_in("maria", "192.0.2.1", 201.0)
    assert not await store.has_signed_in("maria", "192.0.2.2", 0.0)
    assert not await store.has_signed_in("mario", "192.0.2.1", 0.0)
    assert await store.drop_sessions(900.0, 10) == 0
    assert await store.drop_sessions(901.0, 10) == 1
    assert not await store.has_signed_in("maria", "192.0.2.1", 0.0)


async def test_tries_to_sign_in_are_counted_by_all_replicas(store: Store, second: Store) -> None:
    """By key, within the window; what is refused counts for no key, so that the wait ends."""
    tries = {"account maria": 2, "address 192.0.2.1": 3}
    assert await store.count_login(tries, 100.0, 60.0) == await second.count_login(tries, 110.0, 60.0) == 0.0
    assert await store.count_login(tries, 120.0, 60.0) == await second.count_login(tries, 120.0, 60.0) == 40.0
    assert await second.count_login({"account kai": 2, "address 192.0.2.1": 3}, 121.0, 60.0) == 0.0
    assert await store.count_login({"account ida": 2, "address 192.0.2.1": 3}, 122.0, 60.0) == 38.0
    assert await store.count_login(tries, 160.0, 60.0) == 0.0


async def test_a_right_password_takes_its_try_back(store: Store, second: Store) -> None:
    """At whichever replica; that of another try stays."""
    tries = {"account maria": 2}
    for time in (100.0, 101.0):
        await store.count_login(tries, time, 60.0)
    await second.uncount_login(tries, 100.0)
    await second.uncount_login(tries, 99.0)
    assert await store.count_login(tries, 102.0, 60.0) == 0.0
    assert await store.count_login(tries, 103.0, 60.0) == 58.0


async def test_guesses_at_two_replicas_at_once_are_no_more_than_at_one(store: Store, second: Store) -> None:
    """Forty at the same moment, for two accounts from one address: each key gets its number, exactly."""
    hasher = Guesses()
    doors = [PasswordSignIn(replica, hasher, lambda: 100.0) for replica in (store, second)]
    guesses = (doors[number % 2].check(f"name-{number % 4 // 2}", "guess", "192.0.2.1") for number in range(40))
    results = await asyncio.gather(*guesses, return_exceptions=True)
    assert {type(result) for result in results} == {Denied, Throttled}
    assert hasher.count == 2 * ACCOUNT_TRIES == sum(type(result) is Denied for result in results)


async def test_what_was_tried_long_ago_is_dropped(store: Store) -> None:
    """By the last try of each key."""
    await store.count_login({"account maria": 2}, 100.0, 60.0)
    await store.count_login({"account kai": 2}, 200.0, 60.0)
    assert [await store.drop_logins(150.0, 10) for _ in range(2)] == [1, 0]


class Guesses:
    """A hasher that every password is wrong for, and that counts them."""

    count = 0

    async def hash(self, password: str) -> str:
        return ""

    async def verify(self, hash: str, password: str) -> bool:
        self.count += 1
        return False

    def is_outdated(self, hash: str) -> bool:
        return False
