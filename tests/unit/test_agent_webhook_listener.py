"""What the agent makes of the signed webhook."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from standardwebhooks import Webhook

from diagnoser.agent import webhook_listener
from diagnoser.model.errors import BadInput

SECRET = "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0IHJ1bg=="
BODY = '{"type": "recovery.plan"}'


def signed(secret: str = SECRET, age: float = 0.0, id: str = "plan-1") -> dict[str, str]:
    at = datetime.now(UTC) - timedelta(seconds=age)
    signature = Webhook(secret).sign(id, at, BODY)
    return {"webhook-id": id, "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}


async def deliver(woken: asyncio.Event, headers: dict[str, str], body: str = BODY) -> int:
    transport = httpx.ASGITransport(app=webhook_listener.application(SECRET, woken))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent.test") as client:
        return (await client.post("/anything", content=body, headers=headers)).status_code


async def test_a_delivery_that_verifies_wakes_the_agent() -> None:
    """Whatever its path; the same delivery again wakes it again, and no more than that."""
    woken = asyncio.Event()
    assert await deliver(woken, signed()) == 204
    assert woken.is_set()
    assert await deliver(woken, signed()) == 204


@pytest.mark.parametrize(
    "make",
    [
        dict,
        lambda: signed("whsec_" + "Zm9yZ2Vk" * 4),
        lambda: signed(age=310),
        lambda: signed(age=-310),
        lambda: signed() | {"webhook-id": "plan-2"},
        lambda: signed() | {"webhook-timestamp": "soon"},
    ],
    ids=["unsigned", "forged", "old", "from the future", "another id", "no time"],
)
async def test_what_does_not_verify_is_refused(make: Callable[[], dict[str, str]]) -> None:
    """Nobody is woken by it. (Headers are made when the test runs: they are good for five minutes.)"""
    woken = asyncio.Event()
    assert await deliver(woken, make()) == 401
    assert not woken.is_set()


async def test_a_changed_or_a_huge_body_is_refused() -> None:
    """The signature is of the body, and reading has a bound."""
    woken = asyncio.Event()
    assert await deliver(woken, signed(), BODY + " ") == 401
    assert await deliver(woken, signed(), "x" * (webhook_listener.BODY_BYTES + 1)) == 413
    assert not woken.is_set()


@pytest.mark.parametrize("address", ["9444", "host:", "host:http", ":9444", "host:70000"])
async def test_an_address_that_cannot_be_meant_is_refused(address: str) -> None:
    """At the start, not at the first delivery."""
    with pytest.raises(BadInput):
        await webhook_listener.listen(address, SECRET, asyncio.Event())


async def test_an_unusable_secret_is_refused() -> None:
    """An empty one would let everybody webhook_listener."""
    for secret in ("", "whsec_", "whsec_###"):
        with pytest.raises(BadInput):
            webhook_listener.application(secret, asyncio.Event())
