"""Puts the agent for Slurm together."""

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.node_query import known_commands
from diagnoser.agent.return_check import ReturnCheck
from diagnoser.agent.runtime import AgentOptions, run_agent
from diagnoser.agent.slurm import rest
from diagnoser.agent.slurm.cluster import SlurmCluster
from diagnoser.agent.slurm.commands import Slurm
from diagnoser.agent.slurm.evidence import SlurmEvidence
from diagnoser.agent.slurm.source import SlurmSource
from diagnoser.agent.state_file import AgentState
from diagnoser.agent.uncordon import give_back
from diagnoser.integrations import http_api
from diagnoser.recovery.node_query import NodeQueryTable


async def run(
    options: AgentOptions,
    program: tuple[str, ...],
    user: str,
    slurmrestd: str = "",
    headers: Callable[[], dict[str, str]] | None = None,
) -> None:
    """program: of the node check. slurmrestd: its address, "" for commands only. headers: with its token."""
    async with AsyncExitStack() as stack:
        slurm = Slurm()
        if slurmrestd and headers:
            daemon = await stack.enter_async_context(http_api.connect(slurmrestd, ""))
            slurm = rest.over_rest(await rest.connect(daemon, headers))

        def build(client: ApiClient, state: AgentState) -> tuple[SlurmCluster, SlurmSource]:
            source = SlurmSource(client, slurm, options.cluster, state, time.time, options.logs)
            evidence = SlurmEvidence(slurm, options.cluster, options.evidence, options.dry)
            return SlurmCluster(slurm, options.cluster, program, user, options.state, evidence), source

        await run_agent(options, "slurm", build)


async def resume(nodes: Sequence[str], user: str, table: NodeQueryTable | None) -> list[str]:
    """table: of the queries that a node is asked first, None to ask none."""
    cluster, check = SlurmCluster(Slurm(), "", user=user), None
    if table:
        check = ReturnCheck(cluster, table, known_commands(table))
    return await give_back(cluster, nodes, check)
