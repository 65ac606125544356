"""The login page, signing in at an identity provider, and the page of one's own account."""

import base64
import binascii
import secrets
from typing import Annotated
from urllib.parse import urlencode

import orjson
from fastapi import Depends, Query, Request
from fastapi.responses import Response
from pydantic import StringConstraints, ValidationError

from diagnoser.adapters.oidc import OidcProvider
from diagnoser.model.audit import Actor, ActorKind
from diagnoser.model.errors import BadInput, Conflict, Denied, DiagnoserError, NotFound, Overloaded, Throttled
from diagnoser.model.people import NAME_MOST, SESSION_LIFE, Person, User
from diagnoser.ports import current_call
from diagnoser.web.http.authentication import Caller, People, client_address, may_read
from diagnoser.web.http.dependencies import Core, UnscopedCore
from diagnoser.web.http.problems import TOKEN_PAGE, retry_after
from diagnoser.web.http.routing import Router, Schema
from diagnoser.web.http.sign_in import network_of, safe_page
from diagnoser.web.pages.forms import FilledIn, check_origin, see_other
from diagnoser.web.pages.rendering import Drawn, Pages

router = Router(include_in_schema=False)

ATTEMPT_SECONDS = 600.0
"""Time to sign in at the identity provider."""
ATTEMPT = "sign_in"
"""Name of the cookie that remembers what was asked there: the answer is taken from this browser only."""

Page = Annotated[str, Query(max_length=2000)]
_Short = Annotated[str, StringConstraints(max_length=2000)]


class _Attempt(Schema):
    state: _Short
    nonce: _Short
    verifier: _Short
    next: _Short


@router.get("/login")
async def login_page(request: Request, core: UnscopedCore, people: People, next: Page = "/") -> Response:
    if await people.authenticator.resume(request.cookies.get(people.cookies.name(request), "")):
        return see_other(safe_page(next))
    return await _draw(request, core, people, next)


@router.post("/login")
async def sign_in(request: Request, form: FilledIn, core: UnscopedCore, people: People) -> Response:
    """What is wrong is told on the page, and never which of name and password it was."""
    name, page = form.get("name", "").strip()[:NAME_MOST], form.get("next", "/")
    _act_as(name, request)
    address = network_of(client_address(request))
    try:
        user = await people.sign_in.check(name, form.get("password", ""), address)
    except (Denied, Overloaded) as error:
        core.metrics.refused_requests.labels(str(error.status)).inc()
        return await _draw(request, core, people, page, fault=error, name=name)
    return await _begin(request, core, people, user, page)


@router.post("/logout")
async def sign_out(request: Request, core: UnscopedCore, people: People) -> Response:
    """Of this browser. Also where nobody is signed in any more."""
    check_origin(request)
    person = await people.authenticator.resume(request.cookies.get(people.cookies.name(request), ""))
    if person:
        _act_as(person.name, request)
        await core.store.users.end_sessions(person.name, core.clock(), person.session)
    answer = see_other("/login")
    people.cookies.clear(answer, request)
    return answer


@router.post("/logout/everywhere", dependencies=[Depends(may_read)])
async def sign_out_everywhere(request: Request, caller: Caller, core: UnscopedCore, people: People) -> Response:
    """Of all browsers, this one included."""
    check_origin(request)
    if not isinstance(caller, Person):
        raise BadInput("only who has signed in can sign out: a token is revoked with `diagnoser token revoke`")
    await core.store.users.end_sessions(caller.name, core.clock())
    answer = see_other("/login")
    people.cookies.clear(answer, request)
    return answer


@router.get("/account", dependencies=[Depends(may_read)])
async def account(caller: Caller, core: UnscopedCore, pages: Drawn) -> Response:
    if not isinstance(caller, Person):
        raise NotFound("this page is of people who have signed in")
    now = core.clock()
    sessions = await core.store.users.sessions(caller.name)
    found = await core.store.users.find_with_password(caller.name)
    return pages.draw(
        "account.html",
        user=found[0] if found else None,
        sessions=[session for session in sessions if not session.has_ended(now)],
        current=caller.session,
    )


@router.get(TOKEN_PAGE, dependencies=[Depends(may_read)])
async def with_a_token(next: Page = "/") -> Response:
    """Browsers ask for a token only where an answer tells them to."""
    return see_other(safe_page(next))


