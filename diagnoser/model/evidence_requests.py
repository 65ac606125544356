"""Requests to agents to collect evidence of a run that may hang."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from diagnoser.model.jobs import AttemptKey


class RequestReason(StrEnum):
    """Why evidence is asked for."""

    SILENCE = "silence"  # the run may hang: ask its processes before anything ends them
    SLOWNESS = "slowness"  # its steps take several times as long as before: look at who holds them up
    TIMEOUT = "timeout"  # a watchdog has ended it: its dumps lie on disk


@dataclass(frozen=True, slots=True)
class EvidenceRequest:
    """What the agents of a cluster are asked for. Times are seconds since the epoch.

    since: of the newest line when it was asked, of a launch that has ended when it began: with the attempt, its
    identity; what is older shows another silence or launch. ranks: rank -> node, as far as known.
    """

    id: str
    attempt: AttemptKey
    cluster: str
    since: float
    reason: RequestReason
    created: float
    nodes: tuple[str, ...] = ()
    ranks: Mapping[int, str] = field(default_factory=dict)
