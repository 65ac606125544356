"""`rules`: list the diagnosis rules and test them."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from diagnoser.commands import rule_trial, rules_diff
from diagnoser.commands.http_client import fetch_json
from diagnoser.commands.open_store import with_store
from diagnoser.commands.terminal import AsJson, ReadToken, out, print_json, print_rows, site
from diagnoser.config.loader import load_analyzer, load_more, site_node_queries
from diagnoser.model import LearnedState
from diagnoser.model.errors import BadInput, RuleFaults
from diagnoser.model.queries import LearnedRuleQuery
from diagnoser.model.taxonomy import Action, FailureType, category_of
from diagnoser.rules import examples, exception_lines, exception_words
from diagnoser.rules.engine import Engine
from diagnoser.rules.xid import SxidCode, XidCode, XidTable

if TYPE_CHECKING:
    from diagnoser.adapters.sql.store import SqlStore

_PAGE = 500


def rules_export(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder to write <category>/<id>.yaml files to. Default: that of DIAGNOSER_RULES_DIR."),
    ] = None,
    url: Annotated[str, typer.Option(help="Address of the service. Default: the configured database.")] = "",
    token: ReadToken = "",
    state: Annotated[LearnedState, typer.Option(help="Export rules in this state.")] = LearnedState.ACTIVE,
) -> None:
    """Write learned rules as rule files, which `diagnoser rules test FOLDER` can test."""
    folder = folder or site().rules_dir
    if folder is None:
        raise BadInput("name a folder to write to, or set DIAGNOSER_RULES_DIR")
    files = dict(_served(url, token, state)) if url else with_store(partial(_stored, state), "rules export")
    for path, text in sorted(files.items()):
        target = folder / path
        if not target.resolve().is_relative_to(folder.resolve()):
            raise BadInput(f"the service returned a path outside the folder: {path!r}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    out.print(f"{len(files)} rules written to {folder}")


def _served(url: str, token: str, state: LearnedState) -> Iterator[tuple[str, str]]:
    """Read path and text of each rule of a service."""
    after = ""
    while True:
        query = f"state={state}&limit={_PAGE}&after={after}"
        page: dict[str, Any] = fetch_json(f"{url.rstrip('/')}/api/v1/rules?{query}", token)
        for rule in page["items"]:
            if rule["text"]:
                yield str(rule["path"]), str(rule["text"])
        after = page["next"]
        if not after:
            return


async def _stored(state: LearnedState, store: "SqlStore") -> dict[str, str]:
    """Read the text of each rule by its path, of the configured database."""
    from diagnoser.learning.rule_lifecycle import file_of  # the other commands start without it

    files: dict[str, str] = {}
    after = ""
    while page := await store.rules.page(LearnedRuleQuery((state,)), after, _PAGE):
        for rule in page:
            if rule.text:
                files[file_of(rule)] = rule.text
        after = page[-1].id
    return files


rules_cli = typer.Typer(no_args_is_help=True, help="List diagnosis rules and test them.")


@rules_cli.command(name="list")
def rules_list(
    as_json: AsJson = False,
    kind: Annotated[FailureType | None, typer.Option("--type", help="Only rules of this failure type.")] = None,
) -> None:
    """List all rules, by category and type."""
    rules = [rule for rule in load_analyzer(site()).knowledge.engine.ruleset.rules if kind in (None, rule.type)]
    rules.sort(key=lambda rule: (category_of(rule.type), rule.type, rule.id))
    if as_json:
        for rule in rules:
            print_json(rule.model_dump(mode="json", exclude={"examples"}))
        return
    rows = ((category_of(rule.type), rule.type, rule.id, rule.role, rule.maturity, rule.title) for rule in rules)
    print_rows(("category", "type", "rule", "role", "maturity", "title"), rows)
    out.print(f"{len(rules)} rules for {len({rule.type for rule in rules})} types", style="dim")


@rules_cli.command(name="xid")
def rules_xid(
    code: Annotated[int | None, typer.Argument(help="An Xid or SXid. Default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Explain NVIDIA's Xid and SXid codes, what NVIDIA asks for, and the action that follows."""
    codes = load_analyzer(site()).knowledge.codes
    xids = [row for row in codes.xid if code in (None, row.code)]
    sxids = [row for row in codes.sxid if code in (None, row.code)]
    rows = [*xids, *sxids]
    if not rows:
        raise BadInput(f"{code} is not a public Xid or SXid")
    if as_json:
        for row in rows:
            print_json(row.model_dump(mode="json"))
    else:
        out.print(_code_table(codes, xids, sxids))


def _code_table(codes: XidTable, xids: Sequence[XidCode], sxids: Sequence[SxidCode]) -> Table:
    table = Table("code", "name", "NVIDIA asks for", "type", "action", box=None, header_style="bold")
    for xid in xids:
        asked = xid.immediate or xid.treated_as
        table.add_row(str(xid.code), xid.name, asked, xid.type, codes.actions[asked].action)
    for sxid in sxids:
        table.add_row(str(sxid.code), sxid.name, sxid.severity, sxid.type or "", sxid.action or Action.NONE)
    return table


@rules_cli.command(name="test")
def rules_test(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of rules, such as an export. Default: all rules in use.")
    ] = None,
) -> None:
    """Test every rule and filter against its own examples. Exits with 1 when one fails."""
    analyzer = load_analyzer(site())
    if folder:
        analyzer, ruleset = load_more(analyzer, folder)
    else:
        ruleset = analyzer.knowledge.engine.ruleset
        site_node_queries(site())
    faults = examples.check(Engine(ruleset), analyzer.evidence_of)
    heuristics = analyzer.knowledge.heuristics
    faults += heuristics.keywords.faults("keywords.yaml") + heuristics.exceptions.faults("exceptions.yaml")
    faults += heuristics.classifier.faults(exception_words.FILES[0])
    faults += heuristics.printed.faults(exception_lines.FILE)
    faults += heuristics.ends.faults("run_end.yaml") + analyzer.knowledge.exits.faults("exit_reports.yaml")
    if faults:
        raise RuleFaults(faults)
    rules = ruleset.rules
    count = sum(len(rule.examples.match) + len(rule.examples.no_match) for rule in rules)
    out.print(f"{count} examples of {len(rules)} rules hold")


rules_cli.command(name="diff")(rules_diff.rules_diff)
rules_cli.command(name="export")(rules_export)
rules_cli.command(name="try")(rule_trial.rules_try)
