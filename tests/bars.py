"""`make eval`: the diagnosis on all labelled logs, as a table, against the bars that it must stay above.

`python -m tests.bars --spliced LOG` puts each case of `dev` behind a healthy log first.
Exit code 1 when a figure is below its bar, 0 when all hold or the labelled logs are absent.
"""

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from diagnoser import compress, evaluation, pipeline, site
from diagnoser.evaluation import Label, Report, Verdict
from diagnoser.model import Block, Facts, Stream
from diagnoser.reader import Reader, whole_lines
from diagnoser.settings import Settings
from diagnoser.taxonomy import GPU_TIME_SHARE
from tests.corpus import CORPUS

FOLDERS = ("dev", "dev-full", "injected-dev")
SPLICED = "dev spliced"
SHOWN: tuple[str, ...] = (
    "category",
    "type",
    "macro_f1",
    "gpu_time_weighted_type",
    "root_line",
    "root_line_top3",
    "action",
)
SHOWN += ("rank", "node", "abstain", "ece")
FAULTS = ("false_cordon", "wrong_node_cordon", "false_alarm", "false_stop")


@dataclass(frozen=True, slots=True)
class Bar:
    """least or most that a measure may be; ``most`` for counts and errors."""

    measure: str
    least: float | None = None
    most: float | None = None

    def holds(self, report: Report) -> bool:
        value = report.shares.get(self.measure, report.counts.get(self.measure))
        if value is None:
            return True
        return value >= (self.least or 0.0) if self.most is None else value <= self.most


_DEV = (
    Bar("category", 0.97),
    Bar("type", 0.92),
    Bar("root_line", 0.90),
    Bar("action", 0.93),
    Bar("false_cordon", most=0),
    Bar("false_alarm", most=0),
    Bar("ece", most=0.05),
)
BARS: Mapping[str, tuple[Bar, ...]] = {
    "dev": _DEV,
    "dev-full": tuple(bar for bar in _DEV if bar.measure != "ece"),
    "injected-dev": (
        *(bar for bar in _DEV if bar.measure != "ece"),
        Bar("rank", 0.95),
        Bar("node", 0.95),
    ),
    SPLICED: tuple(
        Bar(bar.measure, bar.least - 0.02 if bar.least else None, bar.most) for bar in _DEV if bar.measure != "ece"
    ),
}
"""What must hold. dev-full and injected-dev are too small for a calibration error of their own."""


def load() -> Reader:
    return site.load_reader(Settings())


def labels(folder: str) -> list[Label]:
    lines = (CORPUS / folder / "labels.jsonl").read_text("utf-8").splitlines()
    return [evaluation.label_of(json.loads(line)) for line in lines]


def verdicts(reader: Reader, folder: str, ids: Collection[str] = ()) -> Iterator[Verdict]:
    """ids: only these cases; empty: all."""
    for label in labels(folder):
        if ids and label.id not in ids:
            continue
        evidence = reader.read(BytesIO((CORPUS / folder / f"{label.id}.log").read_bytes())).evidence()
        yield evaluation.judge(label, pipeline.diagnose(evidence, Facts(), reader.knowledge))


def spliced(reader: Reader, folder: str, healthy: Path) -> Iterator[Verdict]:
    """Each case behind a healthy log, which is compressed once: deltas of both merge into the view of the whole."""
    head, shift = reader.compressor(), 0
    with healthy.open("rb") as log:
        for data in whole_lines(log):
            head.feed(Block(Stream(), data, shift + 1))
            shift += data.count(b"\n") + (not data.endswith(b"\n"))
    before = compress.to_bytes(head.take())
    for label in labels(folder):
        tail = reader.compressor()
        tail.feed(Block(Stream(), (CORPUS / folder / f"{label.id}.log").read_bytes(), shift + 1))
        evidence = compress.digest(compress.merge([compress.from_bytes(before), tail.take()])).evidence()
        yield evaluation.judge(label, pipeline.diagnose(evidence, Facts(), reader.knowledge), shift)


def score(found: list[Verdict]) -> Report:
    return evaluation.report(found, {str(kind): share for kind, share in GPU_TIME_SHARE.items()})


def tell(reports: Mapping[str, Report]) -> list[str]:
    """The table, then the bars that do not hold."""
    lines = ["".ljust(24) + "".join(name.rjust(14) for name in reports)]
    for name in SHOWN:
        shares = (report.shares.get(name) for report in reports.values())
        lines.append(name.ljust(24) + "".join(("-" if s is None else f"{s:.3f}").rjust(14) for s in shares))
    for name in ("cases", "rank_cases", "node_cases", *FAULTS):
        lines.append(name.ljust(24) + "".join(str(report.counts[name]).rjust(14) for report in reports.values()))
    return lines


def below(reports: Mapping[str, Report]) -> list[str]:
    return [
        f"{folder}: {bar.measure} is not {'at most' if bar.most is not None else 'at least'} "
        f"{bar.most if bar.most is not None else bar.least}"
        for folder, report in reports.items()
        for bar in BARS[folder]
        if not bar.holds(report)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spliced", type=Path, metavar="LOG", help="also score dev behind this healthy log")
    chosen = parser.parse_args()
    if not CORPUS.is_dir():
        print("labelled logs absent: nothing to score")  # noqa: T201
        return 0
    reader = load()
    reports = {folder: score(list(verdicts(reader, folder))) for folder in FOLDERS}
    if chosen.spliced:
        reports[SPLICED] = score(list(spliced(reader, "dev", chosen.spliced)))
    missed = below(reports)
    print("\n".join([*tell(reports), "", *(missed or ["All bars hold."])]))  # noqa: T201
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
