"""An alert: what a person is told, before anyone knows through which channel."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import ValidationError

from diagnoser.model.errors import BadInput
from diagnoser.model.record_json import RecordJson


class AlertKind(StrEnum):
    FAILURE = "failure"  # a verdict
    DECISION = "decision"  # a plan that a person has to look at
    RECOVERED = "recovered"  # a plan that was carried out, or a blind spot that is gone
    ESCALATION = "escalation"  # somebody wants an incident to come before all others
    BLIND_SPOT = "blind_spot"  # what the service cannot see
    METRIC = "metric"  # what a run that goes on shows of itself: it is stuck, or slower than it was
    SCORE_DROP = "score_drop"  # a checkpoint that an evaluation finds worse than those before


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Alert:
    """incident: the same for all alerts of one. about: that as a whole, where it is more than this failure, else "".
    facts: (name, value), the most telling first. place: where ``line``, the root line, stands. why: of a plan's state,
    or what is to be reviewed. action, reason: what is advised. labels: of the job. owner: whom the scheduler knows the
    job to belong to, "" where it did not say. plan: what waits for approval, as shown, else "". repeats: tells of
    another failure of one place, whose incident was told before.

    Text of logs and models in it is masked and bounded; each channel escapes it in its own way.
    """

    kind: AlertKind
    incident: str
    title: str
    job: str
    attempt: int
    facts: tuple[tuple[str, str], ...] = ()
    place: str = ""
    line: str = ""
    why: str = ""
    notes: tuple[str, ...] = ()
    action: str = ""
    reason: str = ""
    mitigation: str = ""
    link: str = ""
    cluster: str = ""
    node: str = ""
    category: str = ""
    type: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    severity: Severity = Severity.WARNING
    diagnosis: str = ""
    plan: str = ""
    owner: str = ""
    repeats: bool = False
    about: str = ""


_ALERT = RecordJson(Alert)


def encode(alert: Alert) -> bytes:
    return _ALERT.dump(alert).encode()


def decode(body: bytes) -> Alert:
    """Raises BadInput for what an older version has stored."""
    try:
        return _ALERT.load(body)
    except ValidationError as error:
        raise BadInput(f"a stored alert cannot be read: {error.errors()[0]['msg']}") from None


ON_ITS_WAY = "~"
"""Handle of a thread whose first alert somebody posts."""


@dataclass(frozen=True, slots=True)
class AlertThread:
    """What one receiver was told of one incident. handle: the channel's own note, such as where the first message
    stands, or ``ON_ITS_WAY``. told: time of the last alert. held_back: failures since then that were not told."""

    receiver: str
    incident: str
    handle: str
    told: float
    held_back: int = 0


@dataclass(frozen=True, slots=True)
class AlertSilence:
    """Nobody is told of the incident until then."""

    incident: str
    until: float
    by: str
