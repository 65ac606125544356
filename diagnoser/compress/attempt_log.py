"""The log of one attempt as passed between steps: decoded once, read only as far as needed."""

from collections.abc import Iterable
from functools import cached_property

from diagnoser.compress.codec import read_together
from diagnoser.compress.delta import Delta
from diagnoser.compress.digest import Digest
from diagnoser.compress.lines import body_of
from diagnoser.compress.sampling import apply_limits
from diagnoser.model import Evidence


class AttemptLog:
    """Digest and evidence are built on first use; for a large log that takes a second: use a thread."""

    def __init__(self, delta: Delta) -> None:
        self.delta = delta

    @classmethod
    def from_deltas(cls, stored: Iterable[bytes]) -> "AttemptLog":
        """Read the deltas of an attempt, in any order."""
        return cls(apply_limits(read_together(list(stored))))

    @cached_property
    def digest(self) -> Digest:
        return Digest(self.delta)

    @property
    def evidence(self) -> Evidence:
        return self.digest.evidence

    @property
    def messages(self) -> tuple[str, ...]:
        """The first line of each shape, without terminal codes and launcher prefixes."""
        messages = []
        for stat in self.delta.shapes.values():
            _, body = body_of(stat.first_text)
            messages.append(body.decode("utf-8", "replace"))
        return tuple(messages)
