"""New credentials: what they may be called, may do, and how long they last. Pure."""

import re

from diagnoser.model.access import Credential, Scope
from diagnoser.model.errors import BadInput
from diagnoser.model.people import RESERVED_NAMES
from diagnoser.model.spans import seconds

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_OF_A_TENANT = (Scope.INGEST, Scope.READ, Scope.OPERATE)


def new_credential(name: str, scope: Scope, cluster: str, tenant: str, expires: str, now: float) -> Credential:
    """expires: a span such as 90d, "" for never. Raises BadInput."""
    require_name(name, "token")
    if tenant and scope not in _OF_A_TENANT:
        raise BadInput("a tenant goes with the scope ingest, read or operate: what agents do concerns the nodes of all")
    until = now + seconds(expires) if expires else None
    return Credential(name, scope, cluster, tenant, expires=until, created=now)


def require_name(name: str, whose: str) -> None:
    """Raises BadInput where a token or a user cannot have the name: what acts as the service itself has some."""
    if not _NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise BadInput(f"{name[:60]!r} cannot be the name of a {whose}: letters, digits and . _ @ -, at most 100")
