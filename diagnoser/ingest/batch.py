"""What a parser returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from diagnoser.model import NODE_SOURCES, LineBlock, Stream, node_log_id, provenance_of
from diagnoser.model.errors import TooLarge

LINES_LIMIT = 2_000_000
"""Lines of one request: a small body can unpack to many more empty ones, and each costs as much as a full one."""
RECORDS_LIMIT = 200_000
"""JSON records of one request."""

ERRORS_TOLD = 10
"""Errors that a receipt tells of each kind; the others are only counted."""


class Target(NamedTuple):
    """The attempt that lines belong to. ``attempt`` is None when the shipper leaves it to the service (the latest)."""

    job: str
    attempt: int | None


@dataclass(frozen=True, slots=True)
class RecordDefaults:
    """What a request's query string says about all of its lines. A record's own fields override it.

    first: 1-based number of the first line in its stream, None when the shipper does not number its lines.
    cluster: of the node, if this is a node's own log. vouched: whether the sender speaks for nodes and scheduler.
    """

    job: str = ""
    attempt: int | None = None
    stream: Stream = field(default_factory=Stream)
    first: int | None = None
    cluster: str = ""
    vouched: bool = False

    @property
    def target(self) -> Target:
        return target(self.job, self.attempt, self.cluster, self.stream)

    def stream_of(self, source: str, node: str, rank: int) -> Stream:
        """The stream of a record with these fields. Its provenance follows from who sends it."""
        return Stream(source, node, rank, provenance_of(source, vouched=self.vouched))


def target(job: str, attempt: int | None, cluster: str, stream: Stream) -> Target:
    """Where lines go: to the named attempt, else to the log of their node if they are a node's own."""
    if not job and stream.node and stream.source in NODE_SOURCES:
        return Target(node_log_id(cluster, stream.node), None)
    return Target(job, attempt)


@dataclass(slots=True)
class Batch:
    """Parsed lines, grouped by attempt. A block with ``first == 0`` is numbered when it is committed."""

    blocks: dict[Target, list[LineBlock]] = field(default_factory=dict)
    rejected: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, target: Target, block: LineBlock) -> None:
        self.blocks.setdefault(target, []).append(block)

    def drop(self, jobs: Mapping[str, str]) -> bool:
        """Count all lines of these jobs as rejected; ``jobs`` gives the reason for each. Whether any lines are left."""
        for target in [target for target in self.blocks if target.job in jobs]:
            self.rejected += sum(block.lines for block in self.blocks.pop(target))
        self.errors += list(jobs.values())[:ERRORS_TOLD]
        return bool(self.blocks)

    @property
    def size(self) -> int:
        """Bytes of log text."""
        return sum(len(block.data) for blocks in self.blocks.values() for block in blocks)


def check_count(count: int, limit: int, what: str) -> None:
    """Raises TooLarge."""
    if count > limit:
        raise TooLarge(f"the body holds more than {limit} {what}: send it in smaller parts")
