"""What the processes of a service hold, and whether that grows."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

from tests.e2e.service import Service

WARM_UP = 1 / 3
"""Share of a run in which caches and pools fill."""


@dataclass(frozen=True, slots=True)
class Series:
    """name: as printed. Flat: grows by at most ``share`` of its median, or by ``least``, over the part that counts."""

    name: str
    share: float
    least: float


SERIES = (
    Series("memory of its own (PSS), MB", 0.03, 5.0),
    Series("resident memory (RSS), MB", 0.03, 5.0),
    Series("open files", 0.05, 5.0),
    Series("threads", 0.05, 2.0),
    Series("database connections", 0.1, 2.0),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """seconds: since the beginning. values: one for each of ``SERIES``, over all processes of the service."""

    seconds: float
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """typical: the median. growth: over the part that counts. a_day: what it would be in a day at that slope."""

    series: Series
    typical: float
    growth: float
    a_day: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= max(self.series.share * self.typical, self.series.least)


def take(service: Service, began: float, connections: Callable[[Iterable[int]], int]) -> Sample:
    """connections: of processes with these ids to the database."""
    assert service.process is not None
    pids = [service.process.pid, *service.parts()]
    memory = [_kilobytes(Path(f"/proc/{pid}/smaps_rollup")) for pid in pids]
    pss, rss = (sum(each[name] for each in memory) / 1024 for name in ("Pss", "Rss"))
    values = (pss, rss, len(open_files(pids)), threads(pids), connections(pids))
    return Sample(time.monotonic() - began, tuple(map(float, values)))


def open_files(pids: Iterable[int]) -> list[Path]:
    """What each handle of these processes leads to."""
    found = []
    for pid in pids:
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found.append(handle.readlink())
    return found


def threads(pids: Iterable[int]) -> int:
    return sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids)


def sqlite_connections(file: Path, pids: Iterable[int]) -> int:
    """Each connection has the file open once."""
    return open_files(pids).count(file)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between any two points (Theil and Sen): a few wild ones do not change it."""
    return median((second[1] - first[1]) / (second[0] - first[0]) for first, second in combinations(points, 2))


def verdicts(samples: Sequence[Sample]) -> list[Verdict]:
    """One for each of ``SERIES``, by the samples after the warm-up; at least two are left."""
    counted = [sample for sample in samples if sample.seconds >= WARM_UP * samples[-1].seconds]
    length = counted[-1].seconds - counted[0].seconds
    found = []
    for number, series in enumerate(SERIES):
        by_second = slope([(sample.seconds, sample.values[number]) for sample in counted])
        typical = median(sample.values[number] for sample in counted)
        found.append(Verdict(series, typical, by_second * length, by_second * 86_400))
    return found


def _kilobytes(file: Path) -> Mapping[str, int]:
    fields = (line.split() for line in file.read_text().splitlines()[1:])
    return {words[0].rstrip(":"): int(words[1]) for words in fields}
