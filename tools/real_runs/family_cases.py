"""From a combination to a labelled case: what ran, in the form in which its launcher shows it, and what is true of it.

The truth comes from the scenario; what the log shows (the root line, a rank, a node, how a process ended) is looked up
in the log of the rank that went wrong.
"""

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnoser.model.taxonomy import Category, FailureType, category_of
from tools.real_runs import runner
from tools.real_runs.carriers import Line
from tools.real_runs.cases import Case, NoRootLine, recovery_of
from tools.real_runs.families import NAMES_NODE, NAMES_RANK, Combination
from tools.real_runs.frameworks import NODES
from tools.real_runs.launchers import End, strip_head
from tools.real_runs.scenarios import Truth

_ENDS = {
    "killed": r"\bKilled\b|(exited with( code)?|exit code:?|status|ExitCode) 137\b|[Ss]ignal 9\b|SIGKILL|exitcode\W+-9\b|9/KILL",
    "segv": r"Segmentation fault|(exited with( code)?|exit code:?|status|ExitCode) 139\b|[Ss]ignal 11\b|SIGSEGV|exitcode\W+-11\b|11/SEGV",
    "abort": r"\bAborted\b|(exited with( code)?|exit code:?|status|ExitCode) 134\b|[Ss]ignal 6\b|SIGABRT|exitcode\W+-6\b|6/ABRT",
    "exit-3": r"(exited with( code)?|[Ee]xit(ed with exit)? code:?|status|ExitCode|exitcode) *:?[ =]*3\b",
    "terminate": r"\bTerminated\b|SIGTERM|15/TERM",
}
_ENDS["late-killed"] = _ENDS["killed"]
"""Signs of a process that ended by itself, as shells and launchers print them."""
_POOL_DEATH = r"BrokenProcessPool|TerminatedWorkerError"
_PEER = r"ConnectionError: rank \S+ closed|ConnectionResetError|BrokenPipeError"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_ESCAPED = re.compile(r"\\n")


@dataclass(frozen=True, slots=True)
class Shown:
    """A line of the finished log. text: without the launcher's head. process: None where the log is the launcher's."""

    line: str
    text: str
    process: int | None
    launched: bool


def make(combination: Combination) -> Case:
    """Runs the combination. Raises NoRootLine when it did not go as it should have."""
    with tempfile.TemporaryDirectory(prefix="real-run-") as name:
        folder = Path(name) / "run"
        folder.mkdir()
        Path(name).chmod(0o755)
        output = runner.run(combination.trainer, combination.scenario, combination.number, folder, combination.launcher)
        lines = runner.shown(output.lines, folder, f"run-{combination.number:03d}", NODES[0])
    if output.expired:
        raise NoRootLine(f"{combination.slug}: still running after {runner.LIMIT_SECONDS} s")
    code = exit_code(output.ends)
    if combination.truth.healthy and any(output.returncodes):
        raise NoRootLine(f"{combination.slug}: a healthy run ended with {output.returncodes}\n{_tail(lines)}")
    if not combination.truth.healthy and combination.truth.type not in ("loss_divergence", "time_limit") and code == 0:
        raise NoRootLine(f"{combination.slug}: ended with 0 for all its fault\n{_tail(lines)}")
    shown = log_of(combination, lines, output.ends)
    return Case([entry.line for entry in shown], label_of(combination, shown, code))


def exit_code(ends: Sequence[End]) -> int:
    """The code of the process that failed first, as a shell has it."""
    return next((end.shell_code for end in ends if end.code), 0)


def log_of(combination: Combination, lines: Sequence[Line], ends: Sequence[End]) -> list[Shown]:
    launcher, processes = combination.launcher, combination.trainer.ranks
    if launcher.command:
        apart = [(line.text, strip_head(launcher, line.text), _process_of(combination, line.text)) for line in lines]
        return [Shown(text, bare, process, process is None) for text, bare, process in apart]
    events: list[tuple[float, int, list[Shown]]] = []
    for position, line in enumerate(lines):
        written = launcher.write(line, NODES[line.process])
        events.append((line.at, position, [Shown(written, line.text, line.process, False)]))
    for end in ends:
        last = max((line.at for line in lines if line.process == end.process), default=end.at)
        said = launcher.ended(end, NODES[end.process], processes)
        events.append((max(last, end.at), len(lines) + end.process, [Shown(text, text, end.process, True) for text in said]))
    return [entry for _, _, entries in sorted(events, key=lambda event: event[:2]) for entry in entries]


def _process_of(combination: Combination, text: str) -> int | None:
    match = re.match(combination.launcher.head, text) if combination.launcher.head else None
    digits = re.findall(r"\d+", match[0]) if match else []
    return int(digits[-1]) if digits else None


def shows(marker: str, text: str) -> bool:
    """Whether the marker is in the text: at its place, or in a field of a record, or with the bare name of its class
    behind the words of a log."""
    if re.search(marker, _ANSI.sub("", text).strip(" │\r")):
        return True
    loose = re.sub(r"(\w+\\\.)+(?=\w*(Error|Exception)\b)", "", marker.replace("^", ""))
    opened = _ESCAPED.sub("\n", text).replace('\\"', '"')
    opened = re.sub(r'"exc_type": "(\w+)", "exc_value": "', r"\1: ", opened)
    return bool(re.search(loose, opened))


