"""``diagnoser agent slurm`` and ``slurm-resume``."""

import asyncio
import getpass
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from diagnoser.agent.flags import from_flags
from diagnoser.agent.scheduler import AgentFlags, Nodes, check_option


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmFlags(AgentFlags):
    check: Annotated[str, check_option(help="Command of the node check, as the nodes run it. Empty: no check.")] = ""
    rest: Annotated[
        str,
        typer.Option(
            help="Address of slurmrestd, such as http://slurm:6820, to read jobs and nodes from.",
            rich_help_panel="slurmrestd",
        ),
    ] = ""
    rest_token_file: Annotated[
        Path | None,
        typer.Option(help="File with the JWT for slurmrestd. Default: SLURM_JWT.", rich_help_panel="slurmrestd"),
    ] = None


@from_flags(SlurmFlags)
def slurm(flags: SlurmFlags) -> None:
    """Report the jobs of a Slurm cluster and carry out plans. Run as root or SlurmUser where Slurm's commands are."""
    from diagnoser.agent.slurm import rest as slurmrestd
    from diagnoser.agent.slurm.agent import run
    from diagnoser.agent.slurm.evidence import FIELDS

    options, user, jwt = flags.begin(FIELDS), getpass.getuser(), None
    if flags.rest:
        jwt = slurmrestd.credentials(user, flags.rest_token_file, os.environ.get("SLURM_JWT", ""))
    asyncio.run(run(options, tuple(shlex.split(flags.check)), user, flags.rest, jwt))


def slurm_resume(
    nodes: Nodes,
    check: Annotated[
        bool, typer.Option(help="Ask each node first, by the shipped queries, and leave one that shows a fault out.")
    ] = True,
) -> None:
    """Resume nodes that a plan drained. Nodes that somebody else drained are left alone."""
    from diagnoser.agent.node_query import load_table
    from diagnoser.agent.slurm.agent import resume

    table = load_table(None) if check else None
    typer.echo("\n".join(asyncio.run(resume(nodes, getpass.getuser(), table))))


COMMANDS = {"slurm": slurm, "slurm-resume": slurm_resume}
