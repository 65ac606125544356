"""From what the processes of a job printed to one labelled log: lines in their carrier's form, and what they show."""

import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.environments import TORCH
from tools.real_runs import environments
from tools.real_runs.cases import Case, NoRootLine, label
from tools.real_runs.jobs.draw import CARRIERS, FAMILIES, Plan, Row
from tools.real_runs.jobs.run import TRAINERS, End, Line, Run
from tools.real_runs.launchers import _SIGNALS
from tools.real_runs.scenarios import Truth

_RAISES = re.compile(r"^\W*(\[\w+\]:? *)*(raise|assert) \w")
"""A line of source in a traceback: it repeats the words of the error, and is none."""
_PEER = (
    r"ConnectionResetError|EOFError|BrokenPipeError|Connection closed by peer|onnection reset by peer|"
    r"remote process exited|UNAVAILABLE|Broken pipe|RemoteDisconnected|ConnectionClosedError|"
    r"Connection refused|Resource temporarily unavailable|connection closed by peer"
)
_NAMES_RANK = (
    r"(?i:\b(rank|worker|task|replica|trainer|actor|process|train|r|member|peer|client|part|sampler|stage|fit|engine)"
    r"[\s=:\"#\[(_-]{{0,3}}0?{}\b)"
)
_DEAD_WORKER = "BrokenProcessPool"
_NEVER = r"(?!)"
_TRACE = re.compile(r"^(\s|Traceback|During handling|The above exception|$)")
"""Lines of a traceback between the words of a log and the exception."""
_UNREAD = re.compile(r"\x1b\[[\d;]*m")
"""Colours."""
_WRITTEN_OUT = re.compile(r"""(?<=  )raise (type\(')?([\w.]+)('|\(['"])((?!\)\\n).)*(\)(?=\\n)|$)""")
"""Source of a fault that has its words in it: programs of a site raise what a library says."""
_TAIL = 12


@dataclass(frozen=True, slots=True)
class Shown:
    """A line of the finished log.

    text: without the carrier's head.
    rank: of the process it is from or about, where that is known.
    source: as in Line.
    kind: "process", "node" or "launcher".
    """

    line: str
    text: str
    rank: int | None = None
    source: int | None = None
    kind: str = "launcher"


_Event = tuple[float, int, Shown]


def make_case(plan: Plan, run: Run, folder: Path) -> Case:
    """Raises NoRootLine when it did not go as planned."""
    row, bad = plan.row, [end.code for end in run.ends if end.code]
    healthy = row["type"] == "completed" or bool(row.get("ends_well"))
    if bool(bad) == healthy and row.get("event") in (None, "lost"):
        raise NoRootLine(f"{plan.id} ended with {bad}\n{_tail([line.text for line in run.lines])}")
    run = _cleaned(plan, run, folder)
    shown = _Log(plan, run).shown()
    return Case([entry.line for entry in shown], _label(plan, run, shown))


def _tail(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line[:300]}" for line in lines[-_TAIL:])


def _cleaned(plan: Plan, run: Run, folder: Path) -> Run:
    """Without a path or an address of this machine."""
    site = TORCH.python.parents[1]
    names = {
        str(folder): "/scratch/run",
        'importlib.import_module("hooks").on_event(self)': "hook(self)",
        ".strike(": ".call_hooks(",
        "in strike": "in call_hooks",
        str(TRAINERS): "/workspace/train",
        str(site): "/opt/site",
        str(site.resolve()): "/opt/site",
        str(environments.FOLDER): "/opt",
        str(Path(sys.base_prefix).resolve()): "/usr",
        "/usr/local/lib": "/usr/lib",
        "127.0.0.1": "10.4.7.11",
    }

    def clean(text: str) -> str:
        text = _WRITTEN_OUT.sub(r"raise \2(message)", text)
        for real, name in names.items():
            text = text.replace(real, name)
        return text

    return replace(run, lines=[replace(line, text=clean(line.text)) for line in run.lines])


