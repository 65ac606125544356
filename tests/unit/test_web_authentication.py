"""Tokens: who may read and write, and what a browser may not do."""

import base64
from pathlib import Path

import pytest

from diagnoser.model.access import Scope, Token
from diagnoser.model.errors import Denied, OutOfScope
from diagnoser.web.authentication import check
from tests.serving import serving

TOKENS = (
    Token("grafana", "r-secret", Scope.READ),
    Token("agent", "x-secret", Scope.EXECUTE),
    Token("ops", "w-secret", Scope.WRITE),
)


def basic(secret: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{secret}".encode()).decode()


@pytest.mark.parametrize(
    ("header", "scope"),
    [
        ("Bearer r-secret", Scope.READ),
        ("bearer w-secret", Scope.READ),
        ("Bearer w-secret", Scope.WRITE),
        ("Bearer w-secret", Scope.EXECUTE),
        ("Bearer x-secret", Scope.EXECUTE),
        ("Bearer x-secret", Scope.READ),
        (basic("r-secret"), Scope.READ),
        (basic("w-secret"), Scope.READ),
    ],
)
def test_a_token_with_the_scope_passes(header: str, scope: Scope) -> None:
    """Write includes execute, and that includes read; a browser shows the token as its password."""
    check(header, TOKENS, scope)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer nope", "Bearer r-secre", "w-secret", "Basic ###", "Basic YQ==", "Digest x"],
)
def test_no_or_a_wrong_token_is_denied(header: str) -> None:
    """Anything but a known token is denied, however it is spelled."""
    with pytest.raises(Denied) as denied:
        check(header, TOKENS, Scope.READ)
    assert denied.value.status == 401


@pytest.mark.parametrize("header", ["Bearer r-secret", "Bearer x-secret", basic("w-secret")])
def test_writing_needs_a_bearer_token_with_the_scope(header: str) -> None:
    """A reading token does not write, nor an agent's, and a password never does: browsers send it unasked."""
    with pytest.raises(OutOfScope):
        check(header, TOKENS, Scope.WRITE)


@pytest.mark.parametrize(
    ("path", "agents"),
    [
        ("/api/v1/logs?job=j", True),
        ("/api/v1/jobs", True),
        ("/api/v1/jobs/j/events", True),
        ("/api/v1/nodes/n/events", True),
        ("/api/v1/plans/claim", True),
        ("/api/v1/plans/p/report", True),
        ("/api/v1/plans/p/check/next", True),
        ("/api/v1/plans/p/check/results", True),
        ("/api/v1/plans/p/approve", False),
        ("/api/v1/plans/p/refuse", False),
        ("/api/v1/breakers/c/reset", False),
        ("/api/v1/effects/k/retry", False),
        ("/api/v1/diagnoses/d/feedback", False),
    ],
)
async def test_an_agent_carries_out_and_does_not_decide(tmp_path: Path, path: str, agents: bool) -> None:
    """A token that was stolen from a cluster approves nothing, resets nothing, and teaches nothing."""
    async with serving(tmp_path, tokens=TOKENS) as web:
        answer = await web.client.post(path, json={}, headers={"Authorization": "Bearer x-secret"})
        assert (answer.status_code != 403) == agents, answer.text
        answer = await web.client.post(path, json={}, headers={"Authorization": "Bearer r-secret"})
        assert answer.status_code == 403


def test_no_tokens_means_no_check() -> None:
    """Without configured tokens everybody passes."""
    check("", (), Scope.WRITE)


def test_a_token_does_not_show_its_secret() -> None:
    """A token that ends up in a log line does not give itself away."""
    assert "w-secret" not in repr(TOKENS[1])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/api/v1/logs?job=j", 401),
        ("POST", "/api/v1/jobs", 401),
        ("POST", "/api/v1/jobs/j/events", 401),
        ("GET", "/api/v1/jobs/j", 401),
        ("GET", "/api/v1/diagnoses", 401),
        ("GET", "/api/v1/diagnoses/1", 401),
        ("GET", "/api/v1/live", 401),
        ("GET", "/metrics", 401),
        ("GET", "/", 401),
        ("GET", "/diagnoses/1", 401),
        ("GET", "/jobs/j", 401),
        ("GET", "/livez", 200),
        ("GET", "/readyz", 200),
        ("GET", "/static/style.css", 200),
    ],
)
async def test_which_routes_need_a_token(tmp_path: Path, method: str, path: str, status: int) -> None:
    """With tokens configured everything but health and the style of the error page needs one."""
    body = {"id": "j"} if path == "/api/v1/jobs" else {"kind": "exit"}
    async with serving(tmp_path, tokens=TOKENS) as web:
        answer = await web.client.request(method, path, json=body if method == "POST" else None)
    assert answer.status_code == status


async def test_how_to_come_in_is_told(tmp_path: Path) -> None:
    """A program is asked for a bearer token, a browser for a password, each with a sentence."""
    async with serving(tmp_path, tokens=TOKENS) as web:
        program = await web.client.get("/api/v1/diagnoses")
        browser = await web.client.get("/")
        inside = await web.client.get("/", headers={"authorization": basic("r-secret")})
    assert program.headers["www-authenticate"].startswith("Bearer")
    assert "Authorization: Bearer" in program.json()["detail"]
    assert browser.headers["www-authenticate"].startswith("Basic")
    assert "give the token as the password" in browser.text
    assert inside.status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_pages_of_other_sites_never_write(tmp_path: Path, site: str) -> None:
    """A foreign page in the browser of somebody who may connect cannot send logs, also where no tokens are used."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(
            "/api/v1/logs?job=j", content=b"a\n", headers={"content-type": "text/plain", "sec-fetch-site": site}
        )
    assert answer.status_code == 403
    assert web.ingest.taken == []


async def test_a_reading_token_gets_403_for_writing(tmp_path: Path) -> None:
    """The answer tells a token of the wrong scope from no token."""
    async with serving(tmp_path, tokens=TOKENS) as web:
        answer = await web.client.post("/api/v1/jobs", json={"id": "j"}, headers={"authorization": "Bearer r-secret"})
    assert answer.status_code == 403
    assert "www-authenticate" not in answer.headers
