"""What the service cannot see, or cannot tell: the opposite of a failure that it reports."""

from dataclasses import dataclass
from enum import StrEnum


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
