"""What a baseline of clean runs adds, on labelled logs: ``python -m tools.bench.baseline``.

A family is the runs of one framework in ``injected-dev`` or ``real-dev``. Each failed run is held against at most five
other runs of its family: those that completed, and in ``injected-dev`` the beginnings of failed ones, up to the first
labelled line. ``dev behind normal``: excerpts of real failures behind real healthy logs, held against the other healthy
logs of that framework.

"With": with the baseline. "Order only": as if every line were new, so that only the order of new lines works.
"Without": the view as it is where no clean run is known. "No rule" leaves the rules' anchors out of the compressor, so
that each failure is one that no rule knows.
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
BEHIND = 3
"""Excerpts that are put behind each healthy log."""
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


def cases(analyzer: LogAnalyzer, folder: str) -> Iterator[tuple[Row, Row, Row]]:
    """(with a baseline, order only, without) for each failed run with a family and a labelled root line."""
    families: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for text in (CORPUS / folder / "labels.jsonl").read_text("utf-8").splitlines():
        label = json.loads(text)
        families[label["framework"]].append(label)
    for labels in families.values():
        clean = {label["id"]: run for label in labels if (run := clean_run(analyzer, folder, label))}
        for label in labels:
            others = [run for name, run in sorted(clean.items()) if name != label["id"]][: baseline.KEPT]
            if label["root_lines"] and label["category"] != "none" and others:
                delta = read(analyzer, log_of(folder, label))
                yield (
                    measured(delta, label["root_lines"], Baseline(tuple(others))),
                    measured(delta, label["root_lines"], _NOTHING),
                    measured(delta, label["root_lines"], _NOTHING, ordered=False),
                )


def behind_healthy(analyzer: LogAnalyzer) -> Iterator[tuple[Row, Row, Row]]:
    """The same for excerpts of real failures behind healthy logs, held against the other logs of that framework."""
    families: dict[str, dict[str, Delta]] = defaultdict(dict)
    for text in (CORPUS / "normal" / "index.jsonl").read_text("utf-8").splitlines():
        entry = json.loads(text)
        families[entry["framework"]][entry["file"]] = read(analyzer, (CORPUS / "normal" / entry["file"]).read_bytes())
    labels = map(json.loads, (CORPUS / "dev" / "labels.jsonl").read_text("utf-8").splitlines())
    failed = [label for label in labels if label["root_lines"] and label["category"] != "none"]
    at = 0
    for logs in (logs for logs in families.values() if len(logs) > 1):
        for name, healthy in logs.items():
            runs = [baseline.clean_run(one, other) for other, one in logs.items() if other != name]
            known = Baseline(tuple(run for run in runs if run))
            for label in [failed[(at + step) % len(failed)] for step in range(BEHIND)]:
                delta = compress.merge([healthy, read(analyzer, log_of("dev", label), healthy.lines + 1)])
                roots = [number + healthy.lines for number in label["root_lines"]]
                yield (
                    measured(delta, roots, known),
                    measured(delta, roots, _NOTHING),
                    measured(delta, roots, _NOTHING, ordered=False),
                )
            at += BEHIND


def clean_run(analyzer: LogAnalyzer, folder: str, label: Mapping[str, Any]) -> CleanRun | None:
    """A run that completed, or the beginning of one with an injected fault, as its baseline knows it."""
    log = log_of(folder, label)
    if not (label["outcome"] == "completed" and label["category"] == "none"):
        if folder != "injected-dev" or not label["root_lines"]:
            return None
        log = b"\n".join(log.split(b"\n")[: min(label["root_lines"] + label["symptom_lines"]) - 1]) + b"\n"
    if log.count(b"\n") < LINES_MIN:
        return None
    return baseline.clean_run(read(analyzer, log), label["id"])


def log_of(folder: str, label: Mapping[str, Any]) -> bytes:
    return (CORPUS / folder / f"{label['id']}.log").read_bytes()


def read(analyzer: LogAnalyzer, log: bytes, first: int = 1) -> Delta:
    compressor = analyzer.compressor()
    compressor.feed(LineBlock(Stream(), log, first))
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
    for rules, analyzer in (
        ("all rules", accuracy_bars.load()),
        ("no rule", replace(accuracy_bars.load(), gate=Prefilter())),
    ):
        for folder in (*FOLDERS, "dev behind normal"):
            found = cases(analyzer, folder) if folder in FOLDERS else behind_healthy(analyzer)
            columns = list(zip(*found, strict=True))
            runs = statistics.median(row.runs for row in columns[0])
            print(f"{folder}, {rules}: {len(columns[0])} failed runs, median of {runs:g} clean runs each")  # noqa: T201
            for name, rows in zip(("with", "order only", "without"), columns, strict=True):
                print(told(name, rows))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
