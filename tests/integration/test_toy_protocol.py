"""A protocol is a file and a line of the registry: that of docs/extending.md takes part in all that goes by it."""

import httpx
import pytest

from diagnoser.ingest import protocols
from diagnoser.ingest.mapping_hints import mapping_hint
from diagnoser.ingest.protocols.protocol import Protocol
from diagnoser.model import Stream, UnplacedReason
from diagnoser.web.http.auditing import is_audited
from tests.how_tos import module
from tests.integration import test_shipper_protocols as shippers

site = shippers.site


TOY: Protocol = module("A protocol").PROTOCOL


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of the registry."""
    monkeypatch.setattr(protocols, "PROTOCOLS", (*protocols.PROTOCOLS, TOY))


async def send(site: shippers.Site, body: bytes, who: str = "shipper", kind: str = "application/toy") -> httpx.Response:
    answer: httpx.Response = await site.post("/toy/red/push", body, who, kind)
    return answer


async def test_a_record_becomes_a_stored_line(site: shippers.Site) -> None:
    """Through the routes and the commit; what belongs to no job is counted under the protocol, with its own hint."""
    answer = await send(site, b"train-7: step 1")
    assert (answer.status_code, answer.text) == (200, "stored: 1")
    assert await site.stored("train-7") == {Stream(): b"step 1\n"}
    assert (await send(site, b"no job!: step 1")).text == "stored: 0"
    await site.unplaced.flush()
    (stream,) = site.sink.streams
    assert stream.protocol == "toy"
    assert mapping_hint((), UnplacedReason.NO_JOB, "toy").setting == "Write the job before the line"


@pytest.mark.parametrize(
    ("body", "who", "kind", "status", "why"),
    [
        (b"nothing", "shipper", "application/toy", 400, "a toy needs a colon"),
        (b"j: x", "shipper", "text/plain", 415, "application/toy"),
        (b"j: x", "nobody", "application/toy", 401, ""),
        (b"j: " + b"x" * 200_000, "shipper", "application/toy", 413, "more than"),
    ],
)
async def test_errors_are_told_as_the_protocol_tells_them(
    site: shippers.Site, body: bytes, who: str, kind: str, status: int, why: str
) -> None:
    """Bad bodies, other types, unknown tokens and bodies beyond the limit alike."""
    answer = await send(site, body, who, kind)
    assert answer.status_code == status
    assert answer.text.startswith("toy: ")
    assert why in answer.text


async def test_it_is_described_and_leaves_no_audit(site: shippers.Site) -> None:
    """The OpenAPI document has its operation; thousands of requests a second are their own record."""
    document = (await site.web.client.get("/openapi.json", headers={"authorization": "Bearer agent"})).json()
    assert document["paths"]["/toy/{box}/push"]["post"]["operationId"] == "send_toys"
    assert not is_audited("POST", "/toy/red/push", protocols.path_ends())
