"""Who may do what: scopes, and the credentials that tokens stand for."""

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum

TOKEN_PREFIX = "dgn_"  # noqa: S105 - what every secret begins with, so that scanners of repositories find one
"""Beginning of every secret that the service makes; 43 characters of base64url follow (32 random bytes)."""


class Scope(StrEnum):
    """What a token may do.

    ingest: send lines and events of jobs; no logs of nodes. agent: also read, register jobs, report nodes and their
    logs, carry out plans. alerts: tell what monitoring says of nodes, and nothing else. read: look. operate: also
    decide: approve, reset, correct. admin: everything.
    """

    INGEST = "ingest"
    AGENT = "agent"
    ALERTS = "alerts"
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def covers(self, needed: "Scope") -> bool:
        return needed in _COVERED[self]


_COVERED = {
    Scope.INGEST: frozenset({Scope.INGEST}),
    Scope.AGENT: frozenset({Scope.INGEST, Scope.AGENT, Scope.READ}),
    Scope.ALERTS: frozenset({Scope.ALERTS}),
    Scope.READ: frozenset({Scope.READ}),
    Scope.OPERATE: frozenset({Scope.READ, Scope.OPERATE}),
    Scope.ADMIN: frozenset(Scope),
}


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a job is: of which cluster and tenant, "" where nobody has said."""

    cluster: str = ""
    tenant: str = ""


def may_learn(tenant: str, source: str) -> bool:
    """Whether what the jobs of ``source`` taught may be used, shown or sent to a model for a job of ``tenant``. A job
    of no known tenant is read only by who sees all."""
    return tenant in ("", source)


@dataclass(frozen=True, slots=True)
class Viewer:
    """Whose rows somebody may see: those of jobs of one cluster, of one tenant, of both; "" for any."""

    cluster: str = ""
    tenant: str = ""

    @property
    def sees_all(self) -> bool:
        return not (self.cluster or self.tenant)


EVERYTHING = Viewer()


@dataclass(frozen=True, slots=True)
class Credential:
    """Who a request is from. Times are seconds since the epoch.

    name: what history says for whatever it does. cluster, tenant: the only one that it may see or change anything of,
    "" for any. expires: None for never. created: when its secret was made. revoked: when, None if it is not.
    """

    name: str
    scope: Scope
    cluster: str = ""
    tenant: str = ""
    expires: float | None = None
    created: float = 0.0
    last_used: float | None = None
    revoked: float | None = None

    @property
    def viewer(self) -> "Viewer":
        return Viewer(self.cluster, self.tenant)

    @property
    def vouches(self) -> bool:
        """Whether what it delivers for a node, or as the scheduler, is that one's own word."""
        return self.scope in (Scope.AGENT, Scope.ADMIN)


ANONYMOUS = Credential("anonymous", Scope.ADMIN)
"""Everybody, where there are no tokens at all: the service then listens on loopback only."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the settings. ``secret`` is what the caller sends."""

    name: str
    secret: str = field(repr=False)
    scope: Scope

    @property
    def credential(self) -> Credential:
        return Credential(self.name, self.scope)


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A credential with the hashes of its secrets (``hash_of``).

    old_hash: of the secret before a rotation, "" if there is none; it is valid until ``old_until``, and was last used
    at ``old_used``.
    """

    credential: Credential
    hash: str
    old_hash: str = ""
    old_until: float = 0.0
    old_used: float | None = None

    def fault(self, hash: str, now: float) -> str:
        """Why the secret with this hash, one of its two, is not valid (any more); "" when it is."""
        credential = self.credential
        if credential.revoked is not None:
            return "was revoked"
        if credential.expires is not None and credential.expires <= now:
            return "has expired"
        if hash != self.hash and self.old_until <= now:
            return "was rotated, and this is the old secret"
        return ""


def hash_of(secret: str) -> str:
    """SHA-256 in hexadecimal. One round without a salt is right for 32 random bytes: nobody can try them all, and a
    request costs microseconds. What is compared afterwards is the hash, so that timing tells nothing of the secret."""
    return hashlib.sha256(secret.encode()).hexdigest()
