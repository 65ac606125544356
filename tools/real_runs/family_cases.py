"""From a combination to a labelled case: a run in the form in which its launcher shows it, and the truth about it.

The truth comes from the scenario; what the log shows (the root line, a rank, a node, how a process ended) is looked up
in the log of the rank that went wrong.
"""

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.real_runs import runner
from tools.real_runs.carriers import Line
from tools.real_runs.cases import Case, NoRootLine, label
from tools.real_runs.draw import Combination
from tools.real_runs.families import NAMES_RANK
from tools.real_runs.frameworks import NODES
from tools.real_runs.launchers import End, rank_of_head, strip_head
from tools.real_runs.scenarios import Truth

_CODE = (
    r"(exited with( code)?|exit code:?|status( of)?|ExitCode|Error|code list: \[[\d, ]*) ?\b{0}\b"
    r"|[Ss]ignal {1}\b|exitcode\W+-{1}\b|(code |rc=|ended with )-{1}\b"
)
"""A shell's code for a signal, and the signal itself."""
_ENDS = {
    "killed": rf"\bKilled\b|SIGKILL|9/KILL|{_CODE.format(137, 9)}",
    "late-killed": rf"\bKilled\b|SIGKILL|9/KILL|{_CODE.format(137, 9)}",
    "vanished": rf"\bKilled\b|SIGKILL|9/KILL|{_CODE.format(137, 9)}",
    "segv": rf"Segmentation fault|SIGSEGV|11/SEGV|{_CODE.format(139, 11)}",
    "abort": rf"\bAborted\b|SIGABRT|6/ABRT|{_CODE.format(134, 6)}",
    "bus": rf"Bus error|SIGBUS|7/BUS|{_CODE.format(135, 7)}",
    "fpe": rf"Floating point exception|SIGFPE|8/FPE|{_CODE.format(136, 8)}",
    "exit-3": (
        r"(exited with( code)?|(?i:exit(ed with exit)? code):?|status( of)?|ExitCode|exitcode|rc|Error) *:?[ =]*3\b"
        r"|code list: \[[\d, ]*\b3\b"
    ),
    "cpu-time": rf"CPU time limit exceeded|SIGXCPU|24/XCPU|{_CODE.format(152, 24)}",
    "hangup": rf"\bHangup\b|SIGHUP|1/HUP|{_CODE.format(129, 1)}",
    "illegal": rf"Illegal instruction|SIGILL|4/ILL|{_CODE.format(132, 4)}",
    "terminate": r"\bTerminated\b|SIGTERM|15/TERM",
}
"""Scenario -> signs of a process that ended by itself, as shells and launchers print them."""
_WORDLESS = ("killed", "late-killed", "vanished", "exit-3", "cpu-time", "hangup", "illegal")
"""Of them, those at which the process itself cannot say a word."""
_POOL_DEATH = r"BrokenProcessPool|TerminatedWorkerError"
_PEER = (
    r"ConnectionError: rank \S+ closed|ConnectionResetError|BrokenPipeError|"
    r"gloo/transport/tcp/pair.cc:\d+\] (Connection closed by peer|Read error .*Connection reset by peer)"
)
_NO_NUMBER = r"(?i:(loss|mse|objective|cost|RSS/n|energy|grad_norm)\W{0,4}-?(nan|inf(inity)?)\b)"
"""A figure of a run that has diverged: another print of that event."""
_RAISES = re.compile(r"^\W*(\[\w+\]:? *)?raise \w")
"""A line of source in a traceback: it repeats the words of the error, and is none."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_MODULE = re.compile(r"(\w+\\\.)+(?=\w*(Error|Exception)\b)")
"""The modules before a class, in a marker."""
_AS_FIELDS = re.compile(r'"exc_type": "(\w+)", "exc_value": "')
_SURVIVED = ("loss_divergence", "time_limit")
"""Types with which a run may end with 0."""
_TAIL = 14


@dataclass(frozen=True, slots=True)
class Shown:
    """A line of the finished log.

    text: without the launcher's head.
    process: that printed it, or whose end it tells; None where the log does not keep processes apart.
    launched: printed by the launcher.
    """

    line: str
    text: str
    process: int | None
    launched: bool


def make(combination: Combination) -> Case:
    """Run the combination. Raises NoRootLine when it did not go as it should have."""
    with tempfile.TemporaryDirectory(prefix="real-run-") as name:
        folder = Path(name) / "run"
        folder.mkdir()
        Path(name).chmod(0o755)
        output = runner.run(combination.trainer, combination.scenario, combination.number, folder, combination.launcher)
        lines = runner.shown(output.lines, folder, f"run-{combination.number:03d}", NODES[0])
    _check_end(combination, output, lines)
    shown = shown_log(combination, lines, output.ends)
    label = label_of(combination, shown, exit_code(output.ends))
    return Case([entry.line for entry in shown], label)


def _check_end(combination: Combination, output: runner.Run, lines: Sequence[Line]) -> None:
    truth, code = combination.truth, exit_code(output.ends)
    wrong = ""
    if output.expired:
        wrong = f"still running after {runner.LIMIT_SECONDS} s"
    elif truth.healthy and code:
        wrong = f"a healthy run ended with {output.returncodes}"
    elif not truth.healthy and not code and truth.type not in _SURVIVED:
        wrong = "ended with 0 for all its fault"
    if wrong:
        raise NoRootLine(f"{combination.slug}: {wrong}\n{_tail([line.text for line in lines])}")


def exit_code(ends: Sequence[End]) -> int:
    """Return the code of the process that failed first, as a shell has it."""
    return next((end.shell_code for end in ends if end.code), 0)


def shown_log(combination: Combination, lines: Sequence[Line], ends: Sequence[End]) -> list[Shown]:
    """The log as its launcher writes it: what a real one printed, or lines and ends in its form, by time."""
    if combination.launcher.section:
        return list(_sections(combination, lines))
    if combination.launcher.command:
        return [_printed(combination, line.text) for line in lines]
    events = [*_line_events(combination, lines), *_end_events(combination, lines, ends)]
    printed = [entry for _, _, entries in sorted(events, key=lambda event: event[:2]) for entry in entries]
    before, after = combination.launcher.around(ends, NODES)
    return [*map(_launched, before), *printed, *map(_launched, after)]


def _launched(text: str) -> Shown:
    return Shown(text, text, None, True)


_Event = tuple[float, int, list[Shown]]
"""(time, position among lines of the same time, lines of the log)"""


def _line_events(combination: Combination, lines: Sequence[Line]) -> Iterator[_Event]:
    for position, line in enumerate(lines):
        written = combination.launcher.write(line, NODES[line.process])
        yield line.at, position, [Shown(written, line.text, line.process, False)]


def _end_events(combination: Combination, lines: Sequence[Line], ends: Sequence[End]) -> Iterator[_Event]:
    for end in ends:
        last = max((line.at for line in lines if line.process == end.process), default=end.at)
        texts = combination.launcher.ended(end, NODES[end.process])
        yield max(last, end.at), len(lines) + end.process, [Shown(text, text, end.process, True) for text in texts]


def _sections(combination: Combination, lines: Sequence[Line]) -> Iterator[Shown]:
    """Lines of a real launcher that names a process once, before a block of its lines."""
    process = None
    for line in lines:
        head = re.search(combination.launcher.section, line.text)
        if head and head.groupdict().get("rank"):
            process = int(head["rank"])
        elif head:
            process = NODES.index(head["node"])
        yield Shown(line.text, line.text, process, head is not None)


def _printed(combination: Combination, text: str) -> Shown:
    """A line of a real launcher; its head may show whose it is."""
    process = rank_of_head(combination.launcher, text)
    if process is None and combination.launcher.names_node:
        process = next((number for number, node in enumerate(NODES) if text.startswith(node)), None)
    return Shown(text, strip_head(combination.launcher, text), process, process is None)


def shows(marker: str, text: str) -> bool:
    """Whether the marker is in the text: at its place, or in a field of a record, or with the bare name of its class
    behind the words of a log."""
    opened = _AS_FIELDS.sub(r"\1: ", _bare(text).replace("\\n", "\n").replace('\\"', '"'))
    return _shows_at_its_place(marker, text) or bool(re.search(_MODULE.sub("", marker.replace("^", "")), opened))


def _shows_at_its_place(marker: str, text: str) -> bool:
    return bool(re.search(marker, _bare(text)))


def _bare(text: str) -> str:
    return _ANSI.sub("", text).strip(" │\r")


def label_of(combination: Combination, shown: Sequence[Shown], code: int) -> dict[str, Any]:
    """Raises NoRootLine when the truth's marker is not to be seen though it should be."""
    truth, root = combination.truth, _root_numbers(combination, shown)
    marker = _marker(combination)
    if not root and (combination.scenario.name in _ENDS or not truth.visible):
        truth, root = _unseen_end(truth, shown)
        marker = truth.marker
    elif marker and not root:
        tail = _tail([entry.line for entry in shown])
        raise NoRootLine(f"{combination.slug}: no line matches {marker!r}\n{tail}")
    if truth.healthy and not truth.visible and _tells_success(combination, shown):
        truth = replace(truth, visible=True)
    first = shown[root[0] - 1] if root else None
    printed = [shown[number - 1] for number in root]
    node = truth.node or _node(combination, truth, first)
    diverged = truth.type == "loss_divergence"
    return label(
        combination.slug,
        truth,
        [entry.line for entry in shown],
        root,
        node,
        truth.rank if truth.rank is not None else _rank(combination, truth, printed),
        event_lines=_other_prints(f"{marker}|{_NO_NUMBER}" if diverged else marker, shown, root),
        framework=combination.trainer.name,
        launcher=combination.launcher.name,
        logger=combination.logger or "own",
        imitation=combination.trainer.imitation,
        launcher_imitation=combination.launcher.imitation,
        scenario=combination.scenario.name,
        crash=combination.crash,
        ranks=combination.trainer.ranks,
        exit_code=code,
    )