class _Log:
    def __init__(self, plan: Plan, run: Run) -> None:
        self._plan, self._run, self._carrier = plan, run, CARRIERS[plan.carrier]
        self._starts = self._carrier.get("starts", "rank")

    def shown(self) -> list[Shown]:
        events = [*self._lines(), *self._event(), *(self._ends() if self._starts == "rank" else ())]
        entries = [entry for _, _, entry in sorted(events, key=lambda event: event[:2])]
        start = self._fields(0, min(line.at for line in self._run.lines))
        before = [Shown(line.format_map(start), "") for line in self._carrier.get("before", ())]
        return [*before, *(self._grouped(entries) if "group" in self._carrier else entries)]

    def _lines(self) -> Iterator[_Event]:
        for number, line in enumerate(self._run.lines):
            template = self._carrier.get("node_line" if line.of_node else "line")
            if template is None:
                continue
            text, rank = line.text, line.source if self._starts == "rank" else line.rank
            head = re.search(self._carrier.get("head", "^$"), text)
            if head is not None:
                rank, text = self._rank_of_head(head, line.source), text[head.end() :]
            written = template.format_map({**self._fields(line.source, line.at), **_texts(line)})
            text, kind = _UNREAD.sub("", text), "node" if line.of_node else "process"
            yield line.at + self._late(line.source), number, Shown(written, text, rank, line.source, kind)

    def _late(self, source: int) -> float:
        """By how much the lines of a process come after others that were printed at the same time."""
        most = float(self._carrier.get("late_s", 0))
        return random.Random(self._plan.seed * 100 + source).uniform(0, most) if most else 0.0

    def _rank_of_head(self, head: re.Match[str], source: int) -> int | None:
        groups = head.groupdict()
        if groups.get("rank"):
            return int(groups["rank"])
        return source * self._plan.per_node + int(groups["local"]) if groups.get("local") else None

    def _fields(self, source: int, at: float) -> dict[str, Any]:
        plan, time = self._plan, datetime.fromtimestamp(at, UTC)
        rank = source if self._starts == "rank" else 0
        node = plan.nodes[source] if self._starts == "node" else plan.node_of(rank)
        return {
            "rank": rank, "local": rank % plan.per_node, "index": plan.nodes.index(node), "node": node, "ip": node,
            "node0": plan.nodes[0], "pid": 3000 + 17 * rank, "at": time, "milli": f"{time:%f}"[:3], "seconds": int(at),
            "colour": 1 + rank % 6, "elapsed": at - self._run.lines[0].at + 31, "world": plan.world,
        }  # fmt: skip

    def _ends(self) -> Iterator[_Event]:
        """What the launcher says of each process, and of the one that failed first at the end of all."""
        plan, first = self._plan, next((end for end in self._run.ends if end.code), None)
        lost = plan.struck if plan.row.get("event") == "lost" else ()
        for end in self._run.ends:
            kind = "killed" if end.code < 0 else "bad" if end.code else "good"
            last = max((line.at for line in self._run.lines if line.source == end.source), default=end.at)
            last += self._late(end.source)
            if end.source not in lost:
                yield from self._say(kind, max(end.at, last), self._of_end(end), end.source)
        if first is not None and "event" not in plan.row:
            of_first = {f"first_{name}": value for name, value in self._of_end(first).items()}
            fields = {**self._of_end(first), **of_first, "first": first.source}
            yield from self._say("after_bad", self._run.lines[-1].at + 2, fields, first.source)

    def _of_end(self, end: End) -> dict[str, Any]:
        short, words = _SIGNALS.get(end.code, (str(-end.code), f"signal {-end.code}"))
        shell = 128 - end.code if end.code < 0 else end.code
        said = f"signal {-end.code}" if end.code < 0 else f"exit code {end.code}"
        named = {"signal": -end.code, "short": short, "words": words, "code": end.code, "shell_code": shell}
        return {**self._fields(end.source, end.at), **named, "end": said}

    def _event(self) -> Iterator[_Event]:
        """What ended the job from outside: a scheduler, or the loss of a node."""
        event, at = self._plan.row.get("event", ""), self._run.event_at
        if event == "lost":
            at = next(end.at for end in self._run.ends if end.code) + 1.5
        if event and at is not None:
            struck = self._plan.struck[0] if event == "lost" else 0
            yield from self._say(event, at, {**self._fields(0, at), "node": self._plan.node_of(struck)}, None)

    def _say(self, what: str, at: float, fields: Mapping[str, Any], source: int | None) -> Iterator[_Event]:
        time = datetime.fromtimestamp(at, UTC)
        timed = {**fields, "at": time, "milli": f"{time:%f}"[:3], "seconds": int(at)}
        text = "\n".join(template.format_map(timed) for template in self._carrier.get(what, ()))
        for number, line in enumerate(text.split("\n") if text else ()):
            yield at, 10**6 + number, Shown(line, line, source, source)

    def _grouped(self, entries: Sequence[Shown]) -> list[Shown]:
        """The lines of one process or node after those of another, in an order of their own."""
        size = self._plan.per_node if self._carrier["group"] == "node" else 1
        lines: list[Shown] = []
        for first in range(0, self._plan.world, size):
            section = self._carrier.get("section", "").format_map(self._fields(first, 0.0))
            lines += [Shown(line, "") for line in section.split("\n") if line]
            lines += [entry for entry in entries if (entry.source or 0) // size * size == first]
        return lines


def _texts(line: Line) -> dict[str, Any]:
    low, quoted = "error" if line.stream == "stderr" else "info", line.text.replace('"', '""')
    written = json.dumps(line.text, ensure_ascii=False)
    return {"text": line.text, "json": written, "quoted": quoted, "low": low, "stream": line.stream}


def _label(plan: Plan, run: Run, shown: Sequence[Shown]) -> dict[str, Any]:
    row = _seen(plan, shown)
    root, marker = _root_lines(plan, row, shown), row.get("marker", "")
    if marker and not root:
        raise NoRootLine(f"{plan.id}: no line shows it\n{_tail([entry.line for entry in shown])}")
    rank = _rank(plan, row, shown, root)
    visible = bool(marker) or row["type"] == "completed"
    outcome, also, recovery = row.get("outcome", "failed"), row.get("also", ()), row.get("recovery", "")
    truth = Truth(row["type"], plan.fault, outcome=outcome, also=tuple(also), recovery=recovery, visible=visible)
    others = [number for number, entry in enumerate(shown, 1) if marker and re.search(marker, entry.text)]
    return label(
        plan.id,
        truth,
        [entry.line for entry in shown],
        root,
        _node(plan, row, shown, rank is not None),
        rank,
        event_lines=[number for number in others if number not in root],
        framework=plan.family,
        launcher=plan.carrier,
        logger=plan.logger,
        imitation=bool(FAMILIES[plan.family].get("imitation") or row.get("imitated")),
        launcher_imitation="starts" not in CARRIERS[plan.carrier],
        scenario=plan.fault,
        ranks=plan.world,
        exit_code=next((128 - end.code if end.code < 0 else end.code for end in run.ends if end.code), 0),
    )


def _seen(plan: Plan, shown: Sequence[Shown]) -> Row:
    """The truth as far as the log shows it: a death without a word is what the peers say of it, or nothing."""
    row = plan.row
    if row["type"] == "completed":
        return {**row, "marker": "", "where": "all"}
    if "event" in row:
        where = "node" if row["event"] == "lost" else "all"
        return {**row, "marker": "|".join(map(_words_of, CARRIERS[plan.carrier][row["event"]])), "where": where}
    waited = _words_of(plan.words.get("missing", "{missing}$^").replace("{missing}", str(plan.struck[0])))
    by_peers = "{missing}" in row.get("marker", "")
    row = {**row, "marker": row.get("marker", "").replace("{missing}", waited)}
    if not (row.get("wordless") or by_peers) or (not by_peers and _root_lines(plan, row, shown)):
        return row
    unseen: Row = {**row, "where": "all", "recovery": "resubmit"}
    if any(re.search(_DEAD_WORKER, entry.text) for entry in shown):
        also = list(dict.fromkeys([row["type"], "connection_error"]))
        return {**unseen, "where": "one", "type": "called_process_error", "also": also, "marker": _DEAD_WORKER}
    if by_peers:
        return row
    if any(re.search(waited, entry.text) for entry in shown):
        also = [row["type"], "network_error", "nccl_timeout_error", "os_error", "runtime_error"]
        return {**unseen, "where": "peers", "type": "connection_error", "also": also, "marker": waited}
    if not any(re.search(_PEER, entry.text) for entry in shown):
        return {**row, "marker": "", "where": "all"}
    return {**unseen, "type": "connection_error", "also": [row["type"], "network_error"], "marker": _PEER}


def _words_of(template: str) -> str:
    """The longest words of a template between its fields, as a marker."""
    written = re.sub(r"\}\}(?!\})", "\3", template.replace("{{", "\2"))
    words = max(re.split(r"\{[^}]*\}", written), key=len).strip()
    return re.escape(words.replace("\2", "{").replace("\3", "}"))


def _root_lines(plan: Plan, row: Row, shown: Sequence[Shown]) -> list[int]:
    """Numbers (from 1) of the lines that show the cause: of the struck rank, else what others print of its error."""
    marker, where = row.get("marker", ""), row.get("where", "one")
    printed = [
        (number, entry)
        for number, entry in enumerate(shown, 1)
        if marker and re.search(marker, entry.text) and not _RAISES.search(entry.text)
    ]
    anyone = where in ("all", "peers")
    own = [
        number
        for number, entry in printed
        if anyone or entry.rank is None or (entry.rank in plan.struck) != (where == "none")
    ]
    return own if own or row.get("wordless") else [number for number, _ in printed]


def _named(plan: Plan, rank: int) -> str:
    """A pattern of lines that name the rank: by a word before the number, or as _told."""
    return f"{_NAMES_RANK.format(rank)}|{_told(plan, rank)}|{_missed(plan, rank)}"


def _told(plan: Plan, rank: int) -> str:
    """A pattern of the phrases in which peers, drivers and launchers name a rank that has ended."""
    own = [*FAMILIES[plan.family].get("told", ()), *CARRIERS[plan.carrier].get("told", ())]
    return "|".join(map(_words_of, _filled(plan, rank, own))) or _NEVER


def _missed(plan: Plan, rank: int) -> str:
    """A pattern of what a peer says of a rank that it misses: that may come before the rank's own words."""
    words = [plan.words[name] for name in ("lost", "missing") if name in plan.words]
    return "|".join(map(_words_of, _filled(plan, rank, words))) or _NEVER


def _filled(plan: Plan, rank: int, templates: Sequence[str]) -> list[str]:
    node = plan.node_of(rank)
    return [re.sub(r"\{(rank|missing)\}", str(rank), text).replace("{node}", node) for text in templates]


def _of_event(plan: Plan, shown: Sequence[Shown], root: Sequence[int]) -> list[Shown]:
    """The lines that show the cause, each with the words of the log that its traceback stands under, and what a
    peer, a driver or a launcher says of that rank."""
    about = [shown[number - 1] for number in root]
    for number in root:
        place = number - 2
        while place > 0 and shown[place].rank == shown[number - 1].rank and _TRACE.search(shown[place].text):
            place -= 1
        about += [shown[place]] if place >= 0 and plan.words["failed"] in shown[place].text else []
    rank = plan.struck[0]
    told, missed = _told(plan, rank), _missed(plan, rank)
    ended = [entry for entry in shown if entry.kind == "launcher" and entry.rank is not None]
    about += [entry for entry in ended if entry.rank == rank == ended[0].rank]
    later = shown[root[0] :] if root else ()
    about += [entry for entry in later if re.search(told, entry.text)]
    return about + [entry for entry in shown if re.search(missed, entry.text)]


def _rank(plan: Plan, row: Row, shown: Sequence[Shown], root: Sequence[int]) -> int | None:
    """The rank that went wrong first, where a line about it names it."""
    if row.get("where", "one") not in ("one", "first", "peers"):
        return None
    rank, carrier = plan.struck[0], CARRIERS[plan.carrier]
    heads = carrier["line"] + carrier.get("section", "") + carrier.get("head", "")
    told = bool(re.search(r"\{rank\b", heads)) or "(?P<rank>" in heads
    about = _of_event(plan, shown, root)
    if told and any(entry.kind == "process" and entry.rank == rank for entry in about):
        return rank
    own = [entry for entry in about if entry.rank == rank and plan.words["failed"] in entry.text]
    if own and re.search(r"\{rank\b", plan.logger):
        return rank
    return rank if any(re.search(_named(plan, rank), entry.text) for entry in about) else None


def _node(plan: Plan, row: Row, shown: Sequence[Shown], ranked: bool) -> str | None:
    """The node of that rank, where a line of it, or one that names the rank that is shown, names the node."""
    if row.get("where", "one") in ("all", "none"):
        return None
    rank, carrier = plan.struck[0], CARRIERS[plan.carrier]
    about = [entry.line for entry in _of_event(plan, shown, _root_lines(plan, row, shown))]
    if FAMILIES[plan.family].get("one_node") or ("{node}" in carrier.get("section", "") and about):
        about += [entry.line for entry in shown]
    if ranked:
        named = _named(plan, rank)
        by_head = bool(re.search(r"\{rank\b", carrier["line"] + plan.logger))
        about += [entry.line for entry in shown if entry.rank == rank and (by_head or re.search(named, entry.text))]
        about += [entry.line for entry in shown if entry.kind == "launcher" and re.search(named, entry.line)]
        pairs = pairwise(shown)  # the summary of torchrun
        about += [host.line for host, number in pairs if re.search(rf"\brank +: {rank} \(", number.text)]
    node = plan.node_of(rank)
    names = [node, node.partition(".")[0]]
    return next((name for name in names if any(_has_word(name, line) for line in about)), None)


def _has_word(word: str, line: str) -> bool:
    return bool(re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", line))
