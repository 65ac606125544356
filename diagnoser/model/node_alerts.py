"""What monitoring says of nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

BY_PROMETHEUS = "prometheus"
"""Stands for the credential of what the service itself has read from metrics."""


@dataclass(frozen=True, slots=True)
class NodeAlert:
    """What monitoring says of a node, as Alertmanager or Prometheus reported it. Times are seconds since the epoch.

    fingerprint: of its labels, as Alertmanager makes it. ended: None while it fires. by: the credential that sent it.
    """

    cluster: str
    node: str
    fingerprint: str
    name: str
    started: float
    received: float
    ended: float | None = None
    severity: str = ""
    summary: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    by: str = ""
