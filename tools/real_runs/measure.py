"""How right the rules are on a folder of cases, framework by framework: ``python -m tools.real_runs.measure DIR``."""

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from diagnoser.accuracy import scoring
from diagnoser.accuracy.scoring import AccuracyReport, ScoredVerdict
from diagnoser.config.loader import load_analyzer
from diagnoser.config.settings import Settings
from diagnoser.diagnosis import pipeline
from diagnoser.model import Facts
from tools.real_runs.cases import read_labels

SAMPLES = Path(__file__).parent / "samples"
"""The cases that are part of the project."""
_SHARES = ("category", "type", "root_line", "action", "rank", "node", "ece")
_COUNTS = ("cases", "false_cordon", "false_alarm", "false_stop")


def verdicts(folder: Path) -> dict[str, list[ScoredVerdict]]:
    """framework -> how each of its cases came out, by the rules only."""
    analyzer = load_analyzer(Settings())
    by_framework = defaultdict(list)
    for data in read_labels(folder):
        label = scoring.label_of(data)
        evidence = analyzer.read(BytesIO((folder / f"{label.id}.log").read_bytes())).evidence
        diagnosis = pipeline.diagnose(evidence, Facts(), analyzer.knowledge)
        by_framework[str(data["framework"])].append(scoring.score_case(label, diagnosis))
    return dict(by_framework)


def reports(folder: Path) -> dict[str, AccuracyReport]:
    """framework -> report, and "all"."""
    by_framework = verdicts(folder)
    every = [verdict for group in by_framework.values() for verdict in group]
    return {name: scoring.report(group, {}) for name, group in {**by_framework, "all": every}.items()}


def table(of: Mapping[str, AccuracyReport]) -> list[str]:
    lines = ["".ljust(20) + "".join(name.rjust(14) for name in (*_COUNTS, *_SHARES))]
    for framework, report in of.items():
        counts = [str(report.counts[name]) for name in _COUNTS]
        shares = ["-" if (share := report.shares[name]) is None else f"{share:.3f}" for name in _SHARES]
        lines.append(framework.ljust(20) + "".join(value.rjust(14) for value in (*counts, *shares)))
    return lines


def misses(report: AccuracyReport) -> list[str]:
    return [
        f"{miss.label.id}: {miss.label.type}, said {miss.said_type} ({miss.confidence:.2f}, {miss.decided_by})"
        + (", root line missed" if miss.root is False else "")
        for miss in report.misses
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.real_runs.measure", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=SAMPLES)
    parser.add_argument("--show", action="store_true", help="each case that came out wrong")
    arguments = parser.parse_args()
    measured = reports(arguments.folder)
    shown = misses(measured["all"]) if arguments.show else []
    print("\n".join([*table(measured), *shown]))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
