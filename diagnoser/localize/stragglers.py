"""Ranks that compute for longer than the others. Reported, never blamed: few stragglers are bad machines (OSDI'25)."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from diagnoser.model import Evidence

_OWN_TIME = re.compile(
    r"\b[Rr]ank[ :=]*(?P<rank>\d+)\b.*"
    r"\b(?:compute|forward|fwd|backward|data)[\w -]*?[ :=]+(?P<time>\d+(?:\.\d+)?) ?ms\b"
)
_RANKS = 4
"""Ranks needed before one of them can be slower than the rest."""
_TIMES = 2.0


@dataclass(frozen=True, slots=True)
class Straggler:
    """times: its median own time divided by the median of all ranks."""

    rank: int
    node: str
    times: float


def stragglers(evidence: Evidence, nodes: Mapping[int, str]) -> tuple[Straggler, ...]:
    """Ranks whose own time per step is more than twice the median, slowest first.

    Only a rank's own time counts: in a synchronous job the whole step takes everybody equally long.
    """
    samples: dict[int, list[float]] = defaultdict(list)
    for line in evidence.lines:
        if match := _OWN_TIME.search(line.body):
            samples[int(match["rank"])].append(float(match["time"]))
    usual = {rank: median(times) for rank, times in samples.items()}
    if len(usual) < _RANKS:
        return ()
    middle = median(usual.values())
    slow = [(rank, time / middle) for rank, time in usual.items() if middle > 0 and time > _TIMES * middle]
    return tuple(
        Straggler(rank, nodes.get(rank, ""), round(times, 1)) for rank, times in sorted(slow, key=lambda row: -row[1])
    )
