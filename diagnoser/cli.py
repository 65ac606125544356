"""The command line: `main` parses flags, `diagnoser.commands` does the work."""

import gc
import os
import sys
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated

import typer

from diagnoser.agent.cli import agent_cli
from diagnoser.commands import (
    audit,
    check_config,
    client,
    consume,
    hang,
    learned_rules,
    lines,
    logs,
    mapping,
    mcp,
    rule_trial,
    scoring,
    trials_run,
    trials_status,
)
from diagnoser.commands.alerts import alerts_cli
from diagnoser.commands.database import db_cli
from diagnoser.commands.policy import policy_cli
from diagnoser.commands.prompts import prompts_cli
from diagnoser.commands.rules import rules_cli
from diagnoser.commands.terminal import complain, out
from diagnoser.commands.tokens import token_cli
from diagnoser.commands.trials import trials_cli
from diagnoser.commands.users import users_cli
from diagnoser.config import settings
from diagnoser.model.errors import DiagnoserError, RuleFaults

cli = typer.Typer(no_args_is_help=True, help="Find out why a training job failed.", pretty_exceptions_enable=False)


def main() -> None:
    """Prints errors that a person can act on as one line and exits with 1; no traceback."""
    try:
        cli()
    except RuleFaults as faults:
        for fault in faults.faults:
            complain(str(fault))
        sys.exit(1)
    except DiagnoserError as error:
        complain(f"diagnoser: {error}")
        sys.exit(1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    finally:
        gc.freeze()  # the process ends: looking for garbage among all that was loaded would take half a second


@cli.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on [env: DIAGNOSER_HOST].")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [env: DIAGNOSER_PORT].")] = None,
    role: Annotated[
        str | None, typer.Option(help="all, api or worker: which parts of the service to run [env: DIAGNOSER_ROLE].")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that take requests [env: DIAGNOSER_WORKERS].")] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Certificate with its chain, to serve https [env: DIAGNOSER_TLS_CERTIFICATE].")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key [env: DIAGNOSER_TLS_KEY].")] = None,
) -> None:
    """Run the service: HTTP API with web pages, and the worker, each in a process of its own, or one of them."""
    named: dict[str, object] = {"host": host, "port": port, "role": role, "workers": workers}
    named |= {"tls_certificate": tls_certificate, "tls_key": tls_key}
    flags = {name: value for name, value in named.items() if value is not None}
    gc.disable()  # until the service is made: what loads now stays
    from diagnoser import app  # here, because what a server needs takes a second to load

    app.serve(settings.load(os.environ, **flags))


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(installed("diagnoser"), highlight=False)
        raise typer.Exit


@cli.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Find out why a training job failed."""


@cli.command()
def version() -> None:
    """Print the version."""
    _print_version(True)


cli.command()(consume.consume)
cli.command()(mcp.mcp)
cli.command()(logs.diagnose)
cli.command(name="explain")(logs.explain_)
cli.command()(logs.compress)
cli.command()(lines.logs)
cli.command()(hang.hang)
cli.command()(scoring.score)
cli.command()(mapping.check_mapping)
cli.command(name="audit")(audit.audit_)
cli.command()(check_config.check_config)
client.add_to(cli)
rules_cli.command(name="export")(learned_rules.rules_export)
rules_cli.command(name="try")(rule_trial.rules_try)
cli.add_typer(rules_cli, name="rules")
cli.add_typer(policy_cli, name="policy")
cli.add_typer(prompts_cli, name="prompts")
cli.add_typer(token_cli, name="token")
cli.add_typer(users_cli, name="users")
cli.add_typer(alerts_cli, name="alerts")
trials_run.add_to(trials_cli)
trials_cli.command()(trials_status.status)
cli.add_typer(trials_cli, name="trials")
cli.add_typer(db_cli, name="db")
cli.add_typer(agent_cli, name="agent")
