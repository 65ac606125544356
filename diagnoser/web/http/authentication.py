"""Who a request is from: a bearer token, each with a scope, or a session of somebody who has signed in. Where there
are neither tokens nor users, everybody who can connect may do everything.

Browsers send the cookie of a session, or a token as the password of Basic authentication, with every request, also with
some that a foreign page triggers. So both are good for reading and for the buttons of our own pages only (see
``forms``).
"""

import base64
import binascii
from functools import lru_cache
from typing import Annotated

from fastapi import Depends, FastAPI, Request, Security
from fastapi.routing import iter_route_contexts
from fastapi.security import HTTPBearer

from diagnoser.model.access import ANONYMOUS, Credential, Scope
from diagnoser.model.audit import actor_of
from diagnoser.model.errors import OutOfScope
from diagnoser.ports import current_call
from diagnoser.web.http.access import check_every_tenant, check_whole_service
from diagnoser.web.http.services import PeopleServices

FOREIGN = frozenset({"cross-site", "same-site"})

bearer = HTTPBearer(auto_error=False, description="A token; not needed where there are none")


async def people_of(request: Request) -> PeopleServices:
    people: PeopleServices = request.app.state.services.people
    return people


People = Annotated[PeopleServices, Depends(people_of)]


async def identified(request: Request, people: People) -> Credential:
    """Whose token the Authorization header holds as bearer; else whose session it is; else whose token it holds as
    password. Raises Denied."""
    header = request.headers.get("authorization", "")
    caller: Credential | None = None
    if not header.lower().startswith("bearer ") and (cookie := request.cookies.get(people.cookies.name(request))):
        # What a script of the page asks for by itself keeps nobody signed in.
        is_background = request.headers.get("sec-fetch-dest") == "empty"
        caller = await people.authenticator.resume(cookie, is_background=is_background)
    if caller is None:
        caller = await people.authenticator.identify(_secret(header), client_address(request))
    request.state.tenant = caller.tenant
    if call := current_call():
        call.actor, call.action = actor_of(caller, call.address), _action_of(request)
    return caller


Caller = Annotated[Credential, Depends(identified)]
"""Who the request is from, for handlers that act in somebody's name."""


async def may_read(caller: Caller) -> None:
    """Raises Denied or OutOfScope."""
    check_scope(caller, Scope.READ)


async def may_audit(caller: Caller) -> None:
    """Raises Denied or OutOfScope: the audit log is of all clusters and tenants, and for who decides something."""
    check_scope(caller, Scope.OPERATE)
    check_whole_service(caller)


class Changes:
    """Lets a request change something: with a bearer token of the scope, and from no other site's page.

    passwords: also with a token that comes as a password or an API key, as shippers send it. Only for requests that no
    page of another site can make, such as those with a body of JSON. Raises Denied or OutOfScope; for a page of another
    site also where there are no tokens.
    """

    def __init__(self, needed: Scope, *, passwords: bool = False) -> None:
        self._needed = needed
        self._passwords = passwords

    async def __call__(self, request: Request, caller: Caller) -> None:
        if request.headers.get("sec-fetch-site", "none") in FOREIGN:
            raise OutOfScope("Another site's page may not write here.")
        check_scope(caller, self._needed)
        if self._needed in (Scope.AGENT, Scope.ADMIN):  # nodes are shared by all tenants
            check_every_tenant(caller)
        is_bearer = request.headers.get("authorization", "").lower().startswith("bearer ")
        if not any((is_bearer, self._passwords, caller is ANONYMOUS)):
            raise OutOfScope(f"This needs a bearer token with the scope '{self._needed}'.")


may_ingest = Changes(Scope.INGEST)
may_push = Changes(Scope.INGEST, passwords=True)
READ = [Security(bearer), Depends(may_read)]
AUDIT = [Security(bearer), Depends(may_audit)]
INGEST = [Security(bearer), Depends(may_ingest)]
AGENT = [Security(bearer), Depends(Changes(Scope.AGENT))]
OPERATE = [Security(bearer), Depends(Changes(Scope.OPERATE))]
ALERTS = [Security(bearer), Depends(Changes(Scope.ALERTS))]
ADMIN = [Security(bearer), Depends(Changes(Scope.ADMIN))]


def check_scope(caller: Credential, needed: Scope) -> None:
    """Raises OutOfScope."""
    if not caller.scope.covers(needed):
        raise OutOfScope(f"This needs a token with the scope '{needed}'; {caller.name!r} has '{caller.scope}'.")


def _secret(header: str) -> str:
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    # An API key of Elasticsearch is an id and a secret, written as Basic writes a user and a password.
    if scheme.lower() not in ("basic", "apikey"):
        return ""
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def client_address(request: Request) -> str:
    """As the server tells it: behind a trusted proxy, what that proxy says."""
    return request.client.host if request.client else ""


def _action_of(request: Request) -> str:
    """The method and the path of the route, with the names of its parameters in place of their values."""
    path = _paths(request.app).get(request.scope.get("endpoint"), request.url.path)
    return f"{request.method} {path}"


@lru_cache(maxsize=4)
def _paths(app: FastAPI) -> dict[object, str]:
    """Handler -> path of its route."""
    return {route.endpoint: route.path for route in iter_route_contexts(app.routes) if route.path}
