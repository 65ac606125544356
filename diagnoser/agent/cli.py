"""``diagnoser agent``: the part that runs on the cluster's side."""

import typer

from diagnoser.agent import schedulers


def build() -> typer.Typer:
    """The commands of all schedulers."""
    commands = typer.Typer(
        no_args_is_help=True, help="Run beside a scheduler: report jobs, ship their logs, carry out plans."
    )
    for scheduler in schedulers.SCHEDULERS:
        for name, run in scheduler.commands.items():
            commands.command(name=name)(run)
    return commands


agent_cli = build()
