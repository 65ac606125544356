"""What became of an attempt, step by step, as one OpenTelemetry trace.

The ids of a trace are derived from the attempt and its diagnoses, which the rows of plans and messages name: any
replica that takes a step adds to the same trace, also after a restart, and nothing has to be passed along.
"""

import hashlib
from enum import StrEnum
from typing import Protocol

from diagnoser.model import AttemptKey


class TraceStep(StrEnum):
    """Names of spans. ``ATTEMPT`` is the root, ``DIAGNOSE`` the parent of what names its diagnosis."""

    ATTEMPT = "attempt"  # from the first sign of its end to its first verdict
    INGEST = "ingest"  # a request with a line that looks fatal, until it is acknowledged
    EVENT = "event"  # somebody reported the end
    DIAGNOSE = "diagnose"  # from the claim to the stored verdict
    PLAN = "plan"  # a change of the plan was decided and stored
    DELIVER = "deliver"  # one try to deliver a message
    CARRY_OUT = "carry_out"  # from an executor's claim to its last report


class Trace(Protocol):
    def __call__(
        self,
        step: TraceStep,
        attempt: AttemptKey,
        since: float,
        *,
        diagnosis: str = "",
        error: str = "",
        **facts: str | float,
    ) -> None:
        """Note a step that ends now. since: when it began, in seconds since the epoch. diagnosis: id of the one that
        it follows from, or that it made. error: why it failed. facts: never text of a log. Neither waits nor raises."""


def untraced(
    step: TraceStep, attempt: AttemptKey, since: float, *, diagnosis: str = "", error: str = "", **facts: str | float
) -> None:
    """Traces are off."""


def trace_id(attempt: AttemptKey) -> int:
    """128 bits."""
    return int.from_bytes(_digest("attempt", attempt.job, str(attempt.number))[:16])


def root_span_id(attempt: AttemptKey) -> int:
    """64 bits."""
    return int.from_bytes(_digest("root", attempt.job, str(attempt.number))[:8])


def diagnosis_span_id(diagnosis: str) -> int:
    """64 bits."""
    return int.from_bytes(_digest("diagnosis", diagnosis)[:8])


def _digest(*names: str) -> bytes:
    return hashlib.sha256("\0".join(names).encode()).digest()
