"""Signing in with a name and a password: throttled, and as slow for a name that nobody has."""

import asyncio
from contextlib import suppress
from ipaddress import ip_address, ip_network

from diagnoser.adapters.passwords import Argon2Passwords
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model.errors import Denied, Overloaded, Throttled, Unavailable
from diagnoser.model.people import NAME_MOST, PASSWORD_MOST, User, prepared_password
from diagnoser.ports import Clock

AT_ONCE, WAITING = 2, 30
"""Passwords that are checked at the same time, and that may wait for it: each takes 64 MiB and a core."""
KNOWN_SECONDS = 30 * 86_400.0
"""How long an address is known after the person has signed in from it."""
BUSY_SECONDS = 5.0
WRONG = "The name or the password is wrong."


class PasswordSignIn:
    def __init__(self, store: SqlStore, hasher: Argon2Passwords, clock: Clock) -> None:
        self._store = store
        self._hasher = hasher
        self._clock = clock
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def check(self, name: str, password: str, address: str) -> User:
        """address: of the client, as ``network_of`` tells it.

        Raises Denied, in the same words whatever is wrong; Throttled after too many tries, whether or not the password
        is right; Overloaded when too many sign in at once.
        """
        now, account = self._clock(), name.strip()[:NAME_MOST]
        is_known = await self._store.users.has_signed_in(account, address, now - KNOWN_SECONDS)
        tries = counted_tries(account, address, is_known=is_known)
        # Before the password is looked at: tries that come at once are all counted.
        if wait := await self._store.logins.count(tries, now, WINDOW_SECONDS):
            raise Throttled("Too many wrong passwords: wait before the next try.", wait)
        found = await self._store.users.find_with_password(account)
        if found is None:
            await self._verify("", password)  # as slow as for a name that somebody has
            raise Denied(WRONG)
        user, stored = found
        is_right = await self._verify(stored, password)
        if user.disabled is not None or not is_right:
            raise Denied(WRONG)
        await self._store.logins.uncount(tries, now)
        await self._renew(user, stored, password)
        return user

    async def _verify(self, hash: str, password: str) -> bool:
        if self._waiting >= WAITING:
            raise Overloaded("too many people sign in at once", BUSY_SECONDS)
        self._waiting += 1
        try:
            async with self._turns:
                return await self._hasher.verify(hash, prepared_password(password[:PASSWORD_MOST]))
        finally:
            self._waiting -= 1

    async def _renew(self, user: User, hash: str, password: str) -> None:
        """A hash with the parameters of an earlier version becomes one with today's, while the password is at hand."""
        if self._hasher.is_outdated(hash):
            with suppress(Unavailable):
                renewed = await self._hasher.hash(prepared_password(password))
                await self._store.users.renew_password(user.name, hash, renewed)


def safe_page(page: str) -> str:
    """The path and query of a page of this service, to come back to after the sign-in; "/" for anything else.

    Browsers read ``//host``, ``/\\host`` and a path with control characters in it as another site.
    """
    if not page.startswith("/") or page.startswith(("//", "/login", "/logout")):
        return "/"
    if any(("\\" in page, not page.isascii(), not page.isprintable())):
        return "/"
    return page


WINDOW_SECONDS = 600.0
ADDRESS_TRIES = 30
"""Wrong passwords within the window from one address, whatever the account: a whole office may be behind it."""
ACCOUNT_TRIES = 10
"""For one account from all addresses that are new to it, and again from each that is not."""


def counted_tries(account: str, address: str, *, is_known: bool) -> dict[str, int]:
    """What a try counts for -> how many there may be, at all replicas together.

    An account is bounded as a whole against many addresses that try for it. That alone would let anybody lock a person
    out, so an address from which the person has signed in before (is_known) has tries of its own. A wait is never
    longer than the window, because what is refused unseen counts as no try.
    """
    if is_known:
        return {f"account {account} from {address}": ACCOUNT_TRIES}
    return {f"account {account}": ACCOUNT_TRIES, f"address {address}": ADDRESS_TRIES}


def network_of(address: str) -> str:
    """An IPv6 client is its /64: it may choose the rest."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return address if parsed.version == 4 else str(ip_network((int(parsed), 64), strict=False))
