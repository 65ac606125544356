"""What launchers report about ended processes: one table for all of them, and torchelastic's own table of failures.

A code or a signal is the word of the operating system: it outweighs what any words around it suggest.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from diagnoser.model import Anchor, Evidence, ExitReport, Line, Stream, expressions, yaml_loader
from diagnoser.model.errors import Fault
from diagnoser.model.yaml_loader import StrictModel

_TABLE = re.compile(r"^\s*(time|host|rank|exitcode)\s*: (.*)$")
_FIRST = re.compile(r"first observed failure", re.I)
_LONGEST = 2048
"""Characters of a line that are read."""
_SAME_REPORT = 6
"""Lines within which a report names the process and tells its code."""
_MOST = 100_000
"""Most ranks in one list."""
_OPTIONS = expressions.quiet_options(64 << 20)
_FIELDS = ("rank", "local", "node", "pid", "code", "signal")
_NAMES = {
    "killed": 9,
    "segmentation fault": 11,
    "aborted": 6,
    "bus error": 7,
    "floating point exception": 8,
    "illegal instruction": 4,
    "terminated": 15,
    "interrupt": 2,
    "hangup": 1,
    "quit": 3,
    "out of memory": 9,
    "broken pipe": 13,
}
"""Names of signals as libc and srun print them."""
_SIGNALS = {"hup": 1, "int": 2, "quit": 3, "ill": 4, "abrt": 6, "bus": 7, "fpe": 8, "kill": 9, "segv": 11, "term": 15}
_NAMES |= {f"sig{name}": number for name, number in _SIGNALS.items()}
_NAMES |= {"abort": 6, "illegal hardware instruction": 4}
_TRANSLATED = {
    9: "已杀死 已砍掉 getötet processus_arrêté 強制終了 죽었음 убито terminado_(killed) ucciso",
    6: "已放弃 已中止",
    11: "段错误 記憶體區段錯誤 speicherzugriffsfehler erreur_de_segmentation violación_de_segmento "
    "ошибка_сегментирования errore_di_segmentazione",
    7: "總線錯誤 总线错误",
    8: "浮点数例外",
}
"""What shells call them in other languages; _ stands for a blank."""
_NAMES |= {name.replace("_", " "): number for number, names in _TRANSLATED.items() for name in names.split()}

_Text = Annotated[str, Field(min_length=1)]


class _Example(StrictModel):
    """A report of one or more lines, and what must be read from it. rank: the first one named."""

    text: _Text
    rank: int | None = None
    local: int | None = None
    node: str = ""
    pid: int | None = None
    code: int | None = None
    signal: int | None = None


class _Examples(StrictModel):
    match: Annotated[tuple[_Example, ...], Field(min_length=1)]
    no_match: Annotated[tuple[_Text, ...], Field(min_length=1)]


class _Launcher(StrictModel):
    launcher: _Text
    anchors: Annotated[tuple[_Text, ...], Field(min_length=1)]
    names: tuple[_Text, ...] = ()
    patterns: Annotated[tuple[_Text, ...], Field(min_length=1)]
    examples: _Examples


class _ExitRows(StrictModel):
    """The file: see the comments at its top."""

    version: Literal[1]
    launchers: Annotated[tuple[_Launcher, ...], Field(min_length=1)]


class _Wording:
    """How a launcher words its reports. Compiled when a line has one of its anchors, which most logs lack."""

    def __init__(self, row: _Launcher) -> None:
        self.launcher = row.launcher
        self._names = len(row.names)
        self._texts = (*row.names, *row.patterns)

    @cached_property
    def _set(self) -> Any:
        return expressions.search_set(self._texts, _OPTIONS)

    def matches(self, text: str) -> Iterator[tuple[dict[str, str], bool]]:
        """What each matching pattern reads from the text, and whether it only names the process."""
        for number in expressions.matching(self._set, text):
            yield _stated(expressions.compiled(self._texts[number], _OPTIONS).search(text)), number < self._names


class ExitTable:
    """The compiled table. It keeps no state between logs and may be shared by threads."""

    def __init__(self, launchers: tuple[_Launcher, ...] = ()) -> None:
        self._launchers = launchers
        self._wordings = expressions.AnchorIndex((_Wording(row), row.anchors) for row in launchers)
        self.anchors = tuple(map(Anchor, sorted({text for row in launchers for text in row.anchors})))

    def read(self, lines: tuple[Line, ...]) -> tuple[ExitReport, ...]:
        """Every report, in the order of the lines."""
        reports: list[ExitReport] = []
        named: dict[object, tuple[int, str, dict[str, str]]] = {}
        for index, line in enumerate(lines):
            for launcher, stated, names in self._matches(line.body[:_LONGEST]):
                printer = (line.stream, line.task)
                since, speaker, fields = named.pop(printer, (-_SAME_REPORT, launcher, {}))
                if index - since >= _SAME_REPORT:
                    speaker, fields = launcher, {}
                fields = fields | stated
                if names:
                    named[printer] = index, launcher, fields
                    continue
                reports.append(_report(index, speaker, fields))
                break
        return tuple(reports)

    def _matches(self, text: str) -> Iterator[tuple[str, dict[str, str], bool]]:
        """The matches of all launchers, in the order of the table."""
        for wording in self._wordings.rows(text):
            for stated, names in wording.matches(text):
                yield wording.launcher, stated, names

    def faults(self, path: str) -> list[Fault]:
        """Every example of the table that does not hold."""
        faults = []
        for row in self._launchers:
            for what in self._mistakes(row):
                faults.append(Fault(path, 0, f"{row.launcher}: {what}"))
        return faults

    def _mistakes(self, row: _Launcher) -> Iterator[str]:
        for example in row.examples.match:
            reports = [report for report in self.read(_lines(example.text)) if report.launcher == row.launcher]
            if list(map(_fields_of, reports)) != [_expected(example)]:
                yield f"{example.text!r} is read as {reports}"
            last = example.text.split("\n")[-1]
            if not any(text in last for text in row.anchors):
                yield f"{example.text!r} has no anchor in its last line"
        for text in row.examples.no_match:
            if self.read(_lines(text)):
                yield f"{text!r} is a report"


def _stated(match: Any) -> dict[str, str]:
    """The named groups that matched something."""
    return {name: value for name, value in match.groupdict().items() if value}


def _lines(text: str) -> tuple[Line, ...]:
    return tuple(Line(Stream(), number, body, body) for number, body in enumerate(text.split("\n"), 1))


def _fields_of(report: ExitReport) -> tuple[object, ...]:
    return next(iter(report.ranks), None), report.local, report.node, report.pid, report.code, report.signal


def _expected(example: _Example) -> tuple[object, ...]:
    return example.rank, example.local, example.node, example.pid, example.code, example.signal


def load(path: str, text: str, *, tested: bool = False) -> ExitTable:
    """Raises RuleFaults with every fault of the file. tested: its patterns are known to be of RE2."""
    table, faults = yaml_loader.read(path, text, _ExitRows)
    for number, row in enumerate(table.launchers if table and not tested else ()):
        line = yaml_loader.locate(text, "launchers", number)
        for regex in (*row.names, *row.patterns):
            why = expressions.fault(regex, _FIELDS)
            if why:
                faults.append(Fault(path, line, why))
    return ExitTable(yaml_loader.sound(table, faults).launchers)


def _report(index: int, launcher: str, fields: Mapping[str, str]) -> ExitReport:
    code, name = _number(fields, "code"), fields.get("signal", "").lower()
    signal = int(name) if name.isdecimal() else _NAMES.get(name)
    if code is not None and signal is None:
        signal = _signal_of(code)
    return ExitReport(
        line=index,
        launcher=launcher,
        ranks=tuple(_numbers(fields.get("rank", ""))),
        local=_number(fields, "local"),
        node=fields.get("node", ""),
        pid=_number(fields, "pid"),
        code=None if signal is not None else code,
        signal=signal,
    )


def _number(fields: Mapping[str, str], name: str) -> int | None:
    if name in fields:
        return int(fields[name])
    return None


def _signal_of(code: int) -> int | None:
    """Shells add 128 to the signal, PBS adds 256; Python and torchelastic negate it."""
    signal = -code
    if code > 256:
        signal = code - 256
    elif code > 128:
        signal = code - 128
    return signal if 0 < signal < 64 else None


def _numbers(text: str) -> Iterator[int]:
    """``0,2-4`` -> 0, 2, 3, 4; at most 100,000 of them."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal():
            continue
        end = int(last) if last.isdecimal() else int(first)
        yield from range(int(first), min(end, int(first) + _MOST) + 1)


