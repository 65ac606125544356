"""A scheduler is a folder and a line of the registry: a toy one is a command of the agent, and carries out a plan."""

import asyncio
import json

import pytest
import typer
from typer.testing import CliRunner

from diagnoser.agent import cli, schedulers
from diagnoser.agent.scheduler import Scheduler
from tests.unit.memory_cluster import MemoryCluster
from tests.unit.test_agent_executor import PLAN, carried_out, scheduler


def toy(cluster: str) -> None:
    """Carry out the plan in a cluster in memory."""
    lab = MemoryCluster(scheduler(), name=cluster)
    service = asyncio.run(carried_out(lab))
    typer.echo(json.dumps({"cluster": lab.name, "asked": lab.scheduler.asked, "state": service.end["state"]}))


TOY = Scheduler("toy", {"toy": toy})


def test_a_toy_scheduler_carries_out_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is cordoned and the job launched, by the executor of all schedulers, and nothing else names the toy."""
    monkeypatch.setattr(schedulers, "SCHEDULERS", (*schedulers.SCHEDULERS, TOY))
    answer = CliRunner().invoke(cli.build(), ["toy", "lab"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.output.splitlines()[-1]) == {
        "cluster": "lab",
        "asked": [f"cordon n1 diagnoser {PLAN['id']}: ecc_error", "launch seven"],
        "state": "reached",
    }