def label_of(combination: Combination, shown: Sequence[Shown], code: int) -> dict[str, Any]:
    truth, extra = combination.truth, {}
    root = _root_numbers(combination, truth, shown)
    if not root and (combination.scenario.name in _ENDS or not truth.visible):
        truth, root, extra = _unseen_end(combination, truth, shown)
    elif truth.marker and not root:
        raise NoRootLine(f"{combination.slug}: no line matches {truth.marker!r}\n{_tail([Line(s.line, 0.0) for s in shown])}")
    first = shown[root[0] - 1] if root else None
    rank = truth.rank if truth.rank is not None else _rank(combination, truth, first)
    node = truth.node or _node(combination, truth, first)
    category = category_of(FailureType(truth.type))
    recovery = "none" if category is Category.NONE else recovery_of(truth, node is not None)
    others = [
        number for number, entry in enumerate(shown, 1) if number not in root and truth.marker and shows(truth.marker, entry.text)
    ]
    return {
        "id": combination.slug,
        "category": str(category),
        "type": truth.type,
        "also": list(truth.also),
        "root_lines": root,
        "event_lines": others,
        "root_text": first.line if first else "",
        "symptom_lines": [],
        "node": node,
        "rank": rank,
        "gpu": None,
        "recovery": recovery,
        "framework": combination.trainer.name,
        "outcome": truth.outcome,
        "confidence": "injected",
        "why": truth.why,
        "launcher": combination.launcher.name,
        "logger": combination.logger,
        "family": combination.trainer.name,
        "imitation": combination.trainer.imitation or combination.launcher.imitation,
        "scenario": combination.scenario.name,
        "crash": str(combination.trainer.settings.get("crash", "")),
        "exit_code": code,
        "silent": not root,
        "type_visible": truth.visible,
        **extra,
    }


def _root_numbers(combination: Combination, truth: Truth, shown: Sequence[Shown]) -> list[int]:
    name, ranks = combination.scenario.name, combination.trainer.ranks
    marker = _ENDS.get(name, truth.marker)
    if not marker:
        return []
    numbers = [number for number, entry in enumerate(shown, 1) if shows(marker, entry.text)]
    if name in _ENDS and not combination.launcher.command:
        numbers = [number for number in numbers if shown[number - 1].launched or combination.launcher.name == "plain"]
    faulty = _faulty(combination, truth)
    own = [number for number in numbers if shown[number - 1].process in (faulty, None)]
    return own if ranks > 1 and faulty is not None else numbers


def _faulty(combination: Combination, truth: Truth) -> int | None:
    if truth.where == "all":
        return None
    return combination.trainer.fault_rank if truth.where == "one" else 0


def _unseen_end(
    combination: Combination, truth: Truth, shown: Sequence[Shown]
) -> tuple[Truth, list[int], dict[str, Any]]:
    """A process ended and nothing says so: what its peers or its pool say of it is all there is to see."""
    import dataclasses

    pool = [number for number, entry in enumerate(shown, 1) if re.search(_POOL_DEATH, entry.text)]
    if pool:
        also = ("host_out_of_memory", "segmentation_fault", "dataloader_killed")
        return dataclasses.replace(truth, type="called_process_error", also=also, where="all", recovery="", marker=_POOL_DEATH), pool, {}
    peers = [number for number, entry in enumerate(shown, 1) if shows(_PEER, entry.text)]
    if peers:
        changed = dataclasses.replace(truth, type="connection_error", also=(truth.type, "network_error"), where="all", recovery="resubmit", marker=_PEER)
        return changed, peers, {}
    return dataclasses.replace(truth, visible=False), [], {}


def _rank(combination: Combination, truth: Truth, first: Shown | None) -> int | None:
    faulty = _faulty(combination, truth)
    if combination.trainer.ranks == 1 or faulty is None or first is None:
        return None
    shows_rank = combination.launcher.names_rank and (first.process is not None)
    by_logger = _logs_with(combination, NAMES_RANK) and _is_logged(combination, first)
    by_end = first.launched and re.search(rf"\b(rank|worker|task|local_rank)\W*{faulty}\b", first.line)
    return faulty if shows_rank or by_logger or by_end else None


def _node(combination: Combination, truth: Truth, first: Shown | None) -> str | None:
    faulty = 0 if combination.trainer.ranks == 1 else _faulty(combination, truth)
    if faulty is None or first is None:
        return None
    node = NODES[0] if combination.launcher.command else NODES[faulty]
    return node if node in first.line else None


def _logs_with(combination: Combination, loggers: set[str]) -> bool:
    return any(combination.logger.startswith(logger) for logger in loggers)


def _is_logged(combination: Combination, first: Shown) -> bool:
    """Whether the line is part of a record that names what its process is."""
    faulty = combination.trainer.fault_rank
    return bool(re.search(rf'(rank|worker)("?\W{{0,3}}"?){faulty}\b', first.text))


def _tail(lines: Sequence[Line]) -> str:
    return "\n".join("    " + line.text[:220] for line in lines[-14:])


__all__ = ["NAMES_NODE", "json", "make"]
