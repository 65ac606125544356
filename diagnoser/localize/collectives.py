"""Who never arrived at a collective. The rank that reports a timeout is only the messenger."""

import re
from collections import defaultdict
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
    silent = set(started).difference(complained)
    if len(silent) != 1:
        return None
    if len(complained) < 2:
        return None
    return Absence((), "the only launcher without an error of its own", tasks=tuple(silent))


def _barrier(evidence: Evidence) -> Absence | None:
    for index, line in enumerate(evidence.lines):
        match = _BARRIER.search(line.body)
        if match:
            ranks = map(int, re.findall(r"\d+", next(filter(None, match.groups()))))
            return Absence(tuple(ranks), "the line names the ranks that did not arrive", index)
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
        group = _first(line.body, _GROUP)
        rank = line.rank if line.rank >= 0 else int(match["rank"])
        for reached, number in (
            (enqueued, _first(line.body, _ENQUEUED, _SEQUENCE)),
            (completed, _first(line.body, _COMPLETED)),
        ):
            if number:
                reached[group].setdefault(rank, (int(number), index))
    return _last_behind(enqueued, "enqueued") or _last_behind(completed, "completed")


def _first(text: str, *patterns: re.Pattern[str]) -> str:
    """What the first pattern that matches extracts; "" where none does."""
    for pattern in patterns:
        match = pattern.search(text)
        if match:
            return match[1]
    return ""


def _last_behind(reached: _Reached, state: str) -> Absence | None:
    for ranks in reached.values():
        behind = _behind(ranks)
        if behind:
            why = f"last {state} collective is behind that of the other ranks in its group"
            return Absence(tuple(behind), why, ranks[behind[0]][1])
    return None


def _behind(ranks: Mapping[int, tuple[int, int]]) -> list[int]:
    """The ranks at the lowest number, when they are the minority and the others agree on a higher one."""
    by_number: dict[int, list[int]] = defaultdict(list)
    for rank, (number, _) in ranks.items():
        by_number[number].append(rank)
    if len(by_number) < 2:
        return []
    behind = sorted(by_number[min(by_number)])
    if len(behind) * 2 < len(ranks) or len(ranks) == 2:
        return behind
    return []


def _silent(evidence: Evidence, complained: Mapping[int, int]) -> Absence | None:
    """All but a few ranks complain: the silent ones are stopped, dead or elsewhere in the code.

    A log that shows only some of the ranks does not tell who else was silent.
    """
    ranks = {*evidence.ranks, *evidence.rank_nodes, *complained}
    silent = sorted(ranks.difference(complained))
    if not silent:
        return None
    if not complained:
        return None
    if len(silent) * 2 >= len(ranks):
        return None
    if max(ranks) >= len(ranks):
        return None
    return Absence(tuple(silent), "the only ranks without an error of their own")
