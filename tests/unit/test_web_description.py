"""The description of the API is complete: a generated client has names, examples and every error."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diagnoser.model.access import Scope, Token
from diagnoser.web.http.description import EXAMPLES
from tests.serving import serving

TOKEN = Token("test", "a-secret-for-the-test", Scope.ADMIN)


@pytest.fixture
async def document(tmp_path: Path) -> dict[str, Any]:
    async with serving(tmp_path, tokens=(TOKEN,)) as web:
        headers = {"authorization": f"Bearer {TOKEN.secret}"}
        described: dict[str, Any] = (await web.client.get("/openapi.json", headers=headers)).json()
        return described


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


async def test_each_operation_has_a_name_of_its_own(document: dict[str, Any]) -> None:
    """It is an identifier, and says what the operation does."""
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)
    assert {"list_incidents", "one_diagnosis", "send_lines_of_a_log", "send_lines_as_to_elasticsearch"} <= set(names)


async def test_each_body_has_an_example(document: dict[str, Any]) -> None:
    """Of JSON and of text; what is binary has none."""
    used = set()
    for path, _, operation in operations(document):
        for kind, body in operation.get("requestBody", {}).get("content", {}).items():
            is_binary = body["schema"].get("format") == "binary" or kind == "application/octet-stream"
            assert is_binary or "example" in body, path
        used.add(operation["operationId"])
    assert EXAMPLES.keys() <= used


async def test_the_examples_are_taken(tmp_path: Path) -> None:
    """None of them is bad input: what it names may be missing, or be in another state."""
    async with serving(tmp_path, attribution=None) as web:
        described = (await web.client.get("/openapi.json")).json()
        for path, method, operation in operations(described):
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            if operation["operationId"] not in EXAMPLES or path == "/logs":
                continue
            body["example"].pop("wait", None)
            place = (
                path.replace("{id}", "0123456789abcdef")
                .replace("{node}", "gpu-017")
                .replace("{cluster}", "east")
                .replace("{attempt}", "1")
            )
            answer = await web.client.request(method, place.replace("{request_id}", "0" * 26), json=body["example"])
            assert answer.status_code in (200, 204, 404, 409), (path, answer.text)


async def test_each_operation_tells_its_errors(document: dict[str, Any]) -> None:
    """Whatever needs a token may refuse it, and whatever takes a body may find it too large: as problem+json, but for
    Loki's clients, who read text."""
    for path, _, operation in operations(document):
        if operation.get("security"):
            assert {"401", "403", "429"} <= operation["responses"].keys(), path
        if "requestBody" in operation:
            assert "413" in operation["responses"], path
        for status, answer in operation["responses"].items():
            if status[0] == "4":
                assert answer["content"].keys() & {"application/problem+json", "text/plain"} or path == "/v1/logs", path
