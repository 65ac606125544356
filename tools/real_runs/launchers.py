"""Launchers and shippers of the families: how processes are started, what stands before their lines, and what is said
when they end. Programs that are on the machine are run; of the others, lines and ends are written as they write them.

They are data (``launchers.yaml``): what is written is templates over the fields of a line (``_fields``) and of an end
(``_end_fields``).
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from tools.real_runs.carriers import Line

_SIGNALS = {
    -1: ("HUP", "Hangup"),
    -2: ("INT", "Interrupt"),
    -4: ("ILL", "Illegal instruction"),
    -6: ("ABRT", "Aborted"),
    -7: ("BUS", "Bus error"),
    -8: ("FPE", "Floating point exception"),
    -9: ("KILL", "Killed"),
    -11: ("SEGV", "Segmentation fault"),
    -15: ("TERM", "Terminated"),
    -24: ("XCPU", "CPU time limit exceeded"),
}


@dataclass(frozen=True, slots=True)
class End:
    """A process that ended: its number, its exit code (negative for a signal) and when."""

    process: int
    code: int
    at: float

    @property
    def shell_code(self) -> int:
        return 128 - self.code if self.code < 0 else self.code


@dataclass(frozen=True, slots=True)
class Ends:
    """Templates of the lines about an end: with 0, with another code, by a signal (as by a code where not given)."""

    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    killed: tuple[str, ...] = ()

    def write(self, end: End, fields: Mapping[str, Any]) -> list[str]:
        chosen = self.good
        if end.code:
            chosen = self.killed if end.code < 0 and self.killed else self.bad
        return [line for text in chosen for line in text.format_map(fields).split("\n")]


def _timed(at: float) -> dict[str, Any]:
    time = datetime.fromtimestamp(at, UTC)
    return {"at": time, "milli": f"{time:%f}"[:3], "seconds": int(at), "micros": int(at * 1e6)}


def _placed(process: int, node: str) -> dict[str, Any]:
    return {
        "rank": process,
        "number": process + 1,
        "node": node,
        "pid": 2311 + process,
        "address": f"10.164.0.{10 + process}",
        "hex": f"{7 * process + 11:02x}",
        "pod": 1803 + 7 * process,
        "pool": "workerpool0-0" if process == 0 else f"workerpool1-{process - 1}",
        "sky": "head, rank=0, pid=3120"
        if process == 0
        else f"worker{process}, rank={process}, pid={3120 + process}, ip=",
    }


def _fields(line: Line, node: str) -> dict[str, Any]:
    """json: the text as a JSON string."""
    failed = line.stream == "stderr"
    stream = {"stream": line.stream, "severity": "ERROR" if failed else "INFO", "level": 7 if failed else 3}
    text = {"text": line.text, "json": json.dumps(line.text, ensure_ascii=False)}
    return {**_timed(line.at), **_placed(line.process, node), **stream, **text, "priority": 11 if failed else 14}


def _end_fields(end: End, node: str, ends: Sequence[End]) -> dict[str, Any]:
    """status: as systemd has it. codes: of all processes. outcome: as LSF has it."""
    short, words = _SIGNALS.get(end.code, (str(-end.code), f"signal {-end.code}"))
    codes = [other.shell_code for other in sorted(ends, key=lambda other: other.process)]
    code = {"code": end.code, "shell_code": end.shell_code, "pbs_code": 256 - end.code if end.code < 0 else end.code}
    status = "1/FAILURE" if end.code == 1 else str(end.code)
    outcome = "Exited" if end.code else "Done"
    named = {"signal": -end.code, "signal_name": f"SIG{short}", "short": short, "words": words}
    return {
        **_timed(end.at),
        **_placed(end.process, node),
        **code,
        **named,
        "status": status,
        "codes": codes,
        "outcome": outcome,
    }


@dataclass(frozen=True, slots=True)
class Launcher:
    """command: words before the trainer's, where a real program starts the processes ("{ranks}", "{python}" and
    "{here}" are filled in). line, end: of lines and ends of processes that are started one by one. before, after:
    around the whole log, of the process that failed first, else the last one; told: in them by that name. names_rank,
    names_node: what a line's head shows. head: what a real program puts before a line (taken off to find the root
    line); its group, else its last number, is the rank. section: the line of a real program after which all lines are
    of one process: its group is "node" or "rank". success: its words for an end of all processes with 0. halts: the
    others are ended after the first failure; cuts: after the first end, also a good one. alone: also for one process;
    several: also for more. half: where its generation is not halved by a seed.
    """

    name: str
    command: tuple[str, ...] = ()
    line: str = "{text}"
    end: Ends = Ends()
    before: Ends = Ends()
    after: Ends = Ends()
    told: Ends = Ends()
    names_rank: bool = False
    names_node: bool = False
    halts: bool = False
    head: str = ""
    section: str = ""
    success: str = ""
    alone: bool = False
    several: bool = True
    only_python: bool = False
    environment: str = ""
    cuts: bool = False
    generation: int = 1
    half: int = 0

    @property
    def imitation(self) -> bool:
        return not self.command and self.name != "plain"

    def write(self, line: Line, node: str) -> str:
        return self.line.format_map(_fields(line, node))

    def ended(self, end: End, node: str) -> list[str]:
        return self.end.write(end, _end_fields(end, node, [end]))

    def around(self, ends: Sequence[End], nodes: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return what stands before and after all their lines."""
        first = next((end for end in ends if end.code), ends[-1])
        fields = {**_end_fields(first, nodes[first.process], ends), "first": nodes[0]}
        fields["told"] = "\n".join(self.told.write(first, fields))
        return self.before.write(first, fields), self.after.write(first, fields)


def strip_head(launcher: Launcher, text: str) -> str:
    return re.sub(launcher.head, "", text, count=1) if launcher.head else text


def rank_of_head(launcher: Launcher, text: str) -> int | None:
    """The rank that a real program's head shows."""
    match = re.match(launcher.head, text) if launcher.head and launcher.names_rank else None
    if match is None:
        return None
    digits = match.groups() or re.findall(r"\d+", match[0])
    return int(digits[-1])


_PIPE = 'set -o pipefail; "$@" 2>&1 | '


def _launcher(row: Mapping[str, Any]) -> Launcher:
    """Make a launcher of its row. pipe: a program that a single process's output goes through. flags: fields that are
    true; "single" is not several."""
    fields = {key: value for key, value in row.items() if key not in ("flags", "command", "script", "pipe")}
    for key in ("before", "end", "after", "told"):
        if key in fields:
            fields[key] = _ends(fields[key])
    flags = row.get("flags", "").split()
    fields |= {flag: True for flag in flags if flag != "single"}
    return Launcher(**fields, command=_command(row), several="single" not in flags)


def _ends(row: Any) -> Ends:
    """A list stands for every end, a text for one line."""
    by_end = row if isinstance(row, dict) else {"good": row, "bad": row}
    return Ends(**{end: (lines,) if isinstance(lines, str) else tuple(lines) for end, lines in by_end.items()})


def _command(row: Mapping[str, Any]) -> tuple[str, ...]:
    if "script" in row:
        return ("bash", "-c", row["script"], "launch.sh")
    if "pipe" in row:
        return ("bash", "-c", _PIPE + row["pipe"], "run.sh")
    return tuple(shlex.split(row.get("command", "")))


def _read() -> tuple[Launcher, ...]:
    rows = yaml.safe_load((Path(__file__).parent / "launchers.yaml").read_text())
    return tuple(_launcher(row) for row in rows)


LAUNCHERS: tuple[Launcher, ...] = _read()
PLAIN = LAUNCHERS[0]
