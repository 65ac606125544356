"""Where lines go that belong to no job."""

from dataclasses import dataclass

from diagnoser.model import UnplacedStream


@dataclass(frozen=True, slots=True)
class UnplacedRecord:
    """A stream with all of its lines so far. first_seen: when the first of them arrived."""

    stream: UnplacedStream
    first_seen: float
