"""Ten thousand guesses: none gets in, none learns anything, and the person is not locked out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from diagnoser.adapters.passwords import Argon2Passwords
from diagnoser.model.errors import Denied, Overloaded, Throttled
from diagnoser.model.people import Role, User
from diagnoser.web.http import sign_in
from diagnoser.web.http.sign_in import (
    ACCOUNT_TRIES,
    ADDRESS_TRIES,
    WINDOW_SECONDS,
    PasswordSignIn,
    network_of,
)

PASSWORD = "correct horse battery"
HOME, AWAY = "192.0.2.1", "198.51.100.7"


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class CountingHasher(Argon2Passwords):
    """Compares as it is; remembers what it was asked."""

    asked: list[str] = field(default_factory=list)
    outdated: bool = False

    async def hash(self, password: str) -> str:
        return f"new:{password}"

    async def verify(self, hash: str, password: str) -> bool:
        self.asked.append(hash)
        return hash.removeprefix("new:") == password

    def is_outdated(self, hash: str) -> bool:
        return self.outdated


@pytest.fixture
def clock() -> Clock:
    return Clock()


@dataclass
class Accounts:
    """One user. known: addresses from which she has signed in. tries: as a store counts them."""

    password: str = PASSWORD
    known: tuple[str, ...] = ()
    tries: dict[str, list[float]] = field(default_factory=dict)

    async def find_with_password(self, name: str) -> tuple[User, str] | None:
        return (User("maria", Role.ADMIN, 0.0), self.password) if name == "maria" else None

    async def has_signed_in(self, name: str, address: str, since: float) -> bool:
        return name == "maria" and address in self.known

    async def count(self, tries: Mapping[str, int], now: float, window: float) -> float:
        recent = {key: [time for time in self.tries.get(key, ()) if time > now - window] for key in tries}
        full = [times[-tries[key]] + window - now for key, times in recent.items() if len(times) >= tries[key]]
        if not full:
            self.tries.update({key: [*times, now] for key, times in recent.items()})
        return max(full, default=0.0)

    async def uncount(self, keys: Iterable[str], counted: float) -> None:
        for key in keys:
            self.tries[key].remove(counted)

    async def renew_password(self, name: str, old: str, new: str) -> None:
        assert (name, old) == ("maria", self.password)
        self.password = new


def whole(accounts: Accounts) -> Any:
    """The part of a store that a sign-in uses."""
    return SimpleNamespace(users=accounts, logins=accounts)


@pytest.fixture
def store() -> Accounts:
    return Accounts()


async def attempt(door: PasswordSignIn, name: str, password: str, address: str) -> type[Exception] | str:
    try:
        return (await door.check(name, password, address)).name
    except (Denied, Overloaded) as refusal:
        return type(refusal)


async def test_ten_thousand_guesses_from_many_addresses(store: Accounts, clock: Clock) -> None:
    """At ten a second from 500 addresses: few are looked at, none gets in, the person comes in all the while from where
    she was before, and from anywhere once it is over."""
    hasher = CountingHasher()
    door = PasswordSignIn(whole(store), hasher, clock)
    store.known = (HOME,)
    begun = clock.now
    for number in range(10_000):
        outcome = await attempt(door, "maria", f"guess {number}", f"10.0.{number % 500 >> 8}.{number % 256}")
        assert outcome in (Denied, Throttled)
        clock.now += 0.1
        if number % 1_000 == 0:
            assert await attempt(door, "maria", PASSWORD, HOME) == "maria"
    windows = (clock.now - begun) / WINDOW_SECONDS
    assert len(hasher.asked) <= ACCOUNT_TRIES * (windows + 1) + 10
    clock.now += WINDOW_SECONDS
    assert await attempt(door, "maria", PASSWORD, AWAY) == "maria"


async def test_one_address_that_tries_many_names_is_bounded(store: Accounts, clock: Clock) -> None:
    """Ten thousand names; another address is not slowed."""
    hasher = CountingHasher()
    door = PasswordSignIn(whole(store), hasher, clock)
    for number in range(10_000):
        await attempt(door, f"name-{number}", PASSWORD, AWAY)
    assert len(hasher.asked) == ADDRESS_TRIES
    assert await attempt(door, "maria", PASSWORD, HOME) == "maria"


async def test_a_name_that_nobody_has_costs_as_much(store: Accounts, clock: Clock) -> None:
    """One password is checked for each try, whoever it is for, so that time tells nothing of who has an account; and
    both are throttled alike."""
    outcomes = {}
    for name in ("maria", "nobody"):
        hasher = CountingHasher()
        door = PasswordSignIn(whole(store), hasher, clock)
        tries = [await attempt(door, name, "guess", HOME) for _ in range(ACCOUNT_TRIES + 2)]
        outcomes[name] = (tries, len(hasher.asked))
    assert outcomes["maria"] == outcomes["nobody"]
    assert outcomes["nobody"][1] == ACCOUNT_TRIES


async def test_guesses_from_where_the_person_is_lock_her_out_for_minutes(store: Accounts, clock: Clock) -> None:
    """Somebody beside her can make her wait, and no longer than the window: what is refused unseen counts as no try."""
    door = PasswordSignIn(whole(store), CountingHasher(), clock)
    store.known = (HOME,)
    for _ in range(ACCOUNT_TRIES):
        assert await attempt(door, "maria", "guess", HOME) is Denied
    for _ in range(5):
        clock.now += WINDOW_SECONDS / 5 - 1
        assert await attempt(door, "maria", PASSWORD, HOME) is Throttled
    clock.now += 5.0
    assert await attempt(door, "maria", PASSWORD, HOME) == "maria"


async def test_few_passwords_are_checked_at_once(
    store: Accounts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes memory and a core: beyond those that may wait, a sign-in is told to come again."""
    monkeypatch.setattr(sign_in, "WAITING", 0)
    door = PasswordSignIn(whole(store), CountingHasher(), clock)
    assert await attempt(door, "maria", PASSWORD, HOME) is Overloaded


async def test_an_outdated_hash_is_renewed_with_the_next_sign_in(store: Accounts, clock: Clock) -> None:
    """And opens as the one before did."""
    door = PasswordSignIn(whole(store), CountingHasher(outdated=True), clock)
    assert await attempt(door, "maria", PASSWORD, HOME) == "maria"
    assert store.password == f"new:{PASSWORD}"
    assert await attempt(door, "maria", PASSWORD, HOME) == "maria"


def test_an_ipv6_network_is_one_client() -> None:
    """Its /64, of which a client chooses the rest."""
    assert network_of("2001:db8:1:2::3") == network_of("2001:db8:1:2:ffff::") == "2001:db8:1:2::/64"
    assert (network_of("192.0.2.1"), network_of("testclient")) == ("192.0.2.1", "testclient")
