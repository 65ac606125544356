"""How right the rules are on a folder of cases, family by family: ``python -m tools.real_runs.measure DIR``."""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from diagnoser.accuracy import scoring
from diagnoser.accuracy.scoring import AccuracyReport, ScoredVerdict
from diagnoser.config.loader import load_analyzer
from diagnoser.config.settings import Settings
from diagnoser.model import Event, EventKind, Facts
from tools.real_runs.cases import read_labels

SAMPLES = Path(__file__).parent / "samples"
"""The cases that are part of the project."""
_SHARES = ("category", "type", "type_also", "root_line", "action", "rank", "node", "ece")
_COUNTS = ("cases", "false_cordon", "false_alarm", "false_stop")
_FIELDS = ("framework", "launcher", "logger", "scenario", "imitation")


def verdicts(folder: Path, field: str = "framework", exit_code: bool = False) -> dict[str, list[ScoredVerdict]]:
    """Score the cases by the rules only, sorted by a field of their labels.

    exit_code: tell the exit code that the label states, as ``diagnose --exit-code`` does.
    """
    analyzer = load_analyzer(Settings())
    by_family = defaultdict(list)
    for data in read_labels(folder):
        label = scoring.label_of(data)
        log = analyzer.read(BytesIO((folder / f"{label.id}.log").read_bytes()))
        code = data.get("exit_code") if exit_code else None
        events = () if code is None else (Event(EventKind.EXIT, 0.0, code=int(code)),)
        diagnosis = analyzer.analyze(log, Facts(events=events))
        by_family[str(data.get(field, "-"))].append(scoring.score_case(label, diagnosis))
    return dict(sorted(by_family.items()))


def reports(folder: Path, field: str = "framework", exit_code: bool = False) -> dict[str, AccuracyReport]:
    """Report by family, and on "all"."""
    by_family = verdicts(folder, field, exit_code)
    every = [verdict for group in by_family.values() for verdict in group]
    return {name: scoring.report(group, {}) for name, group in {**by_family, "all": every}.items()}


def table(of: Mapping[str, AccuracyReport]) -> list[str]:
    """The report as columns: counts, clean ends as right/all, shares, and the wrong verdicts that were sure."""
    heads = (*_COUNTS, "clean ends", *_SHARES, "wrong > 0.9")
    lines = ["".ljust(22) + "".join(name.rjust(14) for name in heads)]
    lines += [family.ljust(22) + "".join(value.rjust(14) for value in _row(report)) for family, report in of.items()]
    return lines


def _row(report: AccuracyReport) -> Sequence[str]:
    counts = [str(report.counts[name]) for name in _COUNTS]
    right, clean = report.by_type.get("completed", (0, 0))
    sure = f"{report.counts['wrong_above_0.9']}/{report.counts['wrong']}"
    return [*counts, f"{right}/{clean}", *(_share(report.shares[name]) for name in _SHARES), sure]


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.3f}"


def misses(report: AccuracyReport) -> list[str]:
    """The cases that came out wrong, a line each."""
    return [
        f"{miss.label.id}: {miss.label.type}, said {miss.said_type} ({miss.confidence:.2f}, {miss.decided_by})"
        + (", root line missed" if miss.root is False else "")
        for miss in report.misses
    ]


def as_json(of: Mapping[str, AccuracyReport]) -> str:
    """All shares and counts, for programs."""
    return json.dumps({family: {**report.shares, **report.counts} for family, report in of.items()})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.real_runs.measure", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=SAMPLES)
    parser.add_argument("--by", choices=_FIELDS, default="framework", help="the field of the labels to sort by")
    parser.add_argument("--exit-code", action="store_true", help="tell the exit code of each run, where it is known")
    parser.add_argument("--json", action="store_true", help="one JSON object in the place of the table")
    parser.add_argument("--show", action="store_true", help="each case that came out wrong")
    arguments = parser.parse_args()
    measured = reports(arguments.folder, arguments.by, arguments.exit_code)
    shown = misses(measured["all"]) if arguments.show else []
    print(as_json(measured) if arguments.json else "\n".join([*table(measured), *shown]))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
