"""`check`: asks nodes whether they are fit for a job."""

import asyncio
import getpass
import socket
import time
from pathlib import Path
from typing import Annotated

import typer

from diagnoser.agent import node_query, preflight
from diagnoser.agent.preflight import Preflight
from diagnoser.commands.terminal import out
from diagnoser.model.taxonomy import FailureType
from diagnoser.recovery.node_query import NodeQueryTable

DAY = 86_400.0
"""How far back faults in the kernel's log count for somebody who asks."""


def check(
    nodes: Annotated[
        list[str] | None,
        typer.Option(help="Node of this Slurm cluster to ask all queries, by srun. Repeatable. Default: this node."),
    ] = None,
    fail: Annotated[
        bool, typer.Option("--fail", help="Exit with 1 on a proven fault: in a Slurm prolog that drains the node.")
    ] = False,
    cache: Annotated[Path, typer.Option(help="Folder with the nodes that passed within the hour.")] = preflight.CACHE,
    node_queries: Annotated[Path | None, typer.Option(help="Table of queries. Default: the shipped one.")] = None,
) -> None:
    """Ask nodes whether they show a fault. Without --nodes only this node, only quick queries, within five seconds: for
    a prolog or an init container. What cannot be asked proves nothing, and the launch goes on."""
    table = node_query.load_table(node_queries, tested=node_queries is None)
    if nodes:
        checked = asyncio.run(_ask(table, nodes))
    else:
        name = socket.gethostname().partition(".")[0]
        checked = [preflight.check_this_node(table, name, cache)]
    for result in checked:
        out.print(f"diagnoser check {result.words}", soft_wrap=True)
    if any(result.faults for result in checked) and (fail or nodes):
        raise typer.Exit(1)


async def _ask(table: NodeQueryTable, nodes: list[str]) -> list[Preflight]:
    """Raises Unavailable while Slurm does not answer."""
    from diagnoser.agent.plan_spec import return_spec
    from diagnoser.agent.slurm.cluster import SlurmCluster
    from diagnoser.agent.slurm.commands import Slurm

    cluster = SlurmCluster(Slurm(), "", user=getpass.getuser())
    questions = node_query.questions_from_table(table, tuple(FailureType), nodes)
    answers = (await cluster.ask(return_spec("check"), questions)).answers
    results = node_query.judge_answers(table, answers, preflight.NO_FAILURE, time.time() - DAY)
    return [Preflight(node, tuple(result for result in results if result.node == node)) for node in nodes]
