"""Accounts of people, their sessions, and the check of their passwords."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model.people import Identity, Role, Session, User


@dataclass(frozen=True, slots=True)
class UserChange:
    """What becomes of an account; None leaves it as it is. password: the hash of the new one."""

    role: Role | None = None
    password: str | None = None
    disabled: bool | None = None


class UserStore(Protocol):
    async def add_user(self, user: User, password: str) -> None:
        """password: its hash. Raises Conflict when the name is taken: history names it, also when it is disabled."""

    async def users(self) -> list[User]:
        """All of them, by name."""

    async def has_users(self) -> bool:
        """Whether there is any account, disabled ones included."""

    async def user_password(self, name: str) -> tuple[User, str] | None:
        """The user with the hash of the password, "" for one of the identity provider."""

    async def change_user(self, name: str, change: UserChange, now: float) -> User:
        """A new password, a lower role or a disabled account ends all sessions. Raises NotFound."""

    async def renew_password(self, name: str, old: str, new: str) -> None:
        """Store another hash of the same password, unless it was changed meanwhile."""

    async def sign_in_identity(self, identity: Identity, now: float) -> User:
        """The account of that person, made or brought up to date. It keeps the name that it got first.

        Raises Conflict when somebody else has the name, Denied for an account that is disabled.
        """

    async def add_session(self, session: Session) -> None:
        """A sign-in, noted with the user as well. Raises NotFound without the user."""

    async def session(self, hash: str) -> tuple[Session, User] | None: ...

    async def user_sessions(self, name: str) -> list[Session]:
        """Those that nobody has ended, the newest first."""

    async def note_session_use(self, hash: str, now: float) -> None: ...

    async def end_sessions(self, name: str, now: float, hash: str = "") -> int:
        """Sign out: the session with that hash, or all of the user; how many that were."""

    async def has_signed_in(self, name: str, address: str, since: float) -> bool:
        """Whether the user has signed in from this address since then."""

    async def drop_sessions(self, before: float, limit: int) -> int:
        """Drop sessions that have expired before."""


class LoginTryStore(Protocol):
    """Tries to sign in, and wrong tokens, counted by all replicas together. A key is an account or an address: only its
    hash is kept."""

    async def count_login(self, tries: Mapping[str, int], now: float, window: float) -> float:
        """Count a try for each key, unless one of them had its number of tries within the last ``window`` seconds:
        then none is counted. However many come at once, no more than that number are. Seconds to wait, 0.0 for none."""

    async def uncount_login(self, keys: Iterable[str], counted: float) -> None:
        """Take back the try that was counted at that time."""

    async def drop_logins(self, before: float, limit: int) -> int:
        """Drop keys that were last tried before."""


class PasswordHasher(Protocol):
    """Slow on purpose, and hungry for memory: both calls take tens of milliseconds in a thread of their own."""

    async def hash(self, password: str) -> str: ...

    async def verify(self, hash: str, password: str) -> bool:
        """hash: "" for somebody who has no password, which takes as long and is never right."""

    def is_outdated(self, hash: str) -> bool:
        """Whether it was made with weaker parameters than today's."""


class IdentityProvider(Protocol):
    """A provider of OpenID Connect. Raises Unavailable where it does not answer, Denied for what it says no to."""

    @property
    def name(self) -> str:
        """For people."""

    async def authorization_url(self, state: str, nonce: str, verifier: str) -> str:
        """Where the browser goes to sign in. verifier: of PKCE, which stays here."""

    async def identity(self, code: str, nonce: str, verifier: str, issuer: str) -> Identity:
        """Exchange the code for who signed in. issuer: what the answer named as its origin, "" where it named none.
        Raises Denied also for a person to whom the site gives no role."""
