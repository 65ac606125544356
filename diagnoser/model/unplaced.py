"""What came in and belongs to no job, so that a person can see it and fix the mapping."""

from dataclasses import dataclass
from enum import StrEnum


class UnplacedReason(StrEnum):
    """Why lines could not be placed."""

    NO_JOB = "no_job"  # none of the names that tell a job was there
    NOT_A_JOB_ID = "not_a_job_id"
    BAD_ATTEMPT = "bad_attempt"
    BAD_RANK = "bad_rank"
    BAD_NODE = "bad_node"
    BAD_CLUSTER = "bad_cluster"
    BAD_SOURCE = "bad_source"
    UNREADABLE = "unreadable"  # not of the format that was promised, or without a line of text
    REFUSED = "refused"  # of a job or node that the sender may not speak for
    NOT_STORED = "not_stored"  # the database cannot hold them


@dataclass(frozen=True, slots=True)
class UnplacedStream:
    """Lines that came with the same labels.

    labels: names and values as they were received, those that the mapping looks at first. detail: the reason in words.
    sample: one of the lines, redacted. sender: name of the credential; cluster: the one that it is bound to. received:
    when the newest line arrived.
    """

    labels: tuple[tuple[str, str], ...]
    reason: UnplacedReason
    detail: str
    protocol: str
    sample: str
    lines: int
    sender: str
    cluster: str
    received: float


@dataclass(frozen=True, slots=True)
class UnplacedRecord:
    """A stream with all of its lines so far. first_seen: when the first of them arrived."""

    stream: UnplacedStream
    first_seen: float
