"""`policy`: which recovery action applies, and why."""

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from rich.table import Table
from rich.text import Text

from diagnoser.commands import logfile
from diagnoser.commands.http_client import fetch_json
from diagnoser.commands.terminal import AsJson, ReadToken, out, print_json, site
from diagnoser.config.loader import load_analyzer
from diagnoser.recovery.policy import case_of

policy_cli = typer.Typer(no_args_is_help=True, help="Explain the recovery policy.")


@policy_cli.command(name="explain")
def policy_explain(
    what: Annotated[str, typer.Argument(help="Log file, or with --url the id of a stored diagnosis.")],
    url: Annotated[str, typer.Option(help="Address of the service, such as http://127.0.0.1:8321.")] = "",
    token: ReadToken = "",
    as_json: AsJson = False,
) -> None:
    """Say which row of the policy table applies, and why the rows before it do not."""
    if url:
        answer = fetch_json(f"{url.rstrip('/')}/api/v1/diagnoses/{quote(what, safe='')}/policy", token)
        rows = [(str(row["row"]), str(row["why_not"])) for row in answer["rows"]]
        action, plan = str(answer["action"]), answer["plan"]
    else:
        analyzer, plan = load_analyzer(site()), None
        case, policy = case_of(logfile.diagnosed(analyzer, Path(what))[2]), analyzer.knowledge.policy
        rows, action = policy.explain(case), str(policy.advise(case).action)
    if as_json:
        print_json({"rows": [{"row": row, "why_not": why} for row, why in rows], "action": action, "plan": plan})
        return
    table = Table("row", "", box=None, header_style="bold")
    for row, why in rows:
        if why:
            table.add_row(row, f"no: {why}")
        else:
            table.add_row(row, Text.assemble(("applies", "bold green"), f": {action}"))
    out.print(table)
    if plan:
        out.print(f"plan {plan['id']} is {plan['state']} ({plan['reason']})")
