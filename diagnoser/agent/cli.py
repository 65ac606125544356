"""``diagnoser agent``: the part that runs on the cluster's side."""

import typer

from diagnoser.agent.kubernetes import command as kubernetes
from diagnoser.agent.slurm import command as slurm

SCHEDULERS = (slurm.COMMANDS, kubernetes.COMMANDS)
"""Of each scheduler, its commands by name."""


def build() -> typer.Typer:
    """The commands of all schedulers."""
    commands = typer.Typer(
        no_args_is_help=True, help="Run beside a scheduler: report jobs, ship their logs, carry out plans."
    )
    for scheduler in SCHEDULERS:
        for name, run in scheduler.items():
            commands.command(name=name)(run)
    return commands


agent_cli = build()
