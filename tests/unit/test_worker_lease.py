"""Leases of claims that are renewed while the work lasts."""

import asyncio

import pytest

from diagnoser.model.errors import Conflict
from diagnoser.worker import lease


async def test_a_lease_is_renewed_before_it_ends_even_if_one_renewal_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals are at most half a lease apart, and each gives the whole lease from now on."""
    waits, ends, enough = list[float](), list[float](), asyncio.Event()
    timeout = asyncio.timeout

    def at_once(seconds: float) -> asyncio.Timeout:
        waits.append(seconds)
        return timeout(0.0)

    async def extend(until: float) -> None:
        ends.append(until)
        if len(ends) == 3:
            enough.set()

    monkeypatch.setattr(asyncio, "timeout", at_once)
    async with lease.renewed(extend, 60.0, lambda: 1000.0):
        await enough.wait()
    assert max(waits) <= 30.0
    assert set(ends) == {1060.0}


async def test_a_lease_that_somebody_else_has_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work goes on, and finds out when it saves."""
    asked, timeout = list[float](), asyncio.timeout

    async def extend(until: float) -> None:
        asked.append(until)
        raise Conflict("another worker has it")

    monkeypatch.setattr(asyncio, "timeout", lambda seconds: timeout(0.0))
    async with lease.renewed(extend, 60.0, lambda: 1000.0):
        for _ in range(50):
            await asyncio.sleep(0)
    assert asked == [1060.0]
