"""The routes that Elasticsearch's shippers use."""

from pathlib import Path

import pytest

from diagnoser.model.errors import Overloaded, Unavailable
from tests.serving import serving

NDJSON = {"content-type": "application/x-ndjson"}
BODY = b'{"create":{}}\n{"message":"a","job":"j"}\n'


@pytest.mark.parametrize("path", ["/elasticsearch", "/elasticsearch/"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_who_answers_is_said_with_the_products_header(tmp_path: Path, method: str, path: str) -> None:
    """Clients send nothing without it; the page at the root stays ours."""
    async with serving(tmp_path) as web:
        answer = await web.client.request(method, path)
        page = await web.client.get("/", headers={"accept": "application/json"})
    assert (answer.status_code, answer.headers["x-elastic-product"]) == (200, "Elasticsearch")
    assert "x-elastic-product" not in page.headers


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "text/json", "application/vnd.elasticsearch+x-ndjson"]
)
async def test_json_by_any_of_its_names(tmp_path: Path, kind: str) -> None:
    """As versions of the clients call it; parameters of Elasticsearch are not looked at, ours are."""
    async with serving(tmp_path) as web:
        path = "/elasticsearch/training/_bulk?pipeline=x&filter_path=y&rank=3"
        answer = await web.client.post(path, content=BODY, headers={"content-type": kind})
        bad = await web.client.post("/_bulk?rank=many", content=BODY, headers=NDJSON)
    assert answer.json()["items"] == [
        {"create": {"_index": "training", "_id": None, "status": 201, "result": "created"}}
    ]
    assert bad.status_code == 400


@pytest.mark.parametrize(("error", "status"), [(Unavailable("x"), 503), (Overloaded("x", 3.0), 429)])
async def test_what_is_not_stored_is_asked_for_again(tmp_path: Path, error: Exception, status: int) -> None:
    """By the status, which most shippers read, by every item, which rsyslog reads, and with a time to wait."""
    async with serving(tmp_path) as web:
        web.ingest.error = error
        answer = await web.client.post("/_bulk", content=BODY, headers=NDJSON)
    assert (answer.status_code, answer.json()["items"][0]["create"]["status"]) == (status, status)
    assert int(answer.headers["retry-after"]) > 0


async def test_the_name_of_an_index_is_bounded(tmp_path: Path) -> None:
    """Every item of the answer repeats it."""
    async with serving(tmp_path) as web:
        answer = await web.client.post(f"/{'x' * 300}/_bulk", content=BODY, headers=NDJSON)
    assert answer.status_code == 400
