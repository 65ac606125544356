"""The real Prometheus: it accepts the rules, finds that each alert fires when it should, and scrapes a real service."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests import prometheus_queries
from tests.e2e.service import service, until
from tests.prometheus_queries import PROMETHEUS
from tests.prometheus_server import needs_prometheus, prometheus_server

SERIES_MAX = 300
needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="no promtool on this machine (Debian: apt-get install prometheus)"
)


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_each_alert_fires_when_it_should_and_not_while_all_is_well() -> None:
    """The rules and the configuration are what Prometheus reads, and its own tests of the rules pass."""
    promtool("check", "rules", "rules.yml")
    promtool("check", "config", "--syntax-only", "prometheus.yml")
    promtool("test", "rules", "rules_test.yml")


@needs_promtool
@needs_prometheus
def test_a_real_service_is_scraped_and_every_query_is_answered(tmp_path: Path) -> None:
    """The exposition has no faults; Prometheus reads it, few series while nobody uses the service, and every rule and
    panel can be evaluated. Nothing fires but the watchdog."""
    with service(tmp_path) as running:
        text = running.start().get("/metrics").text
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        with prometheus(tmp_path, running.port) as client:
            until(lambda: _value(client, 'up{job="diagnoser"}') == "1", "the service is scraped")
            assert (
                100 < int(_value(client, 'count({job="diagnoser", __name__=~"diagnoser_.*|process_.*"})')) < SERIES_MAX
            )
            assert int(_value(client, 'count(count by (process) (process_open_fds{job="diagnoser"}))')) == 2
            for where, expression in prometheus_queries.queries():
                answer = client.get("/api/v1/query", params={"query": expression}).json()
                assert answer["status"] == "success", (where, answer)
            until(lambda: _rules(client).keys() == {"ok"}, "every rule was evaluated")
            firing = {alert["labels"]["alertname"] for alert in _alerts(client) if alert["state"] == "firing"}
            assert firing == {"DiagnoserWatchdog"}


def _value(client: httpx.Client, query: str) -> str:
    result = client.get("/api/v1/query", params={"query": query}).json()["data"]["result"]
    return str(result[0]["value"][1]) if result else ""


def _rules(client: httpx.Client) -> dict[str, int]:
    """How many rules are of which health."""
    groups = client.get("/api/v1/rules").json()["data"]["groups"]
    found: dict[str, int] = {}
    for rule in (rule for group in groups for rule in group["rules"]):
        found[rule["health"]] = found.get(rule["health"], 0) + 1
    return found


def _alerts(client: httpx.Client) -> list[dict[str, Any]]:
    alerts: list[dict[str, Any]] = client.get("/api/v1/alerts").json()["data"]["alerts"]
    return alerts


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[httpx.Client]:
    """With the configuration of deploy/, scraping this port each second."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(PROMETHEUS / "rules.yml")]
    config.pop("alerting")
    (scrape,) = config["scrape_configs"]
    scrape.pop("authorization")
    scrape["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    with prometheus_server(folder, config) as client:
        yield client
