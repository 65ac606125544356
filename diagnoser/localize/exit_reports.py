"""What launchers report about ended processes: tables of torchelastic, task lists of srun."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from diagnoser.model import Evidence

SRUN = re.compile(
    r"srun: error: (?P<node>[\w.\[\],-]+): tasks? (?P<tasks>[\d,-]+): (?P<how>[A-Z][\w ()]*?)(?: \(core dumped\))?\s*$"
)
_TABLE = re.compile(r"^\s*(time|host|rank|exitcode)\s*: (.*)$")
_FIRST = re.compile(r"first observed failure", re.I)
_TERMINATED = frozenset({"Terminated", "Exited with exit code 143", "Terminated by signal"})


@dataclass(frozen=True, slots=True)
class ElasticFailure:
    """One entry of a torchelastic failure table. first: its agent calls it the first observed failure."""

    rank: int
    host: str
    exitcode: int
    pid: int
    time: str
    first: bool

    @property
    def by_itself(self) -> bool:
        """Not merely stopped by its agent."""
        return self.exitcode != -15


@dataclass(frozen=True, slots=True)
class TaskExit:
    """What srun says about tasks on a node. how: ``Killed``, ``Exited with exit code 1``, ``Out Of Memory`` ..."""

    node: str
    tasks: tuple[int, ...]
    how: str
    line: int

    @property
    def by_itself(self) -> bool:
        return self.how not in _TERMINATED


def exits(evidence: Evidence) -> Iterator[TaskExit]:
    for index, line in enumerate(evidence.lines):
        if "srun: error:" in line.body and (match := SRUN.search(line.body)) and "[" not in match["node"]:
            yield TaskExit(match["node"], tuple(_numbers(match["tasks"])), match["how"], index)


def _numbers(text: str) -> Iterator[int]:
    """``0,2-4`` -> 0, 2, 3, 4; at most 100,000 of them."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            yield from range(int(first), min(int(last) if last.isdecimal() else int(first), int(first) + 100_000) + 1)


def failures(evidence: Evidence) -> Iterator[ElasticFailure]:
    """Entries of all tables. Agents print concurrently, so entries are collected per printer."""
    entries: dict[tuple[object, int], dict[str, str]] = {}
    for line in evidence.lines:
        printer = (line.stream, line.task)
        entry = entries.setdefault(printer, {})
        if _FIRST.search(line.body):
            entry["first"] = "yes"
        match = _TABLE.match(line.body)
        if not match:
            continue
        entry[match[1]] = match[2]
        if match[1] == "exitcode" and (failure := _failure(entry)):
            yield failure
            entries[printer] = {}


def _failure(entry: Mapping[str, str]) -> ElasticFailure | None:
    rank = re.match(r"(\d+)", entry.get("rank", ""))
    code = re.match(r"(-?\d+) +\(pid: (\d+)\)", entry.get("exitcode", ""))
    if not rank or not code:
        return None
    return ElasticFailure(
        rank=int(rank[1]),
        host=entry.get("host", "").strip(),
        exitcode=int(code[1]),
        pid=int(code[2]),
        time=entry.get("time", ""),
        first="first" in entry,
    )
