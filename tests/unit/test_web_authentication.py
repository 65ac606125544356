"""Who may do what over HTTP: every route against every scope, and what a browser may not do."""

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from fastapi.routing import iter_route_contexts

from diagnoser.ingest.protocols import PROTOCOLS
from diagnoser.model.access import Scope, Token
from diagnoser.web.server import create
from tests.serving import NOW, Web, serving

TOKENS = tuple(Token(f"the-{scope}", f"a-secret-for-{scope}", scope) for scope in Scope)
MAY: dict[Scope | None, frozenset[Scope]] = {
    None: frozenset(Scope),
    Scope.READ: frozenset({Scope.READ, Scope.AGENT, Scope.OPERATE, Scope.ADMIN}),
    Scope.INGEST: frozenset({Scope.INGEST, Scope.AGENT, Scope.ADMIN}),
    Scope.AGENT: frozenset({Scope.AGENT, Scope.ADMIN}),
    Scope.ALERTS: frozenset({Scope.ALERTS, Scope.ADMIN}),
    Scope.OPERATE: frozenset({Scope.OPERATE, Scope.ADMIN}),
    Scope.ADMIN: frozenset({Scope.ADMIN}),
}
"""What a route needs -> the scopes that may use it. None: it asks nobody."""
SIGNING_IN = ("POST /login", "POST /logout")
OPEN = (
    "GET /client.pyz",
    "GET /livez",
    "GET /readyz",
    "GET /healthz",
    "GET /login",
    "GET /login/oidc",
    "GET /login/oidc/callback",
    "POST /slack/actions",
    "POST /slack/events",
    *SIGNING_IN,
)
"""Slack's asks for its signature."""
READING = (
    "GET /",
    "GET /account",
    "GET /accuracy",
    "GET /accuracy/series.svg",
    "GET /api/v1/breakers",
    "GET /api/v1/diagnoses",
    "GET /api/v1/diagnoses/facets",
    "GET /api/v1/diagnoses/{id}",
    "GET /api/v1/diagnoses/{id}/policy",
    "GET /api/v1/diagnoses/{id}/similar",
    "GET /api/v1/effects",
    "GET /api/v1/evaluations",
    "GET /api/v1/evaluations/{id}",
    "GET /api/v1/exports/diagnoses.{format}",
    "GET /api/v1/exports/incidents.{format}",
    "GET /api/v1/exports/jobs.{format}",
    "GET /api/v1/impact",
    "GET /api/v1/incidents",
    "GET /api/v1/incidents/{id}",
    "GET /api/v1/jobs",
    "GET /api/v1/jobs/{id}",
    "GET /api/v1/jobs/{id}/attempts/{attempt}/evidence",
    "GET /api/v1/jobs/{id}/attempts/{attempt}/evidence.tar",
    "GET /api/v1/jobs/{id}/attempts/{attempt}/hang",
    "GET /api/v1/jobs/{id}/attempts/{attempt}/lines",
    "GET /api/v1/jobs/{id}/attempts/{attempt}/lines/search",
    "GET /api/v1/jobs/{id}/attempts/{attempt}/log",
    "GET /api/v1/jobs/{id}/attempts/{attempt}/log/live",
    "GET /api/v1/jobs/{id}/attempts/{attempt}/streams",
    "GET /api/v1/jobs/{id}/attempts/{number}/search",
    "GET /api/v1/live",
    "GET /api/v1/nodes",
    "GET /api/v1/nodes/{node}/alerts",
    "GET /api/v1/nodes/{node}/events",
    "GET /api/v1/nodes/{node}/notes",
    "GET /api/v1/nodes/{node}/uncordons",
    "GET /api/v1/plans",
    "GET /api/v1/plans/{id}",
    "GET /api/v1/rules",
    "GET /api/v1/rules/{id}",
    "GET /api/v1/search",
    "GET /api/v1/unplaced",
    "GET /api/v1/views",
    "GET /diagnoses",
    "GET /diagnoses/{id}",
    "GET /diagnoses/{id}/post-mortem.md",
    "GET /docs",
    "GET /evaluations",
    "GET /evaluations/{id}",
    "GET /impact",
    "GET /incidents/{id}",
    "GET /incidents/{id}/post-mortem.md",
    "GET /jobs",
    "GET /jobs/{id}",
    "GET /jobs/{id}/attempts/{attempt}/changes",
    "GET /jobs/{id}/attempts/{attempt}/hang",
    "GET /jobs/{id}/attempts/{attempt}/lines",
    "GET /jobs/{id}/attempts/{attempt}/log",
    "GET /jobs/{id}/attempts/{number}/search",
    "GET /jobs/{id}/attempts/{number}/series.json",
    "GET /jobs/{id}/attempts/{number}/series.svg",
    "GET /login/token",
    "GET /logs",
    "GET /metrics",
    "GET /nodes",
    "GET /nodes/{node}",
    "GET /recovery",
    "GET /rules",
    "GET /rules/workbench",
    "GET /search",
    "GET /unplaced",
    "POST /api/v1/rules/try",
    "POST /logs",
)
ACCOUNT = ("POST /logout/everywhere",)
AUDITING = ("GET /api/v1/audit", "GET /alert-routing", "GET /audit")
ADMINISTERING = ("GET /people", "GET /settings", "GET /tokens")
SHIPPING = (
    "GET /api/v1/jobs/{id}/attempts/{attempt}/evidence-requests",
    "POST /api/v1/jobs/{id}/attempts/{attempt}/evidence",
    "POST /api/v1/jobs/{id}/events",
    "POST /api/v1/logs",
)
PUSHING = tuple(
    f"{method} {path}"
    for protocol in PROTOCOLS
    if protocol.takes_passwords
    for method, paths in (*((method, protocol.paths) for method in protocol.methods), ("GET", protocol.greetings))
    for path in paths
)
"""Of protocols whose shippers send a token as a password."""
CARRYING_OUT = (
    "POST /api/v1/evidence-requests/claim",
    "POST /api/v1/evidence-requests/{request_id}/result",
    "POST /api/v1/jobs",
    "POST /api/v1/jobs/{id}/attempts/{attempt}/node-snapshots",
    "POST /api/v1/nodes/places",
    "POST /api/v1/nodes/{node}/events",
    "POST /api/v1/plans/claim",
    "POST /api/v1/plans/{id}/check/next",
    "POST /api/v1/plans/{id}/check/results",
    "POST /api/v1/plans/{id}/report",
    "POST /api/v1/uncordons/claim",
    "POST /api/v1/uncordons/{request_id}/result",
)
MONITORING = ("POST /api/v1/alertmanager",)
DECIDING = (
    "DELETE /api/v1/views",
    "POST /api/v1/breakers/{cluster}/reset",
    "POST /api/v1/breakers/{cluster}/trip",
    "POST /api/v1/diagnoses/{id}/feedback",
    "POST /api/v1/diagnoses/{id}/feedback/take-back",
    "POST /api/v1/effects/{key}/retry",
    "POST /api/v1/incidents/{id}/acknowledge",
    "POST /api/v1/incidents/{id}/assign",
    "POST /api/v1/incidents/{id}/escalate",
    "POST /api/v1/incidents/{id}/mute",
    "POST /api/v1/incidents/{id}/reopen",
    "POST /api/v1/incidents/{id}/resolve",
    "POST /api/v1/plans/{id}/approve",
    "POST /api/v1/nodes/{node}/notes",
    "POST /api/v1/nodes/{node}/uncordon",
    "POST /api/v1/plans/{id}/refuse",
    "POST /api/v1/plans/{id}/take-back",
    "POST /api/v1/rules",
    "POST /api/v1/rules/{id}/promote",
    "POST /api/v1/rules/{id}/restore",
    "POST /api/v1/rules/{id}/retire",
    "POST /api/v1/views",
)
ADMIN_PRESSING = ("POST /people", "POST /tokens", "POST /tokens/revoke")
PRESSING = (
    "POST /alert-routing/test",
    "POST /diagnoses/confirm",
    "POST /diagnoses/{id}/ask",
    "POST /diagnoses/{id}/feedback",
    "POST /diagnoses/{id}/feedback/take-back",
    "POST /incidents/decide",
    "POST /incidents/{id}/decide",
    "POST /nodes/{node}/note",
    "POST /nodes/{node}/uncordon",
    "POST /plans/{id}/decide",
    "POST /recovery/breakers/trip",
    "POST /recovery/breakers/{scope}/reset",
    "POST /recovery/decide",
    "POST /recovery/effects/{key}/retry",
    "POST /rules/workbench",
    "POST /rules/{id}/decide",
    "POST /views",
)
NEEDS: dict[str, Scope | None] = {
    **dict.fromkeys(OPEN),
    **dict.fromkeys((*READING, *ACCOUNT), Scope.READ),
    **dict.fromkeys((*SHIPPING, *PUSHING), Scope.INGEST),
    **dict.fromkeys(CARRYING_OUT, Scope.AGENT),
    **dict.fromkeys(MONITORING, Scope.ALERTS),
    **dict.fromkeys((*DECIDING, *PRESSING, *AUDITING), Scope.OPERATE),
    **dict.fromkeys((*ADMINISTERING, *ADMIN_PRESSING), Scope.ADMIN),
}
FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def web(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Web]:
    """With one token of each scope, for all tests here: of what they ask about, nothing exists. It is stopping, so that
    live streams end, and hours pass between two requests, so that no wrong token is one too many."""
    stopping, hours = asyncio.Event(), itertools.count(NOW, 3600.0)
    stopping.set()
    folder = tmp_path_factory.mktemp("web")
    async with serving(folder, tokens=TOKENS, stopping=stopping, clock=lambda: next(hours)) as made:
        yield made


