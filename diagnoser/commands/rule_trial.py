"""`rules try`: what a pattern matches in examples of rules, in log files, and in the failures that a service stores."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from diagnoser.commands.http_client import fetch_json
from diagnoser.commands.terminal import AsJson, ReadToken, out, print_json, site
from diagnoser.config.loader import load_analyzer
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.learning.workbench import examples_of
from diagnoser.model.errors import BadInput, os_reason
from diagnoser.model.lines import printable
from diagnoser.rules.line_match import LineConditions, LineMatcher, LineTexts, Span

SHOWN = 10
"""Matches of each kind that are listed; all are counted."""
_WIDTH = 200

Found = dict[str, Any]
_words = partial(typer.Option, default_factory=list, show_default=False)


def rules_try(
    patterns: Annotated[list[str], typer.Argument(help="RE2, searched in a line without its launcher's prefix.")],
    anchors: Annotated[list[str], _words("--anchor", help="A line must contain one of these words.")],
    unless: Annotated[list[str], _words(help="RE2: lines that match it do not count.")],
    logs: Annotated[list[Path] | None, typer.Option("--log", help="A log file to search as well.")] = None,
    url: Annotated[str, typer.Option(help="Address of a service: its stored failures and healthy runs.")] = "",
    token: ReadToken = "",
    as_json: AsJson = False,
) -> None:
    """Try a pattern: what it matches in the examples of all rules, in log files, and in the failures of a service."""
    conditions = LineConditions(tuple(patterns), tuple(anchors), tuple(unless))
    matcher = LineMatcher(conditions)
    analyzer = load_analyzer(site())
    found: Found = {"examples": _in_examples(matcher, analyzer)}
    if logs:
        found["logs"] = [_in_log(matcher, analyzer, path) for path in logs]
    if url:
        body = {name: list(getattr(conditions, name)) for name in ("patterns", "anchors", "unless")}
        found["service"] = fetch_json(f"{url.rstrip('/')}/api/v1/rules/try", token, body)
    if as_json:
        print_json(found)
    else:
        _show(found)


def _in_examples(matcher: LineMatcher, analyzer: LogAnalyzer) -> Found:
    lines = [*examples_of(analyzer.knowledge.engine.ruleset.rules, analyzer.filters.examples)]
    hits = []
    for example, text in lines:
        spans = matcher.spans(text)
        if spans is not None:
            hits.append({**asdict(example), "line": _line(text, spans)})
    return {"matched": len(hits), "searched": len(lines), "items": hits[:SHOWN]}


def _in_log(matcher: LineMatcher, analyzer: LogAnalyzer, path: Path) -> Found:
    """Kept lines, and one line of each kind that is not kept. Raises BadInput."""
    try:
        with path.open("rb") as file:
            log = analyzer.read(file)
    except OSError as error:
        raise BadInput(f"{path}: {os_reason(error)}") from None
    texts = LineTexts([*(line.body for line in log.evidence.lines), *log.messages])
    hits = [_line(text, spans) for text, spans in matcher.search(texts, lambda: False)]
    return {"file": str(path), "matched": len(hits), "searched": len(texts), "items": hits[:SHOWN]}


def _line(text: str, spans: Iterable[Span]) -> Found:
    return {"text": text, "spans": list(map(list, spans))}


def _show(found: Found) -> None:
    if service := found.get("service"):
        causes = ", ".join(f"{kind} {count}" for kind, count in service["types"].items())
        _heading("stored failures", service["cases"], causes)
        _table(("attempt", "cause", "line"), map(_stored_row, service["cases"]["items"]))
        _heading("healthy runs", service["healthy"])
        _table(("attempt", "", "line"), map(_stored_row, service["healthy"]["items"]))
        if not service["is_complete"]:
            out.print("the service has not searched everything yet: try again", style="yellow")
    for log in found.get("logs", ()):
        _heading(f"different lines of {log['file']}", log)
        _table(("", "", "line"), [("", "", hit) for hit in log["items"]])
    _heading("examples of rules and of routine lines", found["examples"])
    _table(("of", "says", "line"), [(hit["owner"], _says(hit), hit["line"]) for hit in found["examples"]["items"]])


def _stored_row(hit: Found) -> tuple[str, str, Found]:
    return f"{hit['job']}/{hit['attempt']}", hit.get("type", ""), hit["line"]


def _heading(what: str, part: Found, more: str = "") -> None:
    text = f"{part['matched']} of {part['searched']} {what} match"
    if more:
        text += f": {more}"
    out.print(text, style="bold")


def _says(hit: Found) -> str:
    if not hit["type"]:
        return "routine"
    if hit["is_counter"]:
        return f"not {hit['type']}"
    return str(hit["type"])


def _table(names: Sequence[str], rows: Iterable[tuple[str, str, Found]]) -> None:
    table = Table(*names, box=None, header_style="dim")
    for first, second, hit in islice(rows, SHOWN):
        line = Text(printable(hit["text"][:_WIDTH]))
        for start, stop in hit["spans"]:
            line.stylize("bold yellow", start, stop)
        table.add_row(Text(first), Text(second), line)
    if table.rows:
        out.print(table)
