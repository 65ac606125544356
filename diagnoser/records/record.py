"""One record: what a program says at once, with what it says about itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diagnoser.model import Severity

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Record:
    """texts: the message, then the error that belongs to it, line by line; empty where the line is no message but data.

    time: seconds since the epoch; 0.0 where it states none. rank, pid: -1 where it states none.
    instance: the pod, instance of a service, or container that printed it.
    fields: all others, by name.
    number: of the process, by another word than rank; -1 where it states none.
    """

    texts: tuple[str, ...] = ()
    severity: Severity | None = None
    time: float = 0.0
    rank: int = -1
    host: str = ""
    pid: int = -1
    instance: str = ""
    fields: Mapping[str, Scalar] = field(default_factory=dict)
    number: int = -1

    @property
    def is_carrier(self) -> bool:
        """Whether it is a shipper's, which carries a line that some program printed."""
        return bool(self.texts) and self.severity is None and self.rank < 0

    @property
    def process(self) -> str:
        """Names the process by its number on its machine; "" without one."""
        return f"p{self.pid}@{self.host}" if self.pid >= 0 else ""

    @property
    def voice(self) -> str:
        """Names the process, as the voice of a ``Prefix`` does; "" where it states none."""
        if self.instance:
            return f"i{self.instance}"
        if self.rank >= 0:
            return f"r{self.rank}"
        return self.process or (f"h{self.host}" if self.host else "")


NO_RECORD = Record()
"""What a line states that is of no record, or goes on with one."""
