"""Which secret is whose, for how long, and what a guesser gets to hear."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from diagnoser.model.access import ANONYMOUS, Credential, Scope, StoredToken, Token, hash_of
from diagnoser.model.errors import Denied, Throttled, Unavailable
from diagnoser.web.http.authenticator import ADDRESSES, FAILURES, SHARED, Authenticator, FailureThrottle

CONFIGURED = Token("admin-1", "from-the-environment", Scope.ADMIN)
MARIA = Credential("maria", Scope.OPERATE, expires=1000.0)
HERE, THERE = "192.0.2.1", "192.0.2.2"


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Tokens:
    """A store that counts what it is asked. away: whether it answers."""

    stored: list[StoredToken] = field(default_factory=list)
    away: bool = False
    reads: int = 0
    uses: list[tuple[str, float]] = field(default_factory=list)
    tries: dict[str, list[float]] = field(default_factory=dict)
    counts: int = 0

    async def list_all(self) -> list[StoredToken]:
        self.reads += 1
        self._check()
        return self.stored

    async def has_users(self) -> bool:
        return False

    async def record_use(self, hash: str, now: float) -> None:
        self._check()
        self.uses.append((hash, now))

    async def count(self, tries: Mapping[str, int], now: float, window: float) -> float:
        self._check()
        self.counts += 1
        [(key, most)] = tries.items()
        recent = [time for time in self.tries.get(key, []) if abs(now - time) < window]
        if len(recent) >= most:
            return recent[0] + window - now
        self.tries[key] = [*recent, now]
        return 0.0

    def _check(self) -> None:
        if self.away:
            raise Unavailable("away")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def whole(tokens: Tokens) -> Any:
    """The part of a store that the authenticator uses."""
    return SimpleNamespace(tokens=tokens, users=tokens, logins=tokens)


@pytest.fixture
def store() -> Tokens:
    return Tokens([StoredToken(MARIA, hash_of("new"), hash_of("old"), old_until=200.0)])


@pytest.fixture
def door(store: Tokens, clock: Clock) -> Authenticator:
    return Authenticator(whole(store), [CONFIGURED], clock)


async def refusal(door: Authenticator, secret: str, address: str = HERE) -> str:
    with pytest.raises(Denied) as denied:
        await door.identify(secret, address)
    return str(denied.value)


def test_a_token_does_not_show_its_secret() -> None:
    """A token that ends up in a log line does not give itself away."""
    assert "from-the-environment" not in repr(CONFIGURED)


async def test_a_secret_is_its_owners(door: Authenticator) -> None:
    """Those of the settings and the stored ones, beside each other."""
    assert await door.identify("from-the-environment", HERE) == CONFIGURED.credential
    assert await door.identify("new", HERE) == MARIA
    assert "not known" in await refusal(door, "newer")
    assert "needs a token" in await refusal(door, "")


async def test_the_old_secret_works_until_the_overlap_ends(door: Authenticator, clock: Clock) -> None:
    """Then only the new one does."""
    clock.now = 199.9
    assert await door.identify("old", HERE) == MARIA
    clock.now = 200.0
    assert "rotated" in await refusal(door, "old")
    assert await door.identify("new", HERE) == MARIA


async def test_an_expired_token_is_told_so(door: Authenticator, clock: Clock) -> None:
    """To who has its secret, without waiting for the next look at the database."""
    clock.now = 999.9
    await door.identify("new", HERE)
    clock.now = 1000.0
    assert "'maria' has expired" in await refusal(door, "new")


async def test_a_revoked_token_passes_for_seconds_at_most(door: Authenticator, store: Tokens, clock: Clock) -> None:
    """A replica that has just read the tokens learns of it within five seconds."""
    await door.identify("new", HERE)
    store.stored = [replace(store.stored[0], credential=replace(MARIA, revoked=100.0))]
    clock.now += 4.9
    await door.identify("new", HERE)
    clock.now += 0.1
    assert "revoked" in await refusal(door, "new")
    assert "revoked" in await refusal(door, "old")


async def test_a_token_that_is_revoked_after_the_clock_was_set_back_is_refused(
    door: Authenticator, store: Tokens, clock: Clock
) -> None:
    """It passed until the clock had caught up with the last look at the tokens."""
    await door.identify("new", HERE)
    store.stored = [replace(store.stored[0], credential=replace(MARIA, revoked=100.0))]
    clock.now -= 100.0
    assert "revoked" in await refusal(door, "new")


async def test_a_request_that_goes_on_ends_with_its_token(door: Authenticator, store: Tokens, clock: Clock) -> None:
    """A live stream, or a claim that waits, does not outlive it; tokens of the settings live as long as the process."""
    maria, admin = await door.identify("old", HERE), await door.identify("from-the-environment", HERE)
    assert await door.is_valid(maria) and await door.is_valid(admin)
    clock.now = 999.9
    assert await door.is_valid(maria)
    clock.now = 1000.0
    assert not await door.is_valid(maria) and await door.is_valid(admin)
    store.stored = []
    clock.now += 5.0
    assert not await door.is_valid(maria)


async def test_requests_and_guesses_cost_no_read_of_the_tokens(door: Authenticator, store: Tokens) -> None:
    """One read serves all within its five seconds, and a guess that is refused unseen asks the database nothing."""
    for number in range(50):
        await door.identify("new", HERE)
        await refusal(door, f"guess {number}")
    assert (store.reads, store.counts) == (1, FAILURES)


async def test_the_last_use_is_written_once_a_minute(door: Authenticator, store: Tokens, clock: Clock) -> None:
    """Of each secret; that it cannot be written fails no request."""
    for now in (100.0, 130.0, 159.9, 160.0):
        clock.now = now
        await door.identify("new", HERE)
    await door.identify("old", HERE)
    assert store.uses == [(hash_of("new"), 100.0), (hash_of("new"), 160.0), (hash_of("old"), 160.0)]
    clock.now, store.away = 300.0, True
    assert await door.identify("new", HERE) == MARIA


async def test_a_database_that_is_away_locks_nobody_out(door: Authenticator, store: Tokens, clock: Clock) -> None:
    """What was read before still holds; what was never read cannot be told from a wrong token."""
    store.away = True
    with pytest.raises(Unavailable):
        await door.identify("new", HERE)
    assert await door.identify("from-the-environment", HERE) == CONFIGURED.credential
    store.away = False
    await door.identify("new", HERE)
    store.away = True
    clock.now += 60.0
    assert await door.identify("new", HERE) == MARIA


async def test_without_any_token_everybody_passes(clock: Clock) -> None:
    """Until the first one is made; tokens that are revoked do not open the door again."""
    store = Tokens()
    door = Authenticator(whole(store), [], clock)
    assert await door.identify("", HERE) is ANONYMOUS
    assert await door.is_valid(ANONYMOUS)
    assert await door.is_open()
    store.stored = [StoredToken(replace(MARIA, revoked=1.0), "h")]
    clock.now += 5.0
    await refusal(door, "")
    assert not await door.is_valid(ANONYMOUS)
    assert not await door.is_open()


async def test_a_service_that_others_can_reach_always_asks(clock: Clock) -> None:
    """Even when all tokens are gone from its database."""
    door = Authenticator(whole(Tokens()), [], clock, required=True)
    await refusal(door, "")
    assert not await door.is_open()


async def test_wrong_tokens_are_throttled(door: Authenticator, clock: Clock) -> None:
    """After ten within a minute the address has to wait, others do not, and a right token passes all the same."""
    for _ in range(FAILURES):
        assert "not known" in await refusal(door, "guess")
    with pytest.raises(Throttled) as throttled:
        await door.identify("guess", HERE)
    assert (throttled.value.status, throttled.value.retry_after) == (429, 60.0)
    assert await door.identify("new", HERE) == MARIA
    assert "not known" in await refusal(door, "guess", THERE)
    clock.now -= 3_600.0  # set back: nobody has to wait until it has caught up
    assert "not known" in await refusal(door, "guess")
    clock.now += 3_660.0
    assert "not known" in await refusal(door, "guess")


async def test_no_token_and_an_expired_one_are_no_guesses(door: Authenticator, clock: Clock) -> None:
    """A browser asks without one first, and an agent whose token has expired is to hear why, each time."""
    clock.now = 1000.0
    for _ in range(3 * FAILURES):
        assert "needs a token" in await refusal(door, "")
        assert "expired" in await refusal(door, "new")


async def test_wrong_tokens_are_counted_by_all_replicas(door: Authenticator, store: Tokens, clock: Clock) -> None:
    """Ten at one replica are all there are at the next one; it asks once, and then knows how long to refuse."""
    for _ in range(FAILURES):
        await refusal(door, "guess")
    other = Authenticator(whole(store), [CONFIGURED], clock)
    counts, clock.now = store.counts, clock.now + 15
    for _ in range(3):
        with pytest.raises(Throttled) as throttled:
            await other.identify("guess", HERE)
        assert throttled.value.retry_after == 45.0
    assert store.counts == counts + 1
    assert await other.identify("new", HERE) == MARIA
    assert "not known" in await refusal(other, "guess", THERE)
    clock.now += 45
    assert "not known" in await refusal(other, "guess")


async def test_wrong_tokens_are_throttled_while_the_database_is_away(door: Authenticator, store: Tokens) -> None:
    """By each replica for itself."""
    await door.identify("new", HERE)
    store.away = True
    for _ in range(FAILURES):
        assert "not known" in await refusal(door, "guess")
    with pytest.raises(Throttled):
        await door.identify("guess", HERE)


async def test_guesses_from_many_addresses_are_a_bounded_load(door: Authenticator, store: Tokens, clock: Clock) -> None:
    """The database counts a number of them a minute; each address is throttled all the same."""
    for number in range(2 * SHARED):
        await refusal(door, "guess", f"198.51.100.{number}")
    assert store.counts == SHARED
    for _ in range(FAILURES):
        await refusal(door, "guess")
    with pytest.raises(Throttled):
        await door.identify("guess", HERE)
    clock.now += 60.0
    await refusal(door, "guess")
    assert store.counts == SHARED + 1


async def test_the_throttle_remembers_a_bounded_number_of_addresses() -> None:
    """The one that failed longest ago is forgotten; all of an IPv6 network is one client."""
    throttle = FailureThrottle(whole(Tokens(away=True)).logins)
    for number in range(FAILURES):
        await throttle.failed(f"2001:db8:1:2::{number}", 100.0)
    with pytest.raises(Throttled):
        await throttle.failed("2001:db8:1:2:ffff::1", 100.0)
    await throttle.failed("2001:db8:1:3::1", 100.0)
    for number in range(ADDRESSES):
        await throttle.failed(f"10.{number >> 8}.{number & 255}.1", 101.0)
    await throttle.failed("2001:db8:1:2::1", 101.0)
