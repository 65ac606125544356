"""From what a run printed to a labelled case: ``<id>.log`` and a line of ``labels.jsonl``."""

import fcntl
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnoser.model.taxonomy import Category, FailureType, category_of
from tools.real_runs.carriers import CARRIERS, Line, carry
from tools.real_runs.frameworks import NODES, Framework
from tools.real_runs.scenarios import Scenario, Truth

_RECOVERY = {
    "connection_error": "resubmit",
    "disk_full": "check_and_resubmit",
    "filesystem_error": "check_and_resubmit",
    "loss_divergence": "rollback_and_resubmit",
    "model_loading_error": "rollback_and_resubmit",
}


_RANK_HEAD = re.compile(
    r"^(\[1,\d+\]<std(out|err)>:)?((\x1b\[\d+m)?\(\w+ pid=\d+(, ip=[\d.]+)?\)(\x1b\[0m)? )?(\[rank\d+\]: )?"
)
"""What mpirun and Ray put before each line of a process, and torch before each line of a rank's traceback."""


def recovery_of(truth: Truth, node_shown: bool) -> str:
    """The step that follows: the truth's own, else that of its type; a node that the log shows can be taken out."""
    recovery = truth.recovery or _RECOVERY.get(truth.type, "notify_user")
    return "cordon_and_resubmit" if node_shown and recovery == "check_and_resubmit" else recovery


class NoRootLine(Exception):
    """The marker of the truth is not in the output: the run did not fail as it should have."""


@dataclass(frozen=True, slots=True)
class Case:
    log: list[str]
    label: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Writes the log and puts the label in the place of an older one of the same id."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.label['id']}.log").write_text("\n".join(self.log) + "\n", newline="")
        path = folder / "labels.jsonl"
        with (folder / ".lock").open("w") as lock:  # several generators may fill one folder
            fcntl.flock(lock, fcntl.LOCK_EX)
            others = [label for label in read_labels(folder) if label["id"] != self.label["id"]]
            labels = sorted([*others, self.label], key=lambda label: str(label["id"]))
            written = "".join(json.dumps(label, ensure_ascii=False) + "\n" for label in labels)
            path.with_suffix(".tmp").write_text(written)
            path.with_suffix(".tmp").rename(path)


def read_labels(folder: Path) -> list[dict[str, Any]]:
    path = folder / "labels.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def label(
    name: str, truth: Truth, shown: Sequence[str], root: Sequence[int], node: str | None, rank: int | None, **more: Any
) -> dict[str, Any]:
    """The label of a case.

    truth: with what the log cannot show taken out.
    shown: lines of the log.
    root: numbers (from 1) of the lines that show the cause.
    node, rank: where the log shows them.
    more: framework, launcher, scenario, and what only some generators know.
    """
    category = category_of(FailureType(truth.type))
    return {
        "id": name,
        "category": str(category),
        "type": truth.type,
        "also": list(truth.also),
        "root_lines": list(root),
        "event_lines": [],
        "root_text": shown[root[0] - 1] if root else "",
        "symptom_lines": [],
        "node": node,
        "rank": rank,
        "gpu": None,
        "recovery": "none" if category is Category.NONE else recovery_of(truth, node is not None),
        "outcome": truth.outcome,
        "confidence": "injected",
        "why": truth.why,
        "silent": not root,
        "type_visible": truth.visible,
        **more,
    }


def make_case(framework: Framework, scenario: Scenario, truth: Truth, lines: Sequence[Line], carrier: str) -> Case:
    """Raises NoRootLine when the truth's marker is not to be seen."""
    log = carry(lines, carrier, NODES)
    root_lines = root_lines_of(framework, truth, lines)
    if truth.marker and not root_lines:
        raise NoRootLine(f"{framework.name} {scenario.name}: no line matches {truth.marker!r}")
    rank = _faulty_rank(framework, truth)
    node = NODES[rank if framework.launcher == "processes" else 0] if rank is not None else None
    root_text = log[root_lines[0] - 1] if root_lines else ""
    launched = framework.launcher not in ("python", "processes")
    told_rank = CARRIERS[carrier].names_rank or (launched and framework.names_rank)
    told_node = node is not None and (CARRIERS[carrier].names_node or node in root_text)
    at_fault = recovery_of(truth, node_shown=False) == "check_and_resubmit"
    if at_fault and framework.ranks == 1 and CARRIERS[carrier].names_node:
        node, told_node = NODES[0], True  # the only node there is, and it is at fault
    labelled = label(
        f"{framework.slug}-{scenario.name}",
        truth,
        log,
        root_lines,
        node if told_node else None,
        rank if told_rank else None,
        framework=framework.name,
        launcher=framework.launcher,
        carrier=carrier,
        scenario=scenario.name,
    )
    return Case(log, labelled)


def root_lines_of(framework: Framework, truth: Truth, lines: Sequence[Line]) -> list[int]:
    """Numbers (from 1) of the lines that show the cause; of the faulty process only, where processes are told apart."""
    if not truth.marker:
        return []
    marker, rank = re.compile(truth.marker), _faulty_rank(framework, truth)
    apart = framework.launcher == "processes" and rank is not None
    return [
        number
        for number, line in enumerate(lines, 1)
        if marker.search(_RANK_HEAD.sub("", line.text)) and (not apart or line.process == rank)
    ]


def _faulty_rank(framework: Framework, truth: Truth) -> int | None:
    if framework.ranks == 1 or truth.where == "all":
        return None
    return framework.fault_rank if truth.where == "one" else 0
