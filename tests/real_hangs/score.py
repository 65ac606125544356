"""Scores the hang analysis on runs with labels."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from diagnoser.hang import report
from diagnoser.hang.report import HangReport
from tests.real_hangs.runs import LABEL, HangLabel


@dataclass(frozen=True, slots=True)
class HangScore:
    """One run. first: whether the culprit is the first suspect. wrong: suspects that are not the culprit."""

    name: str
    label: HangLabel
    result: HangReport

    @property
    def first(self) -> bool:
        return [suspect.rank for suspect in self.result.suspects[:1]] == [self.label.culprit]

    @property
    def wrong(self) -> tuple[int, ...]:
        return tuple(suspect.rank for suspect in self.result.suspects if suspect.rank != self.label.culprit)

    @property
    def node_is_right(self) -> bool:
        """Of a run whose ranks were placed by a scheduler."""
        return self.first and self.result.suspects[0].node == self.label.nodes.get(self.label.culprit, "")


def score(folder: Path) -> HangScore:
    """The evidence in the folder of one run."""
    label = HangLabel.read(folder)
    files = [(path.name, path.read_bytes()) for path in sorted(folder.iterdir()) if _is_evidence(path)]
    result = report.analyze(report.read(files), label.nodes, label.ranks)
    return HangScore(folder.name, label, result)


def _is_evidence(path: Path) -> bool:
    return path.name.startswith("_dump_") or (path.name.startswith("stack_") and path.suffix == ".txt")


def scores(folder: Path) -> list[HangScore]:
    return [score(path.parent) for path in sorted(folder.glob(f"*/{LABEL}"))]


def table(found: Iterable[HangScore]) -> str:
    """Kind by kind, in Markdown; then the runs in which something is wrong."""
    by_kind: dict[str, list[HangScore]] = defaultdict(list)
    for one in found:
        by_kind[one.label.kind].append(one)
    rows = [*by_kind.items(), ("all", [one for own in by_kind.values() for one in own])]
    lines = ["| kind | runs | evidence shows it | culprit first | wrong suspects |", "| --- | --- | --- | --- | --- |"]
    for kind, own in rows:
        shown = [one for one in own if one.label.shown]
        first, wrong = sum(one.first for one in shown), sum(len(one.wrong) for one in own)
        lines.append(f"| {kind} | {len(own)} | {len(shown)} | {first} | {wrong} |")
    odd = [one for _, own in rows[:-1] for one in own if one.wrong or (one.label.shown and not one.first)]
    lines += [
        f"{one.name}: culprit {one.label.culprit}, suspects "
        + ("; ".join(f"{s.rank} {s.kind} {s.score}: {s.why}" for s in one.result.suspects[:3]) or "none")
        for one in odd
    ]
    return "\n".join(lines)
