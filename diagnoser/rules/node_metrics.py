"""Metrics of nodes around a failure, `rules/node_metrics.yaml`: what is asked, and which values are noteworthy. Pure.

Prometheus answers with series: labels, and samples in order of time. Labels were written by whoever exports a metric,
so that only series of the nodes that were asked about count.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from diagnoser.model import node_log_id, yaml_loader
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.yaml_loader import StrictModel

FILE = "node_metrics.yaml"
STEP = 15.0
"""Seconds between two samples."""
LABEL_LENGTH = 40
_GPU = ("gpu", "device")
"""Labels that name the part of a node, the first one that is there."""

_Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,100}$")]


class NodeMetric(StrictModel):
    """A row of the table. Exactly one of above, below, rises_by and changes says what is noteworthy."""

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,60}$")]
    series: _Name
    says: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    above: float | None = None
    below: float | None = None
    for_seconds: float = Field(0.0, ge=0)
    rises_by: float | None = Field(None, gt=0)
    changes: bool = False
    types: tuple[FailureType, ...] = ()

    @model_validator(mode="after")
    def _has_one_limit(self) -> "NodeMetric":
        limits = [self.above is not None, self.below is not None, self.rises_by is not None, self.changes]
        if sum(limits) != 1:
            raise ValueError("a metric has exactly one of above, below, rises_by and changes")
        return self

    def is_beyond(self, value: float) -> bool:
        """Tell whether a level is noteworthy. NaN never is."""
        if self.above is not None:
            return value > self.above
        return self.below is not None and value < self.below


class NodeMetricTable(StrictModel):
    version: Literal[1] = 1
    node_labels: Annotated[tuple[_Name, ...], Field(min_length=1)] = ("instance",)
    metrics: tuple[NodeMetric, ...] = ()

    def supports(self, id: str, failure: FailureType) -> bool:
        """Tell whether the metric of this id goes with a failure of this type."""
        return any(metric.id == id and failure in metric.types for metric in self.metrics)

    def query(self, metric: NodeMetric, nodes: Collection[str]) -> str:
        """The expression for the metric of these nodes, by whichever label names them."""
        names = "|".join(map(_pattern, sorted(nodes)))
        selectors = [f'{metric.series}{{{label}=~"(?:{names})(?:[.:].*)?"}}' for label in self.node_labels]
        return " or ".join(selectors)


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """labels: as the exporter wrote them. samples: (seconds since the epoch, value), in order of time."""

    labels: Mapping[str, str] = field(default_factory=dict)
    samples: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class NoteworthyMetric:
    """What a metric showed. started, ended: seconds since the epoch. gpu: "" where the series names none."""

    id: str
    node: str
    gpu: str
    started: float
    ended: float
    summary: str


def load(path: str, text: str) -> NodeMetricTable:
    """Raises RuleFaults, which lists all faults."""
    return yaml_loader.load(path, text, NodeMetricTable)


def noteworthy(
    metric: NodeMetric, series: Sequence[MetricSeries], nodes: Collection[str], table: NodeMetricTable
) -> Iterator[NoteworthyMetric]:
    """Find the series of these nodes that are noteworthy. nodes: by the attempt's own names."""
    own_names = {node_log_id("", node): node for node in nodes}
    for measured in series:
        node = _node_of(measured.labels, table.node_labels, own_names)
        finding = _finding(metric, measured.samples)
        if node is None or finding is None:
            continue
        _, started, ended = finding
        gpu = next((_clean(measured.labels[label]) for label in _GPU if label in measured.labels), "")
        yield NoteworthyMetric(metric.id, node, gpu, started, ended, _words(metric, gpu, finding))


_Finding = tuple[float, float, float]
"""(value, when it began, when it was last seen)."""


def _finding(metric: NodeMetric, samples: Sequence[tuple[float, float]]) -> _Finding | None:
    finite = [(time, value) for time, value in samples if math.isfinite(value)]
    if metric.changes:
        return _change(finite)
    if metric.rises_by is not None:
        return _rise(finite, metric.rises_by)
    return _level(metric, finite)


def _level(metric: NodeMetric, samples: Sequence[tuple[float, float]]) -> _Finding | None:
    """The first time that the level stayed beyond its limit for long enough, with the value farthest beyond it."""
    farthest = max if metric.above is not None else min
    for is_beyond, run in groupby(samples, lambda sample: metric.is_beyond(sample[1])):
        if not is_beyond:
            continue
        times, values = zip(*run, strict=True)
        if times[-1] - times[0] + STEP >= metric.for_seconds:
            return farthest(values), times[0], times[-1]
    return None


def _rise(samples: Sequence[tuple[float, float]], least: float) -> _Finding | None:
    """By how much a counter rose in all. One that begins anew has not fallen."""
    total, times = 0.0, list[float]()
    for (_, before), (time, value) in pairwise(samples):
        if value > before:
            total += value - before
            times.append(time)
    if total < least:
        return None
    return total, times[0], times[-1]


def _change(samples: Sequence[tuple[float, float]]) -> _Finding | None:
    """The first new value that is not 0. What stood there from the beginning is older than the failure."""
    for (_, before), (time, value) in pairwise(samples):
        if value not in (before, 0.0):
            return value, time, time
    return None


def _node_of(labels: Mapping[str, str], names: Sequence[str], own_names: Mapping[str, str]) -> str | None:
    """The attempt's own name for the node of a series; None for a series of another node."""
    for label in names:
        host = labels.get(label, "").partition(":")[0]
        if host and node_log_id("", host) in own_names:
            return own_names[node_log_id("", host)]
    return None


def _words(metric: NodeMetric, gpu: str, finding: _Finding) -> str:
    value, started, ended = finding
    limit = metric.above if metric.above is not None else metric.below
    values = {"{gpu}": gpu or "?", "{value}": f"{value:.10g}", "{limit}": f"{limit or 0:.10g}"}
    values["{lasted}"] = f"{ended - started + STEP:.0f} s"
    text = metric.says
    for name, word in values.items():
        text = text.replace(name, word)
    return text


def _pattern(node: str) -> str:
    """A node's short name as RE2 within a quoted text of PromQL: what is no plain character is any one."""
    short = node.partition(".")[0]
    return re.sub(r"[^\w-]", ".", short)


def _clean(text: str) -> str:
    return "".join(filter(str.isprintable, text))[:LABEL_LENGTH]
