"""What the service last heard, and what waits in it: what its metrics and its blind spots are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

HEARD_SECONDS = 86_400.0
"""What was last heard longer ago counts as gone, rather than as missing."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many of something wait, and since when the first of them does (0.0 where there is none). names: some."""

    count: int = 0
    since: float = 0.0
    names: tuple[str, ...] = ()


class AgentSeen(NamedTuple):
    """When the agent of a cluster last asked for a plan."""

    cluster: str
    executor: str
    last_seen: float


class PoolUse(NamedTuple):
    """Connections to the database that this process holds."""

    used: int
    idle: int


@dataclass(frozen=True, slots=True)
class Vitals:
    """newest_line: when the last line of any job came in, 0.0 when none did within ``HEARD_SECONDS``. together:
    attempts without an end whose last line came within two minutes before it. running: attempts that somebody said
    have begun and nobody said have ended, that have printed and have no verdict. silent: those of them without a line
    for ``silent_seconds``. mute: attempts that have begun in the same sense and have never printed.

    node_logs: cluster -> node (short name) -> when its own log last came. busy: short names of the nodes that running
    attempts were given. due: attempts that wait for a verdict. undelivered: messages that were tried in vain.
    messages: those that are due and that nobody is sending.

    raw_bytes: log text that waits to be compressed. leased: how much workers have claimed, by what it is. tripped:
    scopes whose breaker is.
    """

    time: float
    newest_line: float = 0.0
    together: int = 0
    running: int = 0
    silent: Waiting = Waiting()
    mute: Waiting = Waiting()
    agents: tuple[AgentSeen, ...] = ()
    node_logs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()
    due: Waiting = Waiting()
    messages: Waiting = Waiting()
    undelivered: Waiting = Waiting()
    raw_bytes: int = 0
    leased: Mapping[str, int] = field(default_factory=dict)
    tripped: int = 0


class BlindSpotKind(StrEnum):
    INTAKE_STOPPED = "intake_stopped"  # no line from anyone
    JOB_SILENT = "job_silent"  # jobs that run have stopped printing, and their logs do not say why
    JOB_WITHOUT_LINES = "job_without_lines"  # jobs that run have never printed
    AGENT_SILENT = "agent_silent"  # the agent of a cluster does not ask for plans any more
    NODE_LOGS_STOPPED = "node_logs_stopped"  # no line from any node of a cluster that sent some
    NODE_LOGS_MISSING = "node_logs_missing"  # nodes that run jobs send none, others do
    NODE_LOGS_NEVER_SENT = "node_logs_never_sent"  # a cluster with an agent has sent none
    DIAGNOSIS_LATE = "diagnosis_late"  # attempts wait for a verdict
    MESSAGES_UNDELIVERED = "messages_undelivered"  # receivers do not take plans or alerts


NOT_ALERTED = frozenset({BlindSpotKind.NODE_LOGS_NEVER_SENT})
"""How a site is set up, rather than something that happened: shown, and nobody is woken for it."""


@dataclass(frozen=True, slots=True)
class BlindSpot:
    """subject: the cluster, "" where there is none; a kind has one of each subject at a time. since: seconds since the
    epoch. what: a sentence. lost: what the service cannot do meanwhile, and what to look at."""

    kind: BlindSpotKind
    subject: str
    since: float
    what: str
    lost: str
