"""People who sign in: their roles, their accounts, and the sessions of their browsers."""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from diagnoser.model.access import Credential, Scope

PASSWORD_LEAST, PASSWORD_MOST = 12, 1000
"""Characters of a password. The upper bound is for the hash's sake."""
NAME_MOST = 100
RESERVED_NAMES = frozenset({"anonymous", "diagnoser", "recovery"})
"""Names by which history means somebody else."""


class Role(StrEnum):
    """What a person may do. viewer: look. operator: also decide: approve, reset, correct. admin: everything."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def scope(self) -> Scope:
        return _SCOPES[self]


_SCOPES = {Role.VIEWER: Scope.READ, Role.OPERATOR: Scope.OPERATE, Role.ADMIN: Scope.ADMIN}
MOST_FIRST = (Role.ADMIN, Role.OPERATOR, Role.VIEWER)


@dataclass(frozen=True, slots=True)
class User:
    """An account. Times are seconds since the epoch.

    name: what history says for whatever the person does. issuer, subject: who the person is for the identity provider;
    "" for a local user, who has a password here. disabled: since when, None while the account is good.
    """

    name: str
    role: Role
    created: float
    issuer: str = ""
    subject: str = ""
    disabled: float | None = None
    last_sign_in: float | None = None

    @property
    def is_local(self) -> bool:
        return not self.issuer


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the identity provider says has signed in, and the role that the site gives to that person."""

    issuer: str
    subject: str
    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Session:
    """A browser in which a person has signed in. hash: of its cookie. address: where the person signed in from, an IPv6
    network in place of its addresses. ended: when the person signed out, None while that has not happened."""

    hash: str
    user: str
    created: float
    last_used: float
    expires: float
    address: str
    browser: str
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """idle, life: seconds after the last use, and after the sign-in, at which a session ends."""

    idle: float = 12 * 3600.0
    life: float = 7 * 86_400.0

    def has_ended(self, session: Session, now: float) -> bool:
        return session.ended is not None or session.expires <= now or session.last_used + self.idle <= now


@dataclass(frozen=True, slots=True)
class Person(Credential):
    """Who a request is from that came with a session's cookie. session: its hash."""

    session: str = ""


@dataclass(frozen=True, slots=True)
class RoleMapping:
    """How claims of an identity provider become a role. claim: its name, with dots into objects. roles: value of the
    claim -> role. default: for whoever has none of the values; None lets nobody else in."""

    claim: str
    roles: Mapping[str, Role]
    default: Role | None = None

    def role(self, claims: Mapping[str, object]) -> Role | None:
        """The highest role that any value of the claim gives; None for whoever may not come in."""
        given = {self.roles[value] for value in _values(claims, self.claim) if value in self.roles}
        return next((role for role in MOST_FIRST if role in given), self.default)


def _values(claims: Mapping[str, object], path: str) -> list[str]:
    """A claim with the whole name goes first: some providers' names are URLs, which hold dots."""
    found: object = claims.get(path)
    if found is None:
        found = claims
        for step in path.split("."):
            found = found.get(step) if isinstance(found, Mapping) else None
    values = found if isinstance(found, list) else [found]
    return [value for value in values if isinstance(value, str)]


def prepared_password(password: str) -> str:
    """The same password however a keyboard composes its characters (NFKC, as NIST SP 800-63B advises)."""
    return unicodedata.normalize("NFKC", password)


def password_fault(password: str, name: str) -> str:
    """Why this cannot be the password of the user with that name; "" when it can."""
    length = len(prepared_password(password))
    if not PASSWORD_LEAST <= length <= PASSWORD_MOST:
        return f"a password has {PASSWORD_LEAST} to {PASSWORD_MOST} characters; this one has {length}"
    if name.casefold() in password.casefold() and length < len(name) + PASSWORD_LEAST:
        return "the password is little more than the name of the user"
    if len(set(password)) < 5:
        return "the password repeats very few characters"
    return ""
