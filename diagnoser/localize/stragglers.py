"""Ranks that are slower than the others, step after step. Reported, never blamed: few stragglers are bad machines
(OSDI'25).

Three sources, wherever they are printed: a rank's own time in text; NCCL Inspector, which writes one JSON object a
collective and rank (`header.id`, `header.rank`, `coll_perf.coll_sn`, `coll_perf.coll_exec_time_us`, as its README in
NCCL's sources shows); and the gauge ``XPU_TIMER_MM_KERNEL_AVG_LATENCY`` of DLRover's xpu_timer (Prometheus text, labels
`rank`, `operation`, `dtype`, `level`; microseconds).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

import orjson
import re2

from diagnoser.model import Evidence

_OWN_TIME = re2.compile(
    r"\b[Rr]ank[ :=]*(?P<rank>\d+)\b.*"
    r"\b(?:compute|forward|fwd|backward|data)[\w -]*?[ :=]+(?P<time>\d+(?:\.\d+)?) ?ms\b"
)
_MATMUL = re.compile(r"^XPU_TIMER_MM_KERNEL_AVG_LATENCY\{([^{}]{1,1000})\} (\d+(?:\.\d+)?(?:e[+-]?\d+)?)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_RANKS = 4
"""Ranks needed before one of them can be slower than the rest."""
_TIMES = 2.0
_ROUNDS, _WINDOW = 3, 64
"""Fewest rounds that show that slowness lasts, and the newest ones that are looked at."""
_MOST = 0.75
"""Share of a rank's rounds in which it must be slow: one slow step, or a few, are none."""
_WAITED = 1000.0
"""Microseconds that others must have waited in a collective: short ones differ for no reason."""
_JSON_MAX = 16_384


@dataclass(frozen=True, slots=True)
class Straggler:
    """times: how many times as long as the median rank it takes, or the others' collectives take that wait for it; the
    median of its rounds."""

    rank: int
    node: str
    times: float


class _Sample(NamedTuple):
    """series: what is compared between ranks. round: of which samples are compared; None: in order. value: its time.

    waits: of a collective, which takes longest for those that wait for the slow one.
    """

    series: tuple[str, ...]
    rank: int
    round: int | None
    value: float
    waits: bool = False
    host: str = ""


def stragglers(evidence: Evidence, nodes: Mapping[int, str]) -> tuple[Straggler, ...]:
    """Ranks that are slow in a job's own log, slowest first. nodes: rank -> node."""
    return stragglers_in(map(attrgetter("body"), evidence.job_lines), nodes)


def stragglers_in(lines: Iterable[str], nodes: Mapping[int, str]) -> tuple[Straggler, ...]:
    """Ranks that took more than twice as long as the median rank in most of the last rounds, slowest first.

    Only a rank's own time counts: in a synchronous job the whole step takes everybody equally long. lines: of a log, of
    NCCL Inspector's files, or scrapes of xpu_timer, one after the other.
    """
    series: dict[tuple[str, ...], list[_Sample]] = defaultdict(list)
    for sample in _world(_samples(lines)):
        series[sample.series].append(sample)
    times: dict[int, float] = {}
    hosts: dict[int, str] = {}
    for samples in series.values():
        hosts |= {sample.rank: sample.host for sample in samples if sample.host}
        for rank, slower in _slow(samples):
            times[rank] = max(slower, times.get(rank, 0.0))
    slow = []
    for rank, slower in sorted(times.items(), key=lambda pair: (-pair[1], pair[0])):
        slow.append(Straggler(rank, nodes.get(rank) or hosts.get(rank, ""), round(slower, 1)))
    return tuple(slow)


def _samples(lines: Iterable[str]) -> Iterator[_Sample]:
    for line in lines:
        if '"coll_perf"' in line:
            sample = _of_collective(line)
        elif line.startswith("XPU_TIMER_"):
            sample = _of_matmul(line)
        else:
            sample = _of_own_time(line)
        if sample:
            yield sample


def _of_own_time(line: str) -> _Sample | None:
    match = _OWN_TIME.search(line)
    if match:
        return _Sample(("own",), int(match["rank"][:9]), None, float(match["time"]))
    return None


def _of_matmul(line: str) -> _Sample | None:
    """One gauge of xpu_timer; None where it names no rank."""
    match = _MATMUL.match(line)
    labels = defaultdict(str, _LABEL.findall(match[1])) if match else {}
    if not match:
        return None
    if not labels["rank"].isdecimal():
        return None
    series = ("matmul", labels["operation"], labels["dtype"], labels["level"])
    return _Sample(series, int(labels["rank"][:9]), None, float(match[2]))


def _of_collective(line: str) -> _Sample | None:
    """One record of NCCL Inspector; None where it is damaged."""
    start = line.find("{")
    if len(line) > _JSON_MAX:
        return None
    if start < 0:
        return None
    try:
        record: Any = orjson.loads(line[start:])
        header, collective = record.get("header", record), record["coll_perf"]
        host = str((record.get("metadata") or record).get("hostname", ""))
        series = ("collective", str(int(header["n_ranks"])), str(header["id"]), str(collective["coll"]))
        value = float(collective["coll_exec_time_us"])
        return _Sample(series, int(header["rank"]), int(collective["coll_sn"]), value, waits=True, host=host)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _world(samples: Iterable[_Sample]) -> list[_Sample]:
    """Without collectives of the smaller communicators: their ranks are counted anew in each."""
    seen = list(samples)
    world = max((int(sample.series[1]) for sample in seen if sample.waits), default=0)
    return [sample for sample in seen if not sample.waits or int(sample.series[1]) == world]


def _slow(samples: Iterable[_Sample]) -> Iterator[tuple[int, float]]:
    """Rank and how many times as long it takes."""
    ratios: dict[int, list[float]] = defaultdict(list)
    for values, waits in _rounds(samples):
        middle = median(values.values())
        if len(values) < _RANKS:
            continue
        if middle <= 0:
            continue
        for rank, value in values.items():
            ratios[rank].append(_times_slower(value, middle, waits=waits))
    for rank, slower in ratios.items():
        recent = slower[-_WINDOW:]
        if len(recent) < _ROUNDS:
            continue
        if sum(ratio > _TIMES for ratio in recent) >= _MOST * len(recent):
            yield rank, median(recent)


def _times_slower(value: float, middle: float, *, waits: bool) -> float:
    """How many times as long as the median rank a rank takes; of a collective the slow one waits least."""
    if not waits:
        return value / middle
    if middle - value >= _WAITED:
        return middle / max(value, 1.0)
    return 1.0


def _rounds(samples: Iterable[_Sample]) -> list[tuple[dict[int, float], bool]]:
    """The values of all ranks that belong together, oldest first. Samples without a number are counted from the last
    one back: ranks may have begun to print at different times."""
    by_rank: dict[int, list[_Sample]] = defaultdict(list)
    for sample in samples:
        by_rank[sample.rank].append(sample)
    rounds: dict[int, tuple[dict[int, float], bool]] = {}
    for rank, own in by_rank.items():
        for back, sample in enumerate(own, -len(own)):
            number = back if sample.round is None else sample.round
            rounds.setdefault(number, ({}, sample.waits))[0][rank] = sample.value
    return list(map(rounds.__getitem__, sorted(rounds)))
