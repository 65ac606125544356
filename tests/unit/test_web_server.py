"""What holds for every route: headers, errors, the OpenAPI document."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from diagnoser.ingest.protocols import PROTOCOLS
from diagnoser.model.access import Scope, Token
from diagnoser.web.http.services import WebConfig
from diagnoser.web.server import create
from tests.serving import serving

DESCRIBED = {protocol.paths[0] for protocol in PROTOCOLS}
"""Plain routes, with twins behind them that are there to be described only."""


@pytest.mark.parametrize("path", ["/", "/api/v1/diagnoses", "/nope", "/static/style.css", "/livez", "/docs"])
async def test_every_answer_carries_the_security_headers(tmp_path: Path, path: str) -> None:
    """Pages, data, errors and files alike forbid foreign scripts, frames and guessed types."""
    async with serving(tmp_path) as web:
        answer = await web.client.get(path)
    check_headers(answer)


@pytest.mark.parametrize("place", ["api.health.check_health", "http.answer_headers.bound_contextvars"])
async def test_a_fault_of_ours_carries_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Wherever it happens, in a route or around all of them: 500 is told as a problem, and nothing of the fault."""

    def fail(*_: object, **more: object) -> None:
        raise RuntimeError("zq-a-secret")

    monkeypatch.setattr(f"diagnoser.web.{place}", fail)
    async with serving(tmp_path) as web:
        answer = await web.client.get("/readyz")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "zq-a-secret" not in answer.text
    check_headers(answer)


@pytest.mark.parametrize("status", [400, 401, 404, 405, 413, 421])
async def test_every_refusal_carries_them(tmp_path: Path, status: int) -> None:
    """Of the routes, and of what stands before them."""
    request = {
        400: ("GET", "/api/v1/diagnoses?limit=x", {}),
        401: ("GET", "/api/v1/diagnoses", {}),
        404: ("GET", "/api/v1/jobs/nobody", {"authorization": "Bearer a-secret"}),
        405: ("DELETE", "/api/v1/diagnoses", {}),
        413: ("POST", "/api/v1/jobs", {"content-length": str(5 << 20)}),
        421: ("GET", "/livez", {"host": "another.example"}),
    }[status]
    tokens = () if status in (400, 413) else (Token("the-read", "a-secret", Scope.READ),)
    hosts = frozenset({"diagnoser.test"})
    async with serving(tmp_path, tokens=tokens, config=WebConfig(allowed_hosts=hosts)) as web:
        body = b" " * (5 << 20) if status == 413 else b""
        answer = await web.client.request(*request[:2], headers=request[2], content=body)
    assert answer.status_code == status, answer.text
    check_headers(answer)


async def test_no_address_is_served_twice(tmp_path: Path) -> None:
    """A second route at the same address would never be asked."""
    async with serving(tmp_path) as web:
        found = iter_route_contexts(create(web.services).routes)
        routes = Counter((route.path, method) for route in found for method in route.methods or ())
    twice = {address for address, count in routes.items() if count > 1}
    assert {path for path, _ in twice} <= DESCRIBED, twice


def check_headers(answer: httpx.Response) -> None:
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/api/v1/nope", 404), ("DELETE", "/api/v1/diagnoses", 405), ("GET", "/api/v1/logs", 405)],
)
async def test_wrong_addresses_are_problems_too(tmp_path: Path, method: str, path: str, status: int) -> None:
    """Also what the framework refuses by itself is told as problem+json."""
    async with serving(tmp_path) as web:
        answer = await web.client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "about:blank"


async def test_errors_of_pages_are_pages(tmp_path: Path) -> None:
    """A person who follows a dead link sees a page, not JSON."""
    async with serving(tmp_path) as web:
        answer = await web.client.get("/diagnoses/0123")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "no diagnosis" in answer.text


async def test_the_openapi_document_is_complete(tmp_path: Path) -> None:
    """Every route has a summary, typed answers and errors as problem+json; every reference leads somewhere."""
    async with serving(tmp_path) as web:
        document = (await web.client.get("/openapi.json")).json()
    operations = [(path, one) for path, methods in document["paths"].items() for one in methods.values()]
    assert len(operations) >= 9
    for path, operation in operations:
        assert operation["summary"], path
        assert "422" not in operation["responses"]
        if path.startswith("/api/v1") and not path.endswith("/live"):
            assert _schema(operation["responses"]["400"], "application/problem+json"), path
            media = "application/x-tar" if path.endswith(".tar") else "application/json"
            assert "204" in operation["responses"] or _schema(operation["responses"]["200"], media), path
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


async def test_the_api_page_names_every_route(tmp_path: Path) -> None:
    """The page at /docs is drawn from the document, without anything from elsewhere."""
    async with serving(tmp_path) as web:
        document = (await web.client.get("/openapi.json")).json()
        page = (await web.client.get("/docs")).text
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page
    assert not re.search(r"""(src|href|action)=["']?(https?:)?//""", page)


def _schema(answer: dict[str, Any], media: str) -> Any:
    return answer["content"][media]["schema"]


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in _references(value)]
    if isinstance(node, list):
        return [found for value in node for found in _references(value)]
    return []


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/v1/jobs/j/attempts/1/evidence", "GET, POST"),
        ("PUT", "/api/v1/plans/claim", "POST"),
        ("PUT", "/api/v1/plans/1", "GET"),
    ],
)
async def test_what_an_address_allows_is_named(tmp_path: Path, method: str, path: str, allowed: str) -> None:
    """All methods of its routes, and none of another address whose parameter could take its name."""
    async with serving(tmp_path) as web:
        answer = await web.client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


async def test_the_description_asks_for_tokens_where_there_are_any(tmp_path: Path) -> None:
    """An open service takes requests without one, and describes itself so."""
    token = Token("the-read", "a-secret", Scope.READ)
    for tokens, asks in (((), False), ((token,), True)):
        async with serving(tmp_path, tokens=tokens) as web:
            headers = {"authorization": "Bearer a-secret"}
            paths = (await web.client.get("/openapi.json", headers=headers)).json()["paths"]
        assert ("security" in paths["/api/v1/jobs"]["post"]) is asks


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("jobs", {"id": "j", "attempt": False}, "attempt"),
        ("jobs/j/events", {"kind": "exit", "rank": True}, "rank"),
        ("jobs/j/events", {"kind": "exit", "code": "1"}, "code"),
        ("evidence-requests/claim", {"wait": False}, "wait"),
        ("jobs", {"id": "j", "rank_nodes": {"first": "gpu-1"}}, "rank_nodes"),
    ],
)
async def test_numbers_are_numbers(tmp_path: Path, path: str, body: dict[str, Any], field: str) -> None:
    """``false`` is not 0, and text is none: a caller that mixes them up hears of it."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(f"/api/v1/{path}", json=body)
    assert answer.status_code == 400
    assert field in answer.json()["detail"]