@router.get("/login/oidc")
async def to_provider(request: Request, people: People, next: Page = "/") -> Response:
    attempt = _Attempt(
        state=secrets.token_urlsafe(32),
        nonce=secrets.token_urlsafe(32),
        verifier=secrets.token_urlsafe(48),
        next=safe_page(next),
    )
    provider = _provider(people)
    answer = see_other(await provider.authorization_url(attempt.state, attempt.nonce, attempt.verifier))
    value = base64.urlsafe_b64encode(attempt.model_dump_json().encode()).decode()
    people.cookies.set(answer, request, value, ATTEMPT_SECONDS, ATTEMPT)
    return answer


@router.get("/login/oidc/callback")
async def from_provider(
    request: Request,
    core: UnscopedCore,
    people: People,
    state: Page = "",
    code: Page = "",
    iss: Page = "",
    error: Page = "",
    error_description: Page = "",
) -> Response:
    """Each answer is taken once, in the browser that asked for it."""
    provider, attempt = _provider(people), _attempt(request, people)
    if attempt is None or not secrets.compare_digest(attempt.state.encode(), state.encode()):
        return await _refused(request, core, people, "This sign-in was not begun here, or took too long: try again.")
    if error or not code:
        return await _refused(request, core, people, f"{provider.name} says: {error_description or error or 'nothing'}")
    try:
        identity = await provider.identity(code, attempt.nonce, attempt.verifier, iss)
        _act_as(identity.name, request)
        user = await core.store.users.sign_in_identity(identity, core.clock())
    except (Denied, Conflict, BadInput) as refusal:
        return await _refused(request, core, people, str(refusal))
    answer = await _begin(request, core, people, user, attempt.next)
    people.cookies.clear(answer, request, ATTEMPT)
    return answer


async def _begin(request: Request, core: Core, people: People, user: User, page: str) -> Response:
    """A new session, always: what the browser had before is of no use any more."""
    address, browser = network_of(client_address(request)), request.headers.get("user-agent", "")
    before = await people.authenticator.resume(request.cookies.get(people.cookies.name(request), ""))
    if before:
        await core.store.users.end_sessions(before.name, core.clock(), before.session)
    cookie = await people.sessions.begin(user, address, browser)
    answer = see_other(safe_page(page))
    people.cookies.set(answer, request, cookie, SESSION_LIFE)
    return answer


async def _refused(request: Request, core: Core, people: People, why: str) -> Response:
    answer = await _draw(request, core, people, "/", fault=Denied(why))
    people.cookies.clear(answer, request, ATTEMPT)
    return answer


async def _draw(
    request: Request, core: Core, people: People, page: str, fault: DiagnoserError | None = None, name: str = ""
) -> Response:
    pages: Pages = request.app.state.pages
    if fault and (call := current_call()):
        call.fault = str(fault)
    # 401 would have to say how else to come in, and browsers would ask for it before they show the page.
    status = 200 if fault is None else 400 if isinstance(fault, Denied) and fault.status == 401 else fault.status
    answer = pages.draw(
        "login.html",
        status,
        fault=fault,
        seconds=fault.retry_after if isinstance(fault, Throttled | Overloaded) else 0.0,
        name=name,
        next=safe_page(page),
        query=urlencode({"next": safe_page(page)}),
        provider=people.provider.name if people.provider else "",
        has_users=await core.store.users.has_users(),
        is_open=await people.authenticator.is_open(),
    )
    answer.headers.update(retry_after(fault) if fault else {})
    return answer


def _provider(people: People) -> OidcProvider:
    """Raises NotFound."""
    if people.provider is None:
        raise NotFound("no identity provider is configured: set DIAGNOSER_OIDC_ISSUER")
    return people.provider


def _attempt(request: Request, people: People) -> _Attempt | None:
    text = request.cookies.get(people.cookies.name(request, ATTEMPT), "")
    try:
        return _Attempt.model_validate(orjson.loads(base64.urlsafe_b64decode(text)))
    except (ValueError, binascii.Error, ValidationError):
        return None


def _act_as(name: str, request: Request) -> None:
    """In the audit log."""
    if call := current_call():
        call.actor = Actor(name, ActorKind.PERSON, client_address(request))
