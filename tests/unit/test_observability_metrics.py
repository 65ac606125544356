"""Metrics by Prometheus' rules: few series, labels from closed lists, nothing old shown as new."""

import re
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from diagnoser.failure_agent.guarded_model import GuardedModel
from diagnoser.llm.guard import LLMCircuitBreaker, TokenBudget
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.model.vitals import BlindSpotKind
from diagnoser.ports import ModelAnswer, ModelRequest, ModelSample
from tests.serving import NOW, Web, save, serving, verdict

SERIES_MAX = 300
"""Of a service that nobody uses."""


async def shown(client: httpx.AsyncClient) -> dict[str, float]:
    """Each series with its value."""
    text = (await client.get("/metrics")).text
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_an_idle_service_has_few_series(tmp_path: Path) -> None:
    """Probed and scraped, and with three processes, it stays below the limit; times of creation are no series."""
    async with serving(tmp_path) as web:
        for path in ("/livez", "/readyz", "/metrics"):
            await web.client.get(path)
        series = await shown(web.client)
    processes = sum(name.startswith("process_") for name in series)
    assert len(series) + 2 * processes < SERIES_MAX
    assert not [name for name in series if "_created" in name]


async def test_the_names_follow_the_rules(tmp_path: Path) -> None:
    """A parser of the format reads all of it; counters end in _total, and each family is there once, with a meaning."""
    async with serving(tmp_path) as web:
        text = (await web.client.get("/metrics")).text
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation for family in families)
    assert all(re.fullmatch(r"(diagnoser|process)_[a-z_]+", family.name) for family in families)
    assert len({family.name for family in families}) == len(families) == text.count("# TYPE ")


async def test_requests_are_counted_by_route_and_not_by_path(tmp_path: Path) -> None:
    """Ids and made-up paths become no series; the plain routes of shippers have their own."""
    async with serving(tmp_path) as web:
        record = await save(web.store, "job-1", verdict())
        for path in (f"/diagnoses/{record.id}", "/diagnoses/none", "/nothing/at/all", "/static/style.css", "/"):
            await web.client.get(path)
        await web.client.post("/api/v1/logs?job=j", content=b"step 1\n", headers={"content-type": "text/plain"})
        await web.client.post("/_bulk", content=b"{}", headers={"content-type": "application/x-ndjson"})
        await web.client.request("BREW", "/")
        series = await shown(web.client)
    counted = {name: int(value) for name, value in series.items() if name.startswith("diagnoser_http_requests_total")}
    routes = {re.search(r'method="(\w+)",route="([^"]*)",status="(\w+)"', name).groups() for name in counted}  # type: ignore[union-attr]
    assert routes == {
        ("GET", "/diagnoses/{id}", "2xx"),
        ("GET", "/diagnoses/{id}", "4xx"),
        ("GET", "unknown", "4xx"),
        ("GET", "/static", "2xx"),
        ("GET", "/", "2xx"),
        ("POST", "/api/v1/logs", "2xx"),
        ("POST", "/_bulk", "2xx"),
        ("OTHER", "/", "4xx"),
    }
    timed = {name for name in series if name.startswith("diagnoser_http_request_duration_seconds_count")}
    assert any('"/api/v1/logs"' in name for name in timed)
    assert not any('"/static"' in name for name in timed)


async def test_what_waits_and_what_is_missing_is_shown(tmp_path: Path) -> None:
    """A silent agent is one, of its kind; every other kind is there at zero."""
    async with serving(tmp_path) as web:
        await web.store.vitals.record_agent("east", "slurm@head", NOW - 500)
        series = await shown(web.client)
    spots = {kind: series[f'diagnoser_blind_spots{{kind="{kind}"}}'] for kind in BlindSpotKind}
    assert spots == dict.fromkeys(BlindSpotKind, 0.0) | {BlindSpotKind.AGENT_SILENT: 1.0}
    assert series['diagnoser_agents{state="silent"}'] == 1.0
    assert series["diagnoser_database_up"] == 1.0


async def test_without_its_database_nothing_old_is_shown(tmp_path: Path) -> None:
    """The scrape answers and says that the database is away; what it would tell is missing, not zero."""
    now = [NOW]
    async with serving(tmp_path, clock=lambda: now[0]) as web:
        await shown(web.client)  # known tokens stay known
        now[0] += 60
        await web.store.close()
        (tmp_path / "web.db").unlink()
        series = await shown(web.client)
    assert series["diagnoser_database_up"] == 0.0
    assert not any(name.startswith(("diagnoser_blind_spots", "diagnoser_attempts_due")) for name in series)
    assert series['diagnoser_ingested_lines_total{result="accepted"}'] == 0.0


class Model:
    """Answers once, then fails."""

    name = "scripted"

    def __init__(self) -> None:
        self.asked = 0

    async def context(self) -> int | None:
        return None

    async def ask(self, request: ModelRequest) -> ModelAnswer:
        self.asked += 1
        if self.asked == 1:
            return ModelAnswer((ModelSample("{}"),), self.name, 1_000_000, 100_000)
        raise ModelFailed(ModelFailure.TIMEOUT, "too slow")


async def test_time_and_rest_of_the_model_are_counted(tmp_path: Path) -> None:
    """A failure takes its time too, and opens the breaker."""
    async with serving(tmp_path) as web:
        now = iter(range(100))
        guarded = GuardedModel(
            Model(),
            TokenBudget(),
            LLMCircuitBreaker(1, 60.0),
            lambda: float(next(now)),
            web.services.core.metrics.observe_model,
        )
        question = ModelRequest("s", "u", {}, 10, 0.0)
        await guarded.ask(question)
        first = await shown(web.client)
        with pytest.raises(ModelFailed):
            await guarded.ask(question)
        second = await shown(web.client)
    assert first["diagnoser_llm_breaker_open"] == 0.0
    assert second["diagnoser_llm_breaker_open"] == 1.0
    assert second["diagnoser_llm_request_duration_seconds_count"] == 2.0


async def test_the_version_is_a_label(tmp_path: Path) -> None:
    """A dashboard can say what runs where."""
    async with serving(tmp_path) as web:
        series = await shown(web.client)
        version = web_version(web)
    assert any(name.startswith("diagnoser_build_info{") and f'version="{version}"' in name for name in series)


def web_version(web: Web) -> str:
    transport = web.client._transport
    assert isinstance(transport, httpx.ASGITransport)
    return str(transport.app.version)  # type: ignore[attr-defined]
