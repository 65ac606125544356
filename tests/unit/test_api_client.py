"""The Python client is what the description of the API says."""

import inspect
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from diagnoser.integrations import api_client, http_api
from diagnoser.integrations.api_client import DiagnoserClient
from diagnoser.model.errors import BadInput, Denied, NotFound
from tests import generated_client
from tests.serving import Web, save, serving, verdict

ARGUMENTS = {"id": "d1", "job": "job-1", "attempt": 1, "q": "words", "node": "gpu-1"}
METHODS = [name for name, value in vars(DiagnoserClient).items() if inspect.isfunction(value) and name[0] != "_"]


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(tmp_path) as running:
        yield running


async def test_the_types_are_those_of_the_description() -> None:
    """If this fails, the API has changed: `python -m tests.generated_client` writes them again."""
    document = await generated_client.description()
    wanted = generated_client.formatted(generated_client.render(document, generated_client.roots()))
    assert generated_client.TARGET.read_text() == wanted


@pytest.mark.parametrize("name", METHODS)
async def test_each_method_is_an_operation(name: str) -> None:
    """Its path and its parameters are described, and what it promises is what the operation answers."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://test") as http:
        method = getattr(DiagnoserClient(http), name)
        taken = [
            one.name for one in inspect.signature(method).parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD
        ]
        await method(**{one: ARGUMENTS[one] for one in taken})
    document = await generated_client.description()
    operation = _operation(document, seen[0].url.path)
    known = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "query"}
    assert set(seen[0].url.params.keys()) <= known
    promised = inspect.signature(method).return_annotation
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    reference = schema["items"] if promised.startswith("list[") else schema
    assert reference["$ref"].rpartition("/")[2] == promised.removeprefix("list[").removesuffix("]")


def _operation(document: dict[str, Any], path: str) -> dict[str, Any]:
    """A path without parameters wins, as it does in the router."""
    for template, methods in sorted(document["paths"].items(), key=lambda item: item[0].count("{")):
        if "get" in methods and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path):
            found: dict[str, Any] = methods["get"]
            return found
    raise AssertionError(f"{path} is not described")


async def test_it_reads_a_service(web: Web) -> None:
    """What is stored comes back; a name with any characters stays one segment of the path."""
    record = await save(web.store, "job-1", verdict())
    client = DiagnoserClient(web.client)
    assert [one["id"] for one in (await client.diagnoses(job="job-1", node=None))["items"]] == [record.id]
    assert (await client.diagnosis(record.id))["type"] == "ecc_error"
    assert await client.node_events("gpu?7") == []


async def test_answers_become_errors(web: Web) -> None:
    """What is not there, and what is not taken, are told apart."""
    client = DiagnoserClient(web.client)
    with pytest.raises(NotFound, match="no diagnosis"):
        await client.diagnosis("nothing")
    with pytest.raises(BadInput):
        await client.incidents(colour="red")


async def test_a_wrong_token_is_denied(tmp_path: Path) -> None:
    """It is not tried again."""

    def deny(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer wrong"
        return httpx.Response(401, json={"detail": "The token is not known."})

    async with api_client.connect("http://test", "wrong") as client:
        denied = httpx.AsyncClient(
            transport=httpx.MockTransport(deny), headers=client.http.headers, base_url="http://test"
        )
        with pytest.raises(Denied, match="not known"):
            await DiagnoserClient(denied).incidents()
        await denied.aclose()


def test_an_unusable_address_is_told() -> None:
    """Before anything is asked."""
    with pytest.raises(BadInput, match="http://"):
        http_api.connect("diagnoser:8321", "")
