"""Finds out who a request is from: the token's credential, and what a guesser of tokens gets to hear."""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from diagnoser.adapters.sql.people import LoginTryRepository
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model.access import ANONYMOUS, Credential, StoredToken, Token, hash_of
from diagnoser.model.errors import Denied, Throttled, Unavailable
from diagnoser.model.people import Person
from diagnoser.model.recent import Recent
from diagnoser.ports import Clock
from diagnoser.web.http.seldom import Seldom
from diagnoser.web.http.sessions import Sessions
from diagnoser.web.http.sign_in import network_of

FRESH_SECONDS = 5.0
"""Age up to which a replica uses what it has read of the stored tokens: how long a revoked token may still pass."""
USE_SECONDS = 60.0
"""Seconds between two writes of the last use of a token, by each replica."""
NEVER = float("-inf")
FAILURES = 10
FAILURE_SECONDS = 60.0
ADDRESSES = 10_000
SHARED = 60
"""Wrong tokens within ``FAILURE_SECONDS`` that a process lets the database count, so that guesses from ever new
addresses are no load on it: each process bounds the rest for itself."""


class FailureThrottle:
    """Wrong tokens of each client: after ``FAILURES`` within ``FAILURE_SECONDS``, at all replicas together, the client
    has to wait.

    Remembers the ``ADDRESSES`` clients that failed last. An IPv6 client is its /64: it may choose the rest.
    """

    def __init__(self, store: LoginTryRepository) -> None:
        self._store = store
        self._failures = Recent[str, deque[float]](ADDRESSES)
        self._shared: deque[float] = deque(maxlen=SHARED)

    async def failed(self, address: str, now: float) -> None:
        """Counts a wrong token. Raises Throttled, which counts nothing, so that the wait ends, and asks the database
        nothing after the first time."""
        client = network_of(address)
        self._failures[client] = failures = self._failures.get(client, deque(maxlen=FAILURES))
        wait = 0.0
        if len(failures) == FAILURES:
            wait = FAILURE_SECONDS - abs(now - failures[0])  # ahead of now where the clock was set back
        if wait <= 0:
            failures.append(now)
            wait = await self._failed_elsewhere(client, now)
            if wait > 0:
                failures.extend([now + wait - FAILURE_SECONDS] * FAILURES)
        if wait > 0:
            raise Throttled("too many wrong tokens from this address: wait before the next try", wait)

    async def _failed_elsewhere(self, client: str, now: float) -> float:
        """Counts it for all replicas. Seconds to wait."""
        if len(self._shared) == SHARED and abs(now - self._shared[0]) < FAILURE_SECONDS:
            return 0.0
        self._shared.append(now)
        try:
            return await self._store.count({f"tokens from {client}": FAILURES}, now, FAILURE_SECONDS)
        except Unavailable:
            return 0.0


class Authenticator:
    """Keeps the stored tokens in memory for ``FRESH_SECONDS``, so that no request costs a read of the database, and
    a wrong token none but what bounds guesses (``FailureThrottle``).

    configured: tokens of the settings. required: refuse whoever has no token, even while there are none. sessions:
    those of people who have signed in. provider: whether people sign in at an identity provider.
    """

    def __init__(
        self,
        store: SqlStore,
        configured: Sequence[Token],
        clock: Clock,
        *,
        required: bool = False,
        sessions: Sessions | None = None,
        provider: bool = False,
    ) -> None:
        self._store = store
        self._clock = clock
        self._required = required
        self._sessions = sessions
        self._provider = provider
        self._has_users = False
        self._configured = {hash_of(token.secret): token.credential for token in configured}
        self._stored: dict[str, StoredToken] = {}
        self._read_at = NEVER
        self._reading = asyncio.Lock()
        self._uses = Seldom(USE_SECONDS)
        self._throttle = FailureThrottle(store.logins)

    async def identify(self, secret: str, address: str) -> Credential:
        """Whose secret this is. secret: "" where the request has none. address: of the client.

        Raises Denied; Throttled when the address sent too many wrong ones, while a right one still passes; Unavailable
        when the stored tokens could never be read.
        """
        digest = hash_of(secret)
        if credential := self._configured.get(digest):
            return credential
        token, now = (await self._tokens()).get(digest), self._clock()
        if token is None:
            if await self.is_open():
                return ANONYMOUS
            if not secret:
                raise Denied("This needs a token: send it as 'Authorization: Bearer <token>'.")
            await self._throttle.failed(address, now)
            raise Denied("The token is not known.")
        if fault := token.fault(digest, now):
            raise Denied(f"The token {token.credential.name!r} {fault}.")
        await self._uses.note(digest, now, partial(self._store.tokens.record_use, digest, now))
        return token.credential

    async def resume(self, cookie: str, *, is_background: bool = False) -> Person | None:
        """Who has signed in with the browser that sends this cookie; None when nobody has, or not any more."""
        if self._sessions is None:
            return None
        return await self._sessions.find(cookie, is_background=is_background)

    async def has_people(self) -> bool:
        await self._tokens()
        return self._knows_people

    async def is_open(self) -> bool:
        """Whether there are neither tokens nor people, so that everybody who can connect may do everything."""
        if self._configured:
            return False
        if self._required:
            return False
        if await self._tokens():
            return False
        return not self._knows_people

    async def is_valid(self, caller: Credential) -> bool:
        """Whether a request that goes on for long still has a right to."""
        if isinstance(caller, Person):
            assert self._sessions, "it is from there"
            return await self._sessions.is_valid(caller)
        if caller in self._configured.values():
            return True
        if caller is ANONYMOUS:
            return await self.is_open()
        for token in (await self._tokens()).values():
            if token.credential.name == caller.name and not token.fault(token.hash, self._clock()):
                return True
        return False

    async def _tokens(self) -> dict[str, StoredToken]:
        """By the hash of each secret. What was read before is used while the database is away: nobody can revoke a
        token then either."""
        if self._are_fresh():
            return self._stored
        async with self._reading:
            if not self._are_fresh():  # nobody has read them meanwhile
                try:
                    self._stored = _by_hash(await self._store.tokens.list_all())
                    self._has_users = await self._store.users.has_users()
                except Unavailable:
                    if self._read_at == NEVER:
                        raise
                self._read_at = self._clock()
            return self._stored

    def _are_fresh(self) -> bool:
        """Not after the clock was set back: a token that is revoked would pass until it had caught up."""
        return 0 <= self._clock() - self._read_at < FRESH_SECONDS

    @property
    def _knows_people(self) -> bool:
        return any((self._has_users, self._provider))


def _by_hash(tokens: Iterable[StoredToken]) -> dict[str, StoredToken]:
    """With the old secret of a token that was renewed, which is good for a while yet."""
    by_hash = {}
    for token in tokens:
        by_hash[token.hash] = token
        if token.old_hash:
            by_hash[token.old_hash] = token
    return by_hash
