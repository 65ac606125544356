"""What a parser returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from diagnoser.model import NODE_SOURCES, LineBlock, Stream, UnplacedReason, node_log_id, provenance_of
from diagnoser.model.errors import TooLarge

LINES_LIMIT = 2_000_000
"""Lines of one request: a small body can unpack to many more empty ones, and each costs as much as a full one."""
RECORDS_LIMIT = 200_000
"""Records of one request."""
PARTS_LIMIT = 20 * RECORDS_LIMIT
"""Objects and arrays in the JSON of one request."""

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
    sender: name of its credential.
    """

    job: str = ""
    attempt: int | None = None
    stream: Stream = field(default_factory=Stream)
    first: int | None = None
    cluster: str = ""
    vouched: bool = False
    sender: str = field(default="", compare=False)

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


Labels = tuple[tuple[str, str], ...]
"""Names and values, as they were received."""


class Place(NamedTuple):
    """Where lines go."""

    target: Target
    stream: Stream


class Unattributed(NamedTuple):
    """Why lines with these labels go nowhere."""

    reason: UnplacedReason
    detail: str
    labels: Labels


@dataclass(slots=True)
class Batch:
    """Parsed lines, grouped by attempt. A block with ``first == 0`` is numbered when it is committed.

    rejected: records, or lines of a refused job, that are not stored. unplaced: of what belongs to no job, how much
    there is and a sample.
    """

    blocks: dict[Target, list[LineBlock]] = field(default_factory=dict)
    rejected: int = 0
    unplaced: dict[Unattributed, tuple[int, str]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add(self, target: Target, block: LineBlock) -> None:
        self.blocks.setdefault(target, []).append(block)

    def reject(self, why: str, records: int = 1) -> None:
        """Count records that cannot be used. Of the reasons the first ones are remembered."""
        self.rejected += records
        if len(self.errors) < ERRORS_TOLD:
            self.errors.append(why)

    def leave_out(self, unplaced: Unattributed, lines: int, sample: str) -> None:
        """Remember lines, beside those that are counted as rejected, that belong to nothing."""
        counted, first = self.unplaced.get(unplaced, (0, sample))
        self.unplaced[unplaced] = (counted + lines, first)

    @property
    def jobs(self) -> set[str]:
        return {target.job for target in self.blocks}

    @property
    def unplaced_lines(self) -> int:
        return sum(lines for lines, _ in self.unplaced.values())

    def rename(self, names: Mapping[str, str]) -> None:
        """names: job -> what the store calls it."""
        for target in [target for target in self.blocks if names[target.job] != target.job]:
            blocks = self.blocks.pop(target)
            self.blocks.setdefault(Target(names[target.job], target.attempt), []).extend(blocks)

    def of_jobs(self, reasons: Mapping[str, str]) -> dict[Target, str]:
        """The batch's targets of these jobs, each with the job's reason."""
        return {target: reasons[target.job] for target in self.blocks if target.job in reasons}

    def drop(self, reasons: Mapping[Target, str]) -> bool:
        """Count all lines of these attempts as rejected; ``reasons`` gives the reason for each. Whether any lines are
        left."""
        for target in reasons:
            self.rejected += sum(block.lines for block in self.blocks.pop(target))
        self.errors += list(dict.fromkeys(reasons.values()))[:ERRORS_TOLD]
        return bool(self.blocks)

    @property
    def size(self) -> int:
        """Bytes of log text."""
        return sum(len(block.data) for blocks in self.blocks.values() for block in blocks)


@dataclass(frozen=True, slots=True)
class IngestReceipt:
    """What became of a request. duplicates: numbered lines that were stored already. rejected: records, or lines of
    refused jobs, that are not stored; unplaced: what is not because it belongs to no job (of our own formats, it is
    part of the rejected). cut: lines over the line limit."""

    lines: int = 0
    duplicates: int = 0
    rejected: int = 0
    cut: int = 0
    errors: tuple[str, ...] = ()
    unplaced: int = 0


def check_count(count: int, limit: int, what: str) -> None:
    """Raises TooLarge."""
    if count > limit:
        raise TooLarge(f"the body holds more than {limit} {what}: send it in smaller parts")


def check_json(body: bytes) -> None:
    """Before anything is built: two bytes of nested JSON become an object of sixty. Raises TooLarge."""
    check_count(body.count(b"\\n"), LINES_LIMIT, "lines")
    check_count(body.count(b"{") + body.count(b"["), PARTS_LIMIT, "nested objects and arrays")
