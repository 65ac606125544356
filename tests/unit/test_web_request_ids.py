"""Each request has an id, in its answer and in the log."""

from pathlib import Path

import pytest
import structlog

from tests.serving import serving


async def test_each_answer_names_its_request(tmp_path: Path) -> None:
    """A new one for each; an error has one, too."""
    async with serving(tmp_path) as web:
        answers = [await web.client.get(path) for path in ("/livez", "/livez", "/nothing")]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == 3
    assert all(len(one) == 16 for one in ids)


@pytest.mark.parametrize(
    ("given", "kept"), [("proxy-0123456789", True), ("short", False), ("a b\tc; drop=1234", False)]
)
async def test_the_id_of_a_proxy_is_kept_if_it_is_one(tmp_path: Path, given: str, kept: bool) -> None:
    """What else a client writes there reaches no log."""
    async with serving(tmp_path) as web:
        answer = await web.client.get("/livez", headers={"x-request-id": given})
    assert (answer.headers["x-request-id"] == given) is kept


async def test_what_is_logged_for_a_request_has_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the begin of the request to its end, and not afterwards."""
    seen: list[dict[str, object]] = []

    async def checks(*_: object) -> object:
        seen.append(structlog.contextvars.get_contextvars())
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("diagnoser.web.api.health.check_health", checks)
    async with serving(tmp_path) as web:
        answer = await web.client.get("/readyz")
    assert answer.status_code == 500
    assert [one["request"] for one in seen] == [answer.headers["x-request-id"]]
    assert "request" not in structlog.contextvars.get_contextvars()
