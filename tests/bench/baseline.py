"""What a baseline of clean runs adds, on labelled logs: ``python -m tests.bench.baseline``.

A family is the runs of one framework in ``injected-dev`` or ``real-dev``. Each failed run is held against at most five
other runs of its family: those that completed, and in ``injected-dev`` the beginnings of failed ones, up to the first
labelled line. "Without" orders and cuts by the same rules, as if nothing were known. "No rule" leaves the rules'
anchors out of the compressor, so that each failure is one that no rule knows.
"""

import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diagnoser import compress
from diagnoser.compress import Delta, Prefilter, baseline
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import Baseline, CleanRun, Diff, LineBlock, Stream
from tests import accuracy_bars
from tests.corpus import CORPUS

FOLDERS = ("injected-dev", "real-dev")
FIRST = (1, 3, 5, 10, 20)
VIEWS = (500, 1000, 2000)
"""Sizes of the model's view, in tokens."""
LINES_MIN = 20
_NOTHING = Baseline((CleanRun("nothing", 0, {}),))
_SHOWN = re.compile(r"(?m)^(\d+)(?: [^|\n]*)?\| ")


@dataclass(frozen=True, slots=True)
class Row:
    """One failed run. new: kept lines that clean runs do not print. place: of the root among the new lines, 0: nowhere.

    views: size -> whether the root line is in a view of that size.
    """

    runs: int
    kept: int
    new: int
    listed: int
    place: int
    views: Mapping[int, bool]


def measured(delta: Delta, roots: Sequence[int], known: Baseline, ordered: bool = True) -> Row:
    """roots: numbers of the labelled lines; any line of the same shape is as good. ordered: the view is told of it."""
    digest = compress.digest(delta)
    diff = baseline.diff(digest, known)
    shapes = {baseline.shape_of(line.text) for line in digest.lines if line.number in roots}
    places = [at for at, one in enumerate(diff.new, 1) if baseline.shape_of(one.line.text) in shapes]
    view = diff if ordered else Diff()
    shown = {}
    for size in VIEWS:
        named = digest.numbered(view)
        numbers = map(int, _SHOWN.findall(digest.render(size, view)))
        shown[size] = any(baseline.shape_of(named[number].text) in shapes for number in numbers)
    return Row(
        diff.runs, len(digest.lines), len(digest.lines) - len(diff.known), len(diff.new), min(places, default=0), shown
    )


def cases(analyzer: LogAnalyzer, folder: str) -> Iterator[tuple[Row, Row]]:
    """(with the baseline, without) for each failed run whose root line is labelled and that has a family."""
    families: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for text in (CORPUS / folder / "labels.jsonl").read_text("utf-8").splitlines():
        label = json.loads(text)
        families[label["framework"]].append(label)
    for labels in families.values():
        clean = {label["id"]: run for label in labels if (run := clean_run(analyzer, folder, label))}
        for label in labels:
            others = [run for id, run in sorted(clean.items()) if id != label["id"]][: baseline.KEPT]
            if label["root_lines"] and label["category"] != "none" and others:
                delta = read(analyzer, log_of(folder, label))
                yield (
                    measured(delta, label["root_lines"], Baseline(tuple(others))),
                    measured(delta, label["root_lines"], _NOTHING, ordered=False),
                )


def clean_run(analyzer: LogAnalyzer, folder: str, label: Mapping[str, Any]) -> CleanRun | None:
    """A run that completed, or the beginning of one with an injected fault, as its baseline knows it."""
    log = log_of(folder, label)
    if not (label["outcome"] == "completed" and label["category"] == "none"):
        if folder != "injected-dev" or not label["root_lines"]:
            return None
        log = b"\n".join(log.split(b"\n")[: min(label["root_lines"] + label["symptom_lines"]) - 1]) + b"\n"
    if log.count(b"\n") < LINES_MIN:
        return None
    return baseline.clean_run(read(analyzer, log), label["id"], Baseline())


def log_of(folder: str, label: Mapping[str, Any]) -> bytes:
    return (CORPUS / folder / f"{label['id']}.log").read_bytes()


def read(analyzer: LogAnalyzer, log: bytes) -> Delta:
    compressor = analyzer.compressor()
    compressor.feed(LineBlock(Stream(), log))
    return compressor.take()


def told(name: str, rows: Sequence[Row]) -> str:
    def share(hits: Iterator[bool]) -> str:
        return f"{sum(hits) / len(rows):.0%}"

    first = " ".join(f"{n}: {share(0 < row.place <= n for row in rows)}" for n in FIRST)
    views = " ".join(f"{size}: {share(row.views[size] for row in rows)}" for size in VIEWS)
    kept, new = sum(row.kept for row in rows), sum(row.new for row in rows)
    listed = statistics.median(row.listed for row in rows)
    return (
        f"  {name}: {new} of {kept} kept lines are new ({new / kept:.0%}), {listed:g} listed in the median; root among "
        f"the first {first}; root in a view of tokens {views}"
    )


def main() -> int:
    if not CORPUS.is_dir():
        print("labelled logs absent: nothing to measure")  # noqa: T201
        return 0
    for folder in FOLDERS:
        for rules, analyzer in (
            ("all rules", accuracy_bars.load()),
            ("no rule", replace(accuracy_bars.load(), gate=Prefilter())),
        ):
            pairs = list(cases(analyzer, folder))
            runs = statistics.median(row.runs for row, _ in pairs)
            print(f"{folder}, {rules}: {len(pairs)} failed runs, {runs:g} clean runs each in the median")  # noqa: T201
            print(told("with   ", [row for row, _ in pairs]))  # noqa: T201
            print(told("without", [row for _, row in pairs]))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