def _tells_success(combination: Combination, shown: Sequence[Shown]) -> bool:
    """Whether the launcher states that all ended well, where the trainer says nothing of its end."""
    success = combination.launcher.success
    return bool(success) and any(re.search(success, entry.line) for entry in shown)


def _marker(combination: Combination) -> str:
    end = _ENDS.get(combination.scenario.name)
    return f"{end}|{combination.truth.marker}" if end else combination.truth.marker


def _root_numbers(combination: Combination, shown: Sequence[Shown]) -> list[int]:
    """Numbers (from 1) of the lines that show the cause, of the faulty process where processes are told apart.

    A line that has the marker at its place comes before those that only repeat its words.
    """
    marker = _marker(combination)
    if not marker:
        return []
    numbers = [number for number, entry in enumerate(shown, 1) if shows(marker, entry.text)]
    if combination.scenario.name in _WORDLESS and _is_written_around(combination):
        numbers = [number for number in numbers if shown[number - 1].launched]
    faulty = _faulty(combination, combination.truth)
    if combination.trainer.ranks > 1 and faulty is not None:
        numbers = [number for number in numbers if shown[number - 1].process in (faulty, None)]
    numbers = [number for number in numbers if _shows_at_its_place(marker, shown[number - 1].text)] or numbers
    return [number for number in numbers if not _RAISES.search(shown[number - 1].text)] or numbers


