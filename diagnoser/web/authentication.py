"""Static bearer tokens, each with a scope. Without tokens, everybody who can connect may do everything.

Browsers send a token as the password of Basic authentication. They add it to every request, including those that a
foreign page triggers, so it is good for reading and for the buttons of our own pages only (see ``forms``).
"""

import base64
import binascii
import hmac
from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from diagnoser.model.access import Scope, Token
from diagnoser.model.errors import Denied, OutOfScope
from diagnoser.web.dependencies import AppDependencies

FOREIGN = frozenset({"cross-site", "same-site"})

bearer = HTTPBearer(auto_error=False, description="A token of DIAGNOSER_TOKENS; not needed if none is configured")


def services_of(request: Request) -> AppDependencies:
    services: AppDependencies = request.app.state.services
    return services


Provided = Annotated[AppDependencies, Depends(services_of)]


def may_read(request: Request, services: Provided) -> None:
    """Raises Denied or OutOfScope."""
    check(request.headers.get("authorization", ""), services.config.tokens, Scope.READ)


def may_write(request: Request, services: Provided) -> None:
    """Raises Denied or OutOfScope; always for a page of another site, even without tokens."""
    _check_change(request, services, Scope.WRITE)


def may_execute(request: Request, services: Provided) -> None:
    """As ``may_write``, for what agents do. Raises Denied or OutOfScope."""
    _check_change(request, services, Scope.EXECUTE)


READ = [Security(bearer), Depends(may_read)]
EXECUTE = [Security(bearer), Depends(may_execute)]
WRITE = [Security(bearer), Depends(may_write)]


def check(header: str, tokens: Sequence[Token], needed: Scope) -> None:
    """Checks that the Authorization header holds a token for this. Raises Denied or OutOfScope."""
    token = holder(header, tokens, needed)
    if token and needed is not Scope.READ and not header.lower().startswith("bearer "):
        raise OutOfScope(f"This needs a bearer token with the scope '{needed}'.")


def holder(header: str, tokens: Sequence[Token], needed: Scope) -> Token | None:
    """The token of the Authorization header, as bearer or as password; None if no tokens are configured.

    Raises Denied or OutOfScope.
    """
    if not tokens:
        return None
    scheme, _, value = header.partition(" ")
    secret = value.strip() if scheme.lower() == "bearer" else _password(value) if scheme.lower() == "basic" else ""
    if not secret:
        raise Denied("This needs a token: send it as 'Authorization: Bearer <token>'.")
    token = _find(secret, tokens)
    if token is None:
        raise Denied("The token is not known.")
    if not token.scope.covers(needed):
        raise OutOfScope(f"This needs a bearer token with the scope '{needed}'.")
    return token


def _check_change(request: Request, services: AppDependencies, needed: Scope) -> None:
    if request.headers.get("sec-fetch-site", "none") in FOREIGN:
        raise OutOfScope("Another site's page may not write here.")
    check(request.headers.get("authorization", ""), services.config.tokens, needed)


def _find(secret: str, tokens: Sequence[Token]) -> Token | None:
    """Compares with every token in constant time, so that timing reveals nothing."""
    match = None
    for token in tokens:
        if hmac.compare_digest(token.secret.encode(), secret.encode()):
            match = token
    return match


def _password(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