def basic(secret: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{secret}".encode()).decode()


def bearer(scope: Scope) -> str:
    return f"Bearer a-secret-for-{scope}"


async def status(web: Web, route: str, authorization: str | None) -> int:
    method, _, path = route.partition(" ")
    for name in ("{id}", "{attempt}", "{request_id}", "{number}", "{node}", "{cluster}", "{key}", "{scope}", "{index}"):
        path = path.replace(name, "1")
    headers = {"authorization": authorization} if authorization is not None else {}
    if route in (*PRESSING, *ADMIN_PRESSING, *ACCOUNT, *SIGNING_IN):
        answer = await web.client.request(method, path, content=b"", headers=headers | FORM)
    else:
        answer = await web.client.request(method, path, json={} if method in ("POST", "PUT") else None, headers=headers)
    return answer.status_code


async def test_every_route_is_in_the_table(web: Web) -> None:
    """A new route has to say here who may use it."""
    found = iter_route_contexts(create(web.services).routes)
    ours = {f"{method} {route.path}" for route in found for method in route.methods or () if method != "HEAD"}
    assert ours - {"GET /openapi.json"} == NEEDS.keys()


@pytest.mark.parametrize("route", NEEDS)
async def test_who_may_use_which_route(web: Web, route: str) -> None:
    """A token of each scope passes or gets 403, by the table; no token and a wrong one get 401."""
    needed = NEEDS[route]
    for scope in Scope:
        assert (await status(web, route, bearer(scope)) not in (401, 403)) == (scope in MAY[needed]), scope
    for authorization in (None, "Bearer nope"):
        assert (await status(web, route, authorization) == 401) == (needed is not None)


@pytest.mark.parametrize("route", [*SHIPPING, *CARRYING_OUT, *MONITORING, *DECIDING])
async def test_a_password_changes_nothing_over_the_api(web: Web, route: str) -> None:
    """Browsers send it unasked, also with requests of a foreign page."""
    assert await status(web, route, basic("a-secret-for-admin")) == 403


@pytest.mark.parametrize("route", PUSHING)
async def test_shippers_may_send_a_token_as_a_password(web: Web, route: str) -> None:
    """Or as an API key of Elasticsearch. No page of another site can: a browser asks before it sends JSON there."""
    for header in (basic("a-secret-for-ingest"), basic("a-secret-for-ingest").replace("Basic", "ApiKey")):
        assert await status(web, route, header) not in (401, 403)
    assert await status(web, route, basic("a-secret-for-read")) == 403
    if not route.startswith("GET"):
        path = route.partition(" ")[2].replace("{index}", "i")
        headers = {"authorization": basic("a-secret-for-ingest"), "content-type": "text/plain"}
        assert (await web.client.post(path, content=b"{}\n{}", headers=headers)).status_code == 415


@pytest.mark.parametrize("route", ["GET /api/v1/diagnoses", "GET /recovery", *PRESSING])
async def test_a_password_reads_and_presses_buttons(web: Web, route: str) -> None:
    """A browser shows the token as its password, and the user name does not matter."""
    assert await status(web, route, basic("a-secret-for-operate")) not in (401, 403)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer nope", "Bearer a-secret-for-rea", "a-secret-for-read", "Basic ###", "Basic YQ==",
     "Digest x", "Bearer a-secret-for-read x"],
)  # fmt: skip
async def test_no_or_a_wrong_token_is_denied(web: Web, header: str) -> None:
    """Anything but a known token is denied, however it is spelled."""
    assert await status(web, "GET /api/v1/diagnoses", header) == 401


