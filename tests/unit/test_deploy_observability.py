"""Rules and dashboards ask for what the service shows, and whoever is woken finds what to do."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests import prometheus_queries
from tests.prometheus_queries import DASHBOARDS, DEPLOY, PROMETHEUS

ROOT = DEPLOY.parent
SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds."""


@pytest.mark.parametrize(("where", "expression"), list(prometheus_queries.queries()))
def test_every_series_exists(where: str, expression: str) -> None:
    """A name that is misspelled, or a label that a series does not have, would be a panel or an alert without data."""
    known, recorded = (
        prometheus_queries.families(),
        {rule["record"] for rule in prometheus_queries.rules() if "record" in rule},
    )
    for name, labels in prometheus_queries.used(expression):
        assert name in known, where
        assert labels <= known[name] | SCRAPED, where
    assert set(re.findall(r"\bjob:\w+:\w+", expression)) - {where} <= recorded


def test_each_alert_says_what_to_do() -> None:
    """It has a severity, a summary, what it costs, and a section of the runbooks under its own name."""
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbooks.md").read_text(), re.MULTILINE)
    alerts = prometheus_queries.alerts()
    assert [alert["alert"] for alert in alerts] == sections
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning", "none")
        assert alert["annotations"].keys() == {"summary", "description", "runbook"}
        assert alert["annotations"]["runbook"] == f"docs/runbooks.md#{alert['alert'].lower()}"


def test_each_alert_has_a_test() -> None:
    """Each is made to fire once, and held against an hour in which all is well."""
    tests = yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text())["tests"]
    fired = {check["alertname"] for test in tests for check in test["alert_rule_test"] if check["exp_alerts"]}
    quiet = {check["alertname"] for test in tests for check in test["alert_rule_test"] if not check["exp_alerts"]}
    names = {alert["alert"] for alert in prometheus_queries.alerts()}
    assert fired == names
    assert quiet == names - {"DiagnoserWatchdog"}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_each_panel_says_what_it_shows(dashboard: Path) -> None:
    """A title, a description and a unit; ids and places are its own; the source of the data can be chosen."""
    panels = prometheus_queries.panels(dashboard)
    assert panels
    for panel in panels:
        assert panel["title"]
        assert len(panel["description"]) > 20
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]
        assert panel["datasource"]["uid"] == "${datasource}"
    every = json.loads(dashboard.read_text())["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in every}) == len(every)


def test_most_of_what_is_shown_is_looked_at() -> None:
    """What neither a rule nor a panel uses is for looking closer: limits, and what is rare."""
    asked = {name for _, expression in prometheus_queries.queries() for name, _ in prometheus_queries.used(expression)}
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in prometheus_queries.families()}
    unused = {
        name for name in bases if name.startswith("diagnoser_") and not any(one.startswith(name) for one in asked)
    }
    assert unused == {
        "diagnoser_archived_bytes_total",
        "diagnoser_checkpoint_blocked_seconds_total",
        "diagnoser_clock_skew_seconds",
        "diagnoser_compressor_cached_templates",
        "diagnoser_compressor_limit",
        "diagnoser_compressor_limit_reached_total",
        "diagnoser_compressor_truncated_bytes_total",
        "diagnoser_compressor_truncated_lines_total",
        "diagnoser_consumed_messages_total",
        "diagnoser_consumer_partitions",
        "diagnoser_consumer_rewinds_total",
        "diagnoser_embedding_failures_total",
        "diagnoser_learned_rule_transitions_total",
        "diagnoser_llm_requests_total",
        "diagnoser_retention_dropped_total",
        "diagnoser_retention_refused_total",
        "diagnoser_start_time_seconds",
    }