@dataclass(frozen=True, slots=True)
class ElasticFailure:
    """One entry of a torchelastic failure table. first: its agent calls it the first observed failure. local: the rank
    within its node."""

    rank: int
    local: int
    host: str
    exitcode: int
    pid: int
    time: str
    first: bool

    @property
    def by_itself(self) -> bool:
        """Not merely stopped by its agent."""
        return self.exitcode != -15


def failures(evidence: Evidence) -> Iterator[ElasticFailure]:
    """Entries of all tables. Agents print concurrently, so entries are collected per printer."""
    entries: dict[tuple[object, int], dict[str, str]] = defaultdict(dict)
    for line in evidence.lines:
        printer = (line.stream, line.task)
        if _FIRST.search(line.body):
            entries[printer]["first"] = "yes"
        match = _TABLE.match(line.body)
        if not match:
            continue
        entries[printer][match[1]] = match[2]
        if match[1] != "exitcode":
            continue
        failure = _failure(entries[printer])
        if failure:
            yield failure
            del entries[printer]


def _failure(entry: Mapping[str, str]) -> ElasticFailure | None:
    rank = re.match(r"(\d+)(?: \(local_rank: (\d+)\))?", entry.get("rank", ""))
    code = re.match(r"(-?\d+) +\(pid: (\d+)\)", entry.get("exitcode", ""))
    if not rank:
        return None
    if not code:
        return None
    return ElasticFailure(
        rank=int(rank[1]),
        local=int(rank[2] or -1),
        host=entry.get("host", "").strip(),
        exitcode=int(code[1]),
        pid=int(code[2]),
        time=entry.get("time", ""),
        first="first" in entry,
    )
