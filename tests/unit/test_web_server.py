"""What holds for every route: headers, errors, the OpenAPI document."""

from pathlib import Path
from typing import Any

import pytest

from tests.serving import serving


@pytest.mark.parametrize("path", ["/", "/api/v1/diagnoses", "/nope", "/static/style.css", "/livez", "/docs"])
async def test_every_answer_carries_the_security_headers(tmp_path: Path, path: str) -> None:
    """Pages, data, errors and files alike forbid foreign scripts, frames and guessed types."""
    async with serving(tmp_path) as web:
        answer = await web.client.get(path)
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
        if path.startswith("/api/v1") and path != "/api/v1/live":
            assert _schema(operation["responses"]["400"], "application/problem+json"), path
            assert "204" in operation["responses"] or _schema(operation["responses"]["200"], "application/json"), path
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


async def test_the_api_page_names_every_route(tmp_path: Path) -> None:
    """The page at /docs is drawn from the document, without anything from elsewhere."""
    async with serving(tmp_path) as web:
        document = (await web.client.get("/openapi.json")).json()
        page = (await web.client.get("/docs")).text
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page
    assert "https://" not in page


def _schema(answer: dict[str, Any], media: str) -> Any:
    return answer["content"][media]["schema"]


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in _references(value)]
    if isinstance(node, list):
        return [found for value in node for found in _references(value)]
    return []
