"""Health and metrics."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from diagnoser.model.errors import Unavailable
from diagnoser.observability.metrics import Metrics
from diagnoser.web.api import health
from tests.serving import serving


async def answers() -> str:
    return "3 models"


async def fails() -> str:
    raise Unavailable("connection refused")


async def hangs() -> str:
    await asyncio.Event().wait()
    return "never"


async def test_alive_and_ready(tmp_path: Path) -> None:
    """A service whose parts all answer is ready, and says what it asked."""
    async with serving(tmp_path, required={"model": answers}) as web:
        alive = await web.client.get("/livez")
        ready = await web.client.get("/readyz")
    assert (alive.status_code, ready.status_code) == (200, 200)
    assert ready.json()["parts"]["database"]["ready"] is True
    assert ready.json()["parts"]["model"] == {"ready": True, "detail": "3 models"}


async def test_a_part_that_fails_or_hangs_makes_it_unready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One part that fails, or does not answer in time, is 503 with its name; the process stays alive."""
    monkeypatch.setattr(health, "CHECK_SECONDS", 0.05)
    async with serving(tmp_path, required={"model": fails, "queue": hangs}) as web:
        alive = await web.client.get("/livez")
        ready = await web.client.get("/readyz")
    assert (alive.status_code, ready.status_code) == (200, 503)
    parts = ready.json()["parts"]
    assert parts["model"] == {"ready": False, "detail": "connection refused"}
    assert parts["queue"]["ready"] is False


async def test_a_part_that_can_be_spared_is_told_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    """The service is ready without it, and says what is wrong with it."""
    async with serving(tmp_path, optional={"model": fails}) as web:
        ready = await web.client.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["ready"] is True
    assert ready.json()["parts"]["model"] == {"ready": False, "detail": "connection refused"}


async def test_a_lost_database_makes_it_unready(tmp_path: Path) -> None:
    """The store is always asked."""
    async with serving(tmp_path) as web:
        await web.store.close()
        (tmp_path / "web.db").unlink()
        ready = await web.client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["parts"]["database"]["ready"] is False


async def test_a_service_that_stops_is_not_ready(tmp_path: Path) -> None:
    """A balancer learns of the stop before the connections end."""
    async with serving(tmp_path) as web:
        web.services.core.stopping.set()
        ready = await web.client.get("/readyz")
    assert ready.status_code == 503


async def test_metrics_come_from_the_registry(tmp_path: Path) -> None:
    """What counts in the registry that was handed in is shown at /metrics."""
    metrics = Metrics(CollectorRegistry())
    Counter("lines_read", "Lines", registry=metrics.registry).inc(3)
    async with serving(tmp_path, metrics=metrics) as web:
        shown = await web.client.get("/metrics")
    assert "lines_read_total 3.0" in shown.text
    assert shown.headers["content-type"].startswith("text/plain")
