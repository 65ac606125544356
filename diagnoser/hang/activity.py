"""What ranks did between two looks: whether a rank that others wait for is stuck, or at work.

A rank that compiles, saves, evaluates or indexes data alone holds up the others as one that hangs does, and its
stack looks the same. It uses a processor or moves bytes meanwhile, by its main thread or its children. Without either,
nothing in it can change: it is stuck.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median
from typing import Any

import orjson

from diagnoser.hang.stacks import is_minority
from diagnoser.model.errors import BadInput

BYTES_MAX = 16 << 20
RANKS_MAX = 200_000
STOPPED, RUNNING = "stopped", "running"
"""Places of a rank whose process was sent SIGSTOP, and of one that has a processor or wants one."""
_LEAST = 3
"""Fewer ranks have no majority."""
_BUSY_CORES = 0.2
"""Of a core: what interpreters, monitors and heartbeats need is below 0.05."""
_BUSY_BYTES = 64 << 10
"""A second; a rank that waits moves some hundred."""


class Work(StrEnum):
    """What a rank is at, by its frames and the programs below it."""

    COMPILE = "compiles"
    SAVE = "saves or loads a checkpoint"
    EVAL = "evaluates"
    DATA = "reads data"
    COLLECT = "collects garbage"
    OTHER = "is at work"


WORK_SECONDS = {
    Work.COMPILE: 1800.0,
    Work.SAVE: 1800.0,
    Work.EVAL: 1800.0,
    Work.DATA: 3600.0,
    Work.COLLECT: 600.0,
    Work.OTHER: 1800.0,
}
"""Longest wait for a rank that is at it: process groups wait 10 to 30 minutes for their members, and a data set that
one rank indexes is given longer."""
_WORDS: tuple[tuple[Work, tuple[str, ...]], ...] = (
    (Work.COMPILE, ("cicc", "ptxas", "nvcc", "cc1plus", "triton", "inductor", "dynamo", "compile", "xla", "lowering")),
    (Work.SAVE, ("checkpoint", "serialization.py", "save", "load_state", "safetensors", "restore")),
    (Work.EVAL, ("evaluat", "validat", "generate", "predict", "inference", "benchmark")),
    (Work.COLLECT, ("gc.collect", "gc_collect", "empty_cache")),
    (Work.DATA, ("dataset", "dataloader", "tokeniz", "download", "index", "shuffle", "read", "decode")),
)
"""Words of frames and programs, the surest kind first."""


@dataclass(frozen=True, slots=True)
class RankActivity:
    """What a rank and its children did a second. cores: processors in use. program: that used most of them. place:
    where its main thread stood in both looks: a function of the kernel, STOPPED or RUNNING; "" where nobody knows.
    threads: processors that its other threads use."""

    rank: int
    cores: float
    bytes: float
    program: str = ""
    place: str = ""
    threads: float = 0.0

    @property
    def is_at_work(self) -> bool:
        """Tell whether anything in it goes on."""
        if self.cores >= _BUSY_CORES:
            return True
        if self.place == RUNNING:
            return True
        return self.bytes >= _BUSY_BYTES

    @property
    def stands(self) -> str:
        """Say where its main thread is."""
        if self.place in ("", RUNNING):
            return "runs"
        return f"waits in {self.place} of the kernel"

    def describe(self) -> str:
        """Say what it uses."""
        if self.cores >= _BUSY_CORES:
            return f"{self.cores:.1f} cores in use" + (f", most by {self.program}" if self.program else "")
        if self.place == RUNNING:
            return "it wants a processor, and gets little of one"
        return f"{self.bytes / 1e6:.1f} MB/s moved"


def is_activity(data: bytes) -> bool:
    """Tell whether a JSON object is a pair of looks."""
    return data[:64].lstrip().startswith(b'{"activity"')


def parse_activity(data: bytes) -> list[RankActivity]:
    """Read what the collector of one node saw. Raises BadInput."""
    if len(data) > BYTES_MAX:
        raise BadInput(f"activity of {len(data)} bytes is larger than {BYTES_MAX}")
    try:
        ranks = orjson.loads(data)["activity"].items()
        return [_activity(int(rank), seen) for rank, seen in ranks if 0 <= int(rank) < RANKS_MAX]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"the activity of ranks cannot be read: {error}") from None


def _activity(rank: int, seen: Mapping[str, Any]) -> RankActivity:
    program, place = (_word(seen.get(name, "")) for name in ("program", "place"))
    return RankActivity(
        rank, float(seen["cores"]), float(seen["bytes"]), program, place, float(seen.get("threads", 0.0))
    )


def _word(value: Any) -> str:
    return "".join(char for char in str(value)[:40] if char.isprintable())


def with_threads(looks: Sequence[RankActivity]) -> tuple[RankActivity, ...]:
    """Count the threads of each rank as far as they use more than those of most ranks: threads of communication spin
    in all of them alike while others, which tokenize or decode, have work of their own."""
    if len(looks) < _LEAST:
        return tuple(looks)
    usual = median(look.threads for look in looks)
    return tuple(replace(look, cores=look.cores + max(0.0, look.threads - usual)) for look in looks)


def outliers(looks: Collection[RankActivity]) -> tuple[list[RankActivity], int]:
    """Find the few ranks that stand elsewhere than most, which wait at one place of the kernel and do nothing; and the
    number of those. None where no such majority waits."""
    places = Counter(look.place for look in looks if look.place and not look.is_at_work)
    if len(looks) < _LEAST or not places:
        return [], 0
    usual, waiting = places.most_common(1)[0]
    others = [look for look in looks if look.place != usual]
    if usual == STOPPED:
        return [], 0
    if not is_minority(len(others), waiting, len(looks)):
        return [], 0
    return others, waiting


def kind_of_work(seen: RankActivity, frames: Iterable[str]) -> Work:
    """Name what a rank is at. frames: of its main thread, innermost first; the nearest that tells decides."""
    for text in (seen.program, *frames):
        lowered = text.lower()
        for work, words in _WORDS:
            if any(word in lowered for word in words):
                return work
    return Work.OTHER
