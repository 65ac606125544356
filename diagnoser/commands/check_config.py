"""`check-config`: whether the service would start as it is set up, and reach what it needs."""

import asyncio
import os
from dataclasses import asdict
from typing import Annotated

import typer

from diagnoser.commands.terminal import AsJson, complain, out, print_json


def check_config(
    offline: Annotated[bool, typer.Option("--offline", help="Ask no server, and do not open the database.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check settings, tokens, hosts, rules, policy, alerts, mapping, prompts and webhook, and whether database, Redis,
    model and archive answer. Tells all faults at once, changes nothing, and exits with 1 when there is one."""
    from diagnoser.config import self_check  # what it reads takes a second to load

    found = asyncio.run(self_check.findings(os.environ, reach=not offline))
    faults = list(self_check.faults_of(found))
    if as_json:
        print_json({"ok": not faults, "faults": faults, "parts": list(map(asdict, found))})
    else:
        for finding in found:
            if not finding.faults:
                out.print(f"ok     {finding.part}: {finding.detail}", soft_wrap=True)
            for warning in finding.warnings:
                complain(f"warn   {warning}")
        for fault in faults:
            complain(f"fault  {fault}")
    if faults:
        raise typer.Exit(1)
