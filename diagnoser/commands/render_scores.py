"""Figures of accuracy for people at a terminal, and as JSON for machines."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from diagnoser.accuracy.llm_ablation import AblationResult
from diagnoser.accuracy.scoring import AccuracyReport
from diagnoser.accuracy.triggers import TriggerYield


def report_json(report: AccuracyReport) -> dict[str, Any]:
    return {
        **report.shares,
        **report.counts,
        "intervals": report.intervals,
        "by_type": report.by_type,
        "confusion": [{"label": label, "said": said, "cases": n} for (label, said), n in report.confusion.items()],
    }


_FOLD_SHARES = ("category", "type", "root_line", "action", "rank", "node", "ece")
_FOLD_COUNTS = ("false_cordon", "false_alarm", "false_stop")


def folds(console: Console, by: str, reports: Mapping[str, AccuracyReport]) -> None:
    names = (*_FOLD_SHARES, *_FOLD_COUNTS)
    table = Table(by, "cases", *(name.replace("_", " ") for name in names), box=None, header_style="bold")
    for name, fold in reports.items():
        shares = (_share(fold.shares[measure]) for measure in _FOLD_SHARES)
        counts = (str(fold.counts[fault]) for fault in _FOLD_COUNTS)
        table.add_row(Text(name, no_wrap=True), str(fold.counts["cases"]), *shares, *counts)
    console.print("", table, width=max(console.width, 120))


def triggers(console: Console, yields: Sequence[TriggerYield]) -> None:
    """The figures of `diagnoser score --triggers`: a row for each kind of verdict, then for each source of cases."""
    rows = [row.figures() for row in yields]
    table = Table(*(name.replace("_", " ") for name in rows[0]), box=None, header_style="bold")
    for figures in rows:
        table.add_row(*map(_cell, figures.values()))
    console.print(table, width=max(console.width, 100))


def _cell(value: str | int | float | None) -> str:
    if isinstance(value, float | None):
        return _share(value)
    return str(value)


def ablation(console: Console, outcomes: Sequence[AblationResult]) -> None:
    """The figures of `diagnoser score --model`: a column for each stage."""
    table = Table("measure", *(outcome.name for outcome in outcomes), box=None, header_style="bold")
    columns = [outcome.figures() for outcome in outcomes]
    for name in columns[0]:
        table.add_row(name.replace("_", " "), *(_figure(column[name]) for column in columns))
    console.print(table)


def _figure(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{count} {name}" for name, count in value.items())
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value)


def _share(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}"


def report(console: Console, report: AccuracyReport) -> None:
    """The figures of `diagnoser score`."""
    shares = Table("measure", "share", "95 % interval", box=None, header_style="bold")
    for name, share in report.shares.items():
        interval = ""
        if name in report.intervals:
            interval = "{:.1%} - {:.1%}".format(*report.intervals[name])
        shares.add_row(name.replace("_", " "), _share(share), interval)
    counts = Table("count", "", box=None, header_style="bold")
    for name, count in report.counts.items():
        counts.add_row(name.replace("_", " "), str(count))
    confusion = Table(
        "label", "said", "cases", box=None, header_style="bold", title="Wrong types", title_justify="left"
    )
    for (label, said), cases in sorted(report.confusion.items(), key=lambda item: -item[1]):
        confusion.add_row(label, said, str(cases))
    console.print(shares, "", counts, "", confusion)
