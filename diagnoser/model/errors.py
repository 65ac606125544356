"""The tree of every error that leaves a module.

DiagnoserError
├── BadInput            the caller sent something that cannot be used        -> 400
│   ├── Undecodable     a body that cannot be decompressed or split          -> 400
│   ├── TooLarge        a body or line over its bound                        -> 413
│   └── Unsupported     a content type, charset or encoding not understood   -> 415
├── NotFound            no such job, diagnosis, plan                         -> 404
├── Denied              no token, or a wrong one                             -> 401
│   ├── OutOfScope      a token that may not do this                         -> 403
│   └── Throttled       too many wrong tokens from this address              -> 429
├── Conflict            somebody else wrote first; the caller re-reads       -> 409
│   ├── OffsetsMoved    another member of the group stored these messages
│   └── OwnerMoved      the job was given to its owner meanwhile
├── Unavailable         a part the service needs does not answer; try again  -> 503
├── Overloaded          one sender has its share of what may wait            -> 429
├── LogRefused          a log file that may not be read, in the words of an attribution service
├── RuleFaults          faults of rule, filter, policy or prompt files, all at once
├── ModelFailed         the language model gave no usable answer (carries the reason)
├── DeliveryError       a message was not delivered; ``permanent`` says that another try cannot help
├── Withheld            a message is not sent, on purpose; the text says why
└── Deferred            a message has to wait until a time; the text says why
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class DiagnoserError(Exception):
    status = 500
    title = "Internal error"


class BadInput(DiagnoserError):
    status = 400
    title = "Bad input"


class Undecodable(BadInput):
    title = "Body cannot be decoded"


class TooLarge(BadInput):
    status = 413
    title = "Too large"


class Unsupported(BadInput):
    status = 415
    title = "Unsupported media type"


class NotFound(DiagnoserError):
    status = 404
    title = "Not found"


def existing(value: T | None, fault: str) -> T:
    """The value. Raises NotFound where there is none."""
    if value is None:
        raise NotFound(fault)
    return value


def os_reason(error: OSError) -> str:
    """Say why a call of the system failed; an error that a library raised by itself has its own words only."""
    return error.strerror or str(error)


class Denied(DiagnoserError):
    status = 401
    title = "Not allowed"


class OutOfScope(Denied):
    status = 403


class Throttled(Denied):
    """retry_after: seconds until the next try is looked at."""

    status = 429
    title = "Too many wrong tokens"

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Conflict(DiagnoserError):
    status = 409
    title = "Conflict"


class OwnerMoved(Conflict):
    title = "The job has another owner now"


class OffsetsMoved(Conflict):
    """What was read of a topic is not to be stored: another member of the consumer group has gone on from there."""


class Unavailable(DiagnoserError):
    status = 503
    title = "Unavailable, try again"


class Overloaded(DiagnoserError):
    """retry_after: seconds to wait."""

    status = 429
    title = "Too much at once"

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class LogRefusal(StrEnum):
    """Why a log file is not read: the error codes of NVIDIA's attribution service, which its clients know."""

    INVALID_PATH = "invalid_path"
    OUTSIDE_ROOT = "outside_root"
    NOT_FOUND = "not_found"
    NOT_READABLE = "not_readable"
    NOT_REGULAR = "not_regular"
    EMPTY_FILE = "empty_file"


class LogRefused(DiagnoserError):
    title = "Log file refused"

    def __init__(self, code: LogRefusal, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one file. ``line`` is 1-based; 0 when the fault has no line of its own."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


class RuleFaults(DiagnoserError):
    """All faults of a set of files, so that a person can fix them in one go."""

    title = "Faulty rule files"

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


class ModelFailure(StrEnum):
    UNAVAILABLE = "model_unavailable"
    TIMEOUT = "model_timeout"
    DENIED = "model_denied"  # the key is wrong or may not use this model
    NOT_FOUND = "model_not_found"  # the server knows no such model
    RATE_LIMITED = "model_rate_limited"
    BREAKER_OPEN = "breaker_open"  # it failed again and again; it gets a rest
    BUDGET_SPENT = "budget_spent"
    CONTEXT_TOO_SMALL = "context_too_small"
    FORMAT_REFUSED = "answer_format_refused"  # the server cannot be made to answer in JSON
    MALFORMED = "answer_malformed"
    NO_EVIDENCE = "evidence_not_found"
    LOW_CONFIDENCE = "confidence_too_low"
    NO_AGREEMENT = "no_agreement"


class ModelFailed(DiagnoserError):
    """retry_after: seconds that the server asked to wait, when it did."""

    title = "The language model gave no usable answer"

    def __init__(self, reason: ModelFailure, detail: str, retry_after: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.retry_after = retry_after


class DeliveryError(DiagnoserError):
    """A message was not delivered. ``permanent`` tells the outbox that another try cannot help.

    ``retry_after``: seconds that the receiver asked to wait, when it did.
    """

    title = "Not delivered"

    def __init__(self, message: str, *, permanent: bool, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.permanent = permanent
        self.retry_after = retry_after


class Withheld(DiagnoserError):
    """A message is not sent, on purpose. The text says why."""

    title = "Withheld"


class Deferred(DiagnoserError):
    """A message has to wait until a time. The text says why."""

    title = "Deferred"

    def __init__(self, message: str, until: float) -> None:
        super().__init__(message)
        self.until = until
