"""What comes in: lines of a stream, and where logs of nodes are kept."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum

JOB_ID = r"^[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,199}$"
"""Allowed job ids: those that schedulers make and that fit into one segment of a URL."""

KERNEL_SOURCES = frozenset({"kernel", "dmesg"})
"""Sources of the kernel's own records, as user space cannot write them: only what they say can prove a fault."""

DAEMON = "daemon"
"""Source of lines whose daemon the shipper authenticated, by what journald says of the unit that sent them."""

SYSLOG = "syslog"
"""Source of what any process of a node can write: it describes the node, and leads to asking it."""

NODE_SOURCES = KERNEL_SOURCES | {DAEMON, SYSLOG, "scheduler"}
"""Sources whose lines speak of a node: sent without a job they belong to it, and to no attempt."""

ALERTS = "alertmanager"
"""Source of lines in the log of a node that monitoring tells: they describe the node, and prove nothing about it, for
metrics and labels pass through what many people configure."""

NODE_LOG = "~node/"


class Provenance(StrEnum):
    """Who vouches for a line or event. It follows from the credential and the route that delivered it, never from what
    the text looks like: only ``JOB`` text is written by a tenant, and it proves nothing about a machine.
    """

    JOB = "job"  # what the job prints or sends
    NODE = "node"  # a node's own kernel, system or device log
    SCHEDULER = "scheduler"  # node states, exit reasons
    RUNTIME = "runtime"  # dumps of the communication library or of stacks, taken by an agent


_VOUCHED = {
    **dict.fromkeys((*KERNEL_SOURCES, DAEMON, SYSLOG, ALERTS), Provenance.NODE),
    **dict.fromkeys(("scheduler", "scontrol", "kubernetes"), Provenance.SCHEDULER),
    **dict.fromkeys(("flight_recorder", "nccl_ras", "stack_dump"), Provenance.RUNTIME),
}
"""Source -> whose word a line of it is, if an agent delivers it."""


def provenance_of(source: str, *, vouched: bool) -> Provenance:
    """vouched: whether the credential that delivered the line speaks for nodes and scheduler."""
    return _VOUCHED.get(source, Provenance.JOB) if vouched else Provenance.JOB


def printable(text: str, *, stays: str = "", hidden: str = " ") -> str:
    """Replace each character that cannot be printed. stays: those that do not count as such. hidden: stands instead."""
    return "".join(char if char.isprintable() or char in stays else hidden for char in text)


def shortened(text: str, length: int) -> str:
    """The text, or its beginning with an ellipsis where it is longer."""
    if len(text) <= length:
        return text
    return text[: length - 1] + "\N{HORIZONTAL ELLIPSIS}"


CLEAN_RUNS = "~runs/"
"""Before the name of a job family: what its clean runs print is stored under it."""


def node_log_id(cluster: str, node: str) -> str:
    """The name under which the log of a node is stored; no job can have it. Short and full host names are one node,
    however they are spelled."""
    short = node if node.replace(".", "").isdecimal() else node.partition(".")[0].lower()
    return f"{NODE_LOG}{cluster}/{short}"


@dataclass(frozen=True, slots=True, order=True)
class Stream:
    """Where lines come from. A stream belongs to one attempt; its lines are numbered from 1.

    ``node`` is "" and ``rank`` is -1 where the shipper did not say: the lines' own prefixes may still tell.
    Two streams that differ in provenance only are two streams, so that what a job sends under the name of a kernel log
    can neither join nor shadow that log.
    """

    source: str = "stdout"
    node: str = ""
    rank: int = -1
    provenance: Provenance = Provenance.JOB

    @property
    def from_job(self) -> bool:
        return self.provenance is Provenance.JOB


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines of one stream.

    data: the lines, split by ``\\n`` only; a last line without ``\\n`` counts as whole.
    first: number of the first line in its stream (1-based).
    times: one time a line (seconds since the epoch, NaN where unknown), or None when the format carries none.
    received: when the block arrived (seconds since the epoch).
    missing: bytes that were cut from the middle of its long lines earlier.
    arrivals: where parts of the block arrived apart, (number of the first line, received) of each, in order.
    """

    stream: Stream
    data: bytes
    first: int = 1
    times: tuple[float, ...] | None = None
    received: float = 0.0
    missing: int = 0
    arrivals: tuple[tuple[int, float], ...] = ()

    @property
    def lines(self) -> int:
        return self.data.count(b"\n") + (not self.data.endswith(b"\n"))

    def received_at(self, number: int) -> float:
        """When line ``number`` arrived."""
        if not self.arrivals:
            return self.received
        return self.arrivals[bisect_right(self.arrivals, (number, math.inf)) - 1][1]


@dataclass(frozen=True, slots=True, order=True)
class Anchor:
    """A literal that every line a rule can match carries. fatal: the rule names a root, so the line may end the run.

    Digits in ``text`` are ignored by the gate: it looks at digit-free skeletons.
    """

    text: str
    fatal: bool = False
