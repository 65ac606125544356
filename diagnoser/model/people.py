"""People who sign in: their roles, their accounts, and the sessions of their browsers."""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from diagnoser.model.access import Credential, Scope

PASSWORD_LEAST, PASSWORD_MOST = 12, 1000
"""Characters of a password. The upper bound is for the hash's sake."""
SERVICE_NAME = "diagnoser"
_COMMON = """
    password passwort passw0rd pass admin administrator root user login welcome letmein access master secret
    changeme default qwerty qwertz azerty asdf zxcv 1q2w3e4r 1qaz2wsx iloveyou monkey dragon sunshine princess
    football baseball superman batman trustno1 shadow michael jennifer jordan hunter hello freedom whatever
    starwars cheese computer internet server cluster training nvidia slurm kubernetes gpu test demo guest temp
    summer winter spring autumn january february march april june july august september october november december
    monday friday 123 1234 12345 123456 1234567 12345678 123456789 1234567890 111111 000000 123123 654321 2023
    2024 2025 2026 2027
"""
COMMON_PASSWORDS = frozenset(_COMMON.split())
"""What lists of leaked passwords begin with, and words of the place: NIST SP 800-63B section 3.1.1.2 asks for both."""
_ALPHABETS = ("abcdefghijklmnopqrstuvwxyz", "01234567890123456789", "qwertyuiop", "asdfghjkl", "zxcvbnm", "qwertzuiop")
_ROWS = (*_ALPHABETS, *(row[::-1] for row in _ALPHABETS))
_LOOK_ALIKES = str.maketrans("0134578@$!", "oleastbasi")
NAME_MOST = 100
SESSION_IDLE, SESSION_LIFE = 12 * 3600.0, 7 * 86_400.0
"""Seconds after the last use, and after the sign-in, at which a session ends."""
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

    def has_ended(self, now: float) -> bool:
        if self.ended is not None:
            return True
        return now >= min(self.expires, self.last_used + SESSION_IDLE)


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
    spelled = prepared_password(password).casefold()
    if name.casefold() in spelled and length < len(name) + PASSWORD_LEAST:
        return "the password is little more than the name of the user"
    if len(set(spelled)) < 5:
        return "the password repeats very few characters"
    if _rest(spelled, (name.casefold(), SERVICE_NAME)) < PASSWORD_LEAST // 2:
        return "the password is little more than the name of the user or of the service"
    if any(spelled == (spelled[:size] * length)[:length] for size in range(1, length // 2 + 1)):
        return "the password repeats one short piece"
    if _in_sequence(spelled) > length // 2:
        return "the password is a row of the alphabet, of numbers or of a keyboard"
    if _rest(spelled, COMMON_PASSWORDS) < PASSWORD_LEAST // 2:
        return "the password is made of the most common ones"
    return ""


def _rest(spelled: str, words: Iterable[str]) -> int:
    """How many characters are left without these words, those that look like letters read as such."""
    letters = spelled.translate(_LOOK_ALIKES)
    for word in sorted(words, key=len, reverse=True):
        letters = letters.replace(word.translate(_LOOK_ALIKES), "") if len(word) > 2 else letters
    return sum(map(str.isalnum, letters))


def _in_sequence(spelled: str) -> int:
    """Characters that stand in a row of four as they do in the alphabet, among the numbers or on a keyboard."""
    places = range(len(spelled) - 3)
    rows = [place for place in places if any(spelled[place : place + 4] in row for row in _ROWS)]
    return len({place + step for place in rows for step in range(4)})


@dataclass(frozen=True, slots=True)
class UserChange:
    """What becomes of an account; None leaves it as it is. password: the hash of the new one."""

    role: Role | None = None
    password: str | None = None
    disabled: bool | None = None
