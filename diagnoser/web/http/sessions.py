"""Sessions of browsers: a cookie with 256 random bits, of which the database holds the hash."""

import secrets
from dataclasses import dataclass
from functools import partial

from fastapi import Request
from fastapi.responses import Response

from diagnoser.adapters.sql.people import UserRepository
from diagnoser.model.access import hash_of
from diagnoser.model.lines import printable
from diagnoser.model.people import SESSION_LIFE, Person, Session, User
from diagnoser.ports import Clock
from diagnoser.web.http.seldom import Seldom

USE_SECONDS = 60.0
"""Seconds between two writes of the last use of a session, by each replica."""
BROWSER_LENGTH = 200


@dataclass(frozen=True, slots=True)
class CookieRules:
    """is_secure: people reach the service over https only. Such a cookie has a name that browsers let no other site and
    no http page set."""

    is_secure: bool = False

    def name(self, request: Request, base: str = "session") -> str:
        return f"__Host-diagnoser_{base}" if self._is_secure(request) else f"diagnoser_{base}"

    def set(self, response: Response, request: Request, value: str, seconds: float, base: str = "session") -> None:
        """Never readable by a script, and not sent with what another site's page sends here."""
        name, is_secure = self.name(request, base), self._is_secure(request)
        response.set_cookie(name, value, max_age=int(seconds), httponly=True, samesite="lax", secure=is_secure)

    def clear(self, response: Response, request: Request, base: str = "session") -> None:
        name, is_secure = self.name(request, base), self._is_secure(request)
        response.delete_cookie(name, httponly=True, samesite="lax", secure=is_secure)

    def _is_secure(self, request: Request) -> bool:
        return self.is_secure or request.url.scheme == "https"


class Sessions:
    """Begins, finds and ends them. What is read comes from the database each time: who is signed out is out."""

    def __init__(self, store: UserRepository, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._uses = Seldom(USE_SECONDS)

    async def begin(self, user: User, address: str, browser: str) -> str:
        """The value of the cookie: new with every sign-in, so that none that somebody else has set is ever one."""
        secret, now = secrets.token_urlsafe(32), self._clock()
        shown = printable(browser[:BROWSER_LENGTH])
        session = Session(hash_of(secret), user.name, now, now, now + SESSION_LIFE, address, shown)
        await self._store.add_session(session)
        return secret

    async def find(self, cookie: str, *, is_background: bool = False) -> Person | None:
        """Whose session it is; None for one that has ended or is not known. is_background: a page asks by itself, which
        does not count as use."""
        if not cookie:
            return None
        person = await self._valid(hash_of(cookie))
        if person and not is_background:
            now = self._clock()
            await self._uses.note(person.session, now, partial(self._store.record_session_use, person.session, now))
        return person

    async def is_valid(self, person: Person) -> bool:
        """Whether it still is what it was when the request began: signed in, with the same role."""
        return await self._valid(person.session) == person

    async def _valid(self, hash: str) -> Person | None:
        found = await self._store.session(hash)
        if found is None:
            return None
        session, user = found
        if session.has_ended(self._clock()):
            return None
        if user.disabled is not None:
            return None
        return Person(user.name, user.role.scope, session=hash)
