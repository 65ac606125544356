"""What deploy/ asks Prometheus: the rules and the panels, and what there is to ask for."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from diagnoser.model.vitals import PoolUse, Vitals
from diagnoser.observability.metrics import Metrics, ProcessFigures
from diagnoser.observability.vitals import VitalsCollector

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def panels(dashboard: Path) -> list[dict[str, Any]]:
    """Without the headings of rows."""
    return [panel for panel in json.loads(dashboard.read_text())["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Where each expression stands, and the expression, with the dashboards' variables filled in."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for dashboard in DASHBOARDS:
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield panel["title"], target["expr"].replace("$job", ".*")


def families() -> Mapping[str, frozenset[str]]:
    """Series of the service, those of histograms too -> the labels that they have."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    registry.register(VitalsCollector(Vitals(0.0, leased={"attempt": 0}), PoolUse(0, 0), ""))
    registry.register(ProcessFigures(None))
    metrics.requests.labels("GET", "/", "2xx")
    metrics.request_seconds.labels("GET", "/")
    metrics.embedding_failures.labels("model_timeout")
    found: dict[str, frozenset[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, frozenset()) | sample.labels.keys()
    return found


_NAME = re.compile(r"(?<![\w:])((?:diagnoser|process)_\w+)(\{[^}]*\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")


def used(expression: str) -> list[tuple[str, set[str]]]:
    """Each series of an expression with the labels that it is chosen by."""
    return [(name, set(_LABEL.findall(labels or ""))) for name, labels in _NAME.findall(expression)]