def _is_written_around(combination: Combination) -> bool:
    """Whether only the launcher can tell that a process was killed: no shell, real launcher or own parent saw it."""
    bare = combination.launcher.name == "plain"
    return not (combination.launcher.command or combination.trainer.single or bare)


def _other_prints(marker: str, shown: Sequence[Shown], root: Sequence[int]) -> list[int]:
    if not marker:
        return []
    return [number for number, entry in enumerate(shown, 1) if number not in root and shows(marker, entry.text)]


def _faulty(combination: Combination, truth: Truth) -> int | None:
    if truth.where == "all":
        return None
    return combination.trainer.fault_rank if truth.where == "one" else 0


def _unseen_end(truth: Truth, shown: Sequence[Shown]) -> tuple[Truth, list[int]]:
    """A process ended and nothing says so: what its pool or its peers say of it is all there is to see."""
    also: tuple[str, ...]
    pool = [number for number, entry in enumerate(shown, 1) if shows(_POOL_DEATH, entry.text)]
    if pool:
        also = ("host_out_of_memory", "segmentation_fault", "dataloader_killed")
        changed = replace(truth, type="called_process_error", also=also, where="all", recovery="", marker=_POOL_DEATH)
        return replace(changed, outcome="failed"), pool
    peers = [number for number, entry in enumerate(shown, 1) if shows(_PEER, entry.text)]
    if peers:
        also = (truth.type, "network_error")
        changed = replace(truth, type="connection_error", also=also, where="all", recovery="resubmit", marker=_PEER)
        return replace(changed, visible=True), peers
    return replace(truth, visible=False, marker=""), []


def _rank(combination: Combination, truth: Truth, printed: Sequence[Shown]) -> int | None:
    """The faulty rank, where a print of the event shows it: in the launcher's head or words, or in the record."""
    faulty = _faulty(combination, truth)
    if combination.trainer.ranks == 1 or faulty is None:
        return None
    return faulty if any(_names_rank(combination, faulty, entry) for entry in printed) else None


def _names_rank(combination: Combination, rank: int, entry: Shown) -> bool:
    if entry.launched:
        return bool(re.search(rf"\b(rank|worker|task|local_rank)\W*{rank}\b", entry.line))
    if combination.launcher.names_rank or "rank" in re.compile(combination.launcher.section).groupindex:
        return True
    logged = any(combination.logger.startswith(logger) for logger in NAMES_RANK)
    return logged and bool(re.search(rf"(rank|worker)\W{{0,4}}{rank}\b", entry.text))


def _node(combination: Combination, truth: Truth, first: Shown | None) -> str | None:
    """The node of the faulty process, where the line shows it."""
    faulty = 0 if combination.trainer.ranks == 1 else _faulty(combination, truth)
    if faulty is None or first is None:
        return None
    elsewhere = not combination.launcher.command or combination.launcher.names_node
    if "node" in re.compile(combination.launcher.section).groupindex:
        return NODES[faulty]
    node = NODES[faulty if elsewhere else 0]
    return node if node in first.line else None


def _tail(texts: Sequence[str]) -> str:
    return "\n".join(f"    {text[:220]}" for text in texts[-_TAIL:])
