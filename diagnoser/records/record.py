"""One record: what a program says at once, with what it says about itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diagnoser.model import Severity

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Record:
    """texts: the message, then the error that belongs to it, line by line; empty where the line is no message but data.

    time: seconds since the epoch; 0.0 where it states none. rank, pid: -1 where it states none.
    unit: the instance of a service that printed it.
    fields: all others, by name.
    """

    texts: tuple[str, ...] = ()
    severity: Severity | None = None
    time: float = 0.0
    rank: int = -1
    host: str = ""
    pid: int = -1
    unit: str = ""
    fields: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def voice(self) -> str:
        """Names the process, as the voice of a ``Prefix`` does; "" where it states none."""
        if self.rank >= 0:
            return f"r{self.rank}"
        if self.pid >= 0:
            return f"p{self.pid}@{self.host}"
        return f"h{self.host}" if self.host else ""


NO_RECORD = Record()
"""What a line states that is of no record, or goes on with one."""
