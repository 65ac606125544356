"""`report`: what failures cost and what was done about them without a person, as Markdown or JSON."""

import time
from pathlib import Path
from typing import Annotated

import typer

from diagnoser.commands.open_store import with_store
from diagnoser.commands.terminal import AsJson, out, print_json, site
from diagnoser.config.settings import Settings
from diagnoser.config.site_files import load_redactor
from diagnoser.diagnosis.collection_pause import collection_paused
from diagnoser.impact.markdown import report_markdown, trace_markdown
from diagnoser.impact.report import ATTEMPTS, ImpactReport, build_report
from diagnoser.impact.trace import TraceReport, build_trace_report
from diagnoser.model.record_json import RecordJson
from diagnoser.model.spans import seconds


def report(
    week: Annotated[bool, typer.Option("--week", help="Of the last seven days.")] = False,
    within: Annotated[str, typer.Option(help="Of the last span, such as 24h or 90d.")] = "30d",
    trace: Annotated[
        Path | None,
        typer.Option(help="Report on a CSV with the columns of AcmeTrace instead.", exists=True, dir_okay=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report what failures cost, and how many were closed without a person."""
    settings, now = site(), time.time()
    if trace:
        _report_trace(trace, settings, as_json=as_json)
        return
    since = now - seconds("7d" if week else within)
    with collection_paused():
        attempts = with_store(lambda store: store.impact.attempts(since, ATTEMPTS), "report")
        made = build_report(attempts, since, now, is_sample=len(attempts) == ATTEMPTS)
    if as_json:
        print_json(RecordJson(ImpactReport).plain(made))
        return
    link = f"{settings.base_url}/impact"
    out.file.write(report_markdown(made, link, load_redactor(settings)))


def _report_trace(path: Path, settings: Settings, *, as_json: bool) -> None:
    with path.open(encoding="utf-8", errors="replace", newline="") as lines:
        made = build_trace_report(lines)
    if as_json:
        print_json(RecordJson(TraceReport).plain(made))
        return
    out.file.write(trace_markdown(made, load_redactor(settings)))
