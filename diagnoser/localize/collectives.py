"""Who never arrived at a collective. The rank that reports a timeout is only the messenger."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from diagnoser.model import Evidence

_BARRIER = re.compile(r"[Rr]anks? ([\d, ]+?) failed to pass monitoredBarrier|\[missing ranks: ([\d, ]+)\]")
_WATCHDOG = re.compile(r"[Rr]ank (?P<rank>\d+)\]?.*?(?:Watchdog caught|timeout at NCCL work|last enqueued)")
_GROUP = re.compile(r"PG (?:ID )?(\d+)(?: PG GUID \S+)?")
_SEQUENCE = re.compile(r"SeqNum=(\d+)")
_ENQUEUED = re.compile(r"last enqueued(?: NCCL)? work: (\d+)")
_COMPLETED = re.compile(r"last completed(?: NCCL)? work: (\d+)")
_Reached = dict[str, dict[int, tuple[int, int]]]
"""process group -> rank -> (number of a collective, line that says so)"""


@dataclass(frozen=True, slots=True)
class Absence:
    """Whom the others waited for: ranks, or launcher tasks whose ranks never started.

    line: where the log shows it, an index into ``Evidence.lines``, or -1.
    """

    ranks: tuple[int, ...]
    why: str
    line: int = -1
    tasks: tuple[int, ...] = ()


def absent(evidence: Evidence, complained: Mapping[int, int]) -> Absence | None:
    """The ranks that did not arrive, or None when the log does not show it.

    complained: rank -> index of its first own error line.
    """
    return _barrier(evidence) or _laggard(evidence) or _silent(evidence, complained)


def absent_task(started: Collection[int], complained: Collection[int]) -> Absence | None:
    """The only task of a launcher that has no error of its own while all others gave up waiting."""
    silent = sorted(set(started) - set(complained))
    if len(silent) != 1 or len(complained) < 2:
        return None
    return Absence((), "the only launcher without an error of its own", tasks=(silent[0],))


def _barrier(evidence: Evidence) -> Absence | None:
    for index, line in enumerate(evidence.lines):
        if match := _BARRIER.search(line.body):
            ranks = tuple(int(number) for number in re.findall(r"\d+", match[1] or match[2]))
            return Absence(ranks, "the line names the ranks that did not arrive", index)
    return None


def _laggard(evidence: Evidence) -> Absence | None:
    """Within a process group, the rank that is behind all others: in its last enqueued collective or, where those
    are equal, in its last completed one."""
    enqueued: _Reached = defaultdict(dict)
    completed: _Reached = defaultdict(dict)
    for index, line in enumerate(evidence.lines):
        match = _WATCHDOG.search(line.body)
        if not match:
            continue
        group = _GROUP.search(line.body)
        rank = line.rank if line.rank >= 0 else int(match["rank"])
        numbers = _ENQUEUED.search(line.body) or _SEQUENCE.search(line.body), _COMPLETED.search(line.body)
        for reached, number in zip((enqueued, completed), numbers, strict=True):
            if number:
                reached[group[1] if group else ""].setdefault(rank, (int(number[1]), index))
    return _last_behind(enqueued, "enqueued") or _last_behind(completed, "completed")


def _last_behind(reached: _Reached, state: str) -> Absence | None:
    for ranks in reached.values():
        if behind := _behind(ranks):
            why = f"last {state} collective is behind that of the other ranks in its group"
            return Absence(tuple(behind), why, ranks[behind[0]][1])
    return None


def _behind(ranks: Mapping[int, tuple[int, int]]) -> list[int]:
    """The ranks at the lowest number, when they are the minority and the others agree on a higher one."""
    if len(ranks) < 2:
        return []
    numbers = Counter(number for number, _ in ranks.values())
    lowest = min(numbers)
    behind = sorted(rank for rank, (number, _) in ranks.items() if number == lowest)
    return behind if len(numbers) > 1 and (len(behind) * 2 < len(ranks) or len(ranks) == 2) else []


def _silent(evidence: Evidence, complained: Mapping[int, int]) -> Absence | None:
    """All but a few ranks complain: the silent ones are stopped, dead or elsewhere in the code.

    A log that shows only some of the ranks does not tell who else was silent.
    """
    ranks = set(evidence.ranks) | set(evidence.rank_nodes) | set(complained)
    silent = sorted(ranks - set(complained))
    if not silent or not complained or len(silent) * 2 >= len(ranks) or max(ranks) >= len(ranks):
        return None
    return Absence(tuple(silent), "the only ranks without an error of their own")