async def test_the_word_bearer_is_read_in_any_case(web: Web) -> None:
    """As HTTP defines names of schemes."""
    assert await status(web, "GET /api/v1/diagnoses", "bearer a-secret-for-read") == 200


async def test_without_tokens_nobody_is_asked_for_one(tmp_path: Path) -> None:
    """Reading and deciding work on a laptop, in the name of nobody; a token that is sent anyway does no harm."""
    async with serving(tmp_path) as web:
        assert await status(web, "GET /recovery", None) == 200
        assert await status(web, "POST /api/v1/plans/{id}/approve", None) == 404
        assert await status(web, "GET /api/v1/diagnoses", "Bearer whatever") == 200
        assert ">anonymous</span>" in (await web.client.get("/recovery")).text


async def test_how_to_come_in_is_told(web: Web) -> None:
    """A program is asked for a bearer token, a browser for a password, each with a sentence."""
    program = await web.client.get("/api/v1/diagnoses")
    browser = await web.client.get("/")
    assert program.headers["www-authenticate"].startswith("Bearer")
    assert "Authorization: Bearer" in program.json()["detail"]
    assert browser.headers["www-authenticate"].startswith("Basic")
    assert "give the token as the password" in browser.text


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_pages_of_other_sites_never_write(tmp_path: Path, site: str) -> None:
    """A foreign page in the browser of somebody who may connect cannot send logs, also where no tokens are used."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(
            "/api/v1/logs?job=j", content=b"a\n", headers={"content-type": "text/plain", "sec-fetch-site": site}
        )
    assert answer.status_code == 403
    assert web.ingest.taken == []


async def test_a_token_of_the_wrong_scope_is_told_which_it_needs(web: Web) -> None:
    """The answer tells it from no token, and names the scope and the token."""
    answer = await web.client.post("/api/v1/jobs", json={"id": "j"}, headers={"authorization": bearer(Scope.READ)})
    assert answer.status_code == 403
    assert answer.json()["detail"] == "This needs a token with the scope 'agent'; 'the-read' has 'read'."
    assert "www-authenticate" not in answer.headers


async def test_refusals_are_counted(tmp_path: Path) -> None:
    """By status, so that somebody who tries tokens can be seen."""
    async with serving(tmp_path, tokens=TOKENS) as web:
        await status(web, "GET /api/v1/diagnoses", "Bearer nope")
        await status(web, "POST /api/v1/jobs", bearer(Scope.READ))
        shown = (await web.client.get("/metrics", headers={"authorization": bearer(Scope.READ)})).text
    counts = {code: f'diagnoser_refused_requests_total{{status="{code}"}} {count}' for code, count in COUNTS}
    assert all(line in shown for line in counts.values())


COUNTS = (("401", "1.0"), ("403", "1.0"), ("429", "0.0"))
