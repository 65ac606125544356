"""A scheduler is a folder and a line of the registry: that of docs/extending.md carries out a plan."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from diagnoser.agent import cli, runtime
from diagnoser.agent.state_file import AgentState
from tests.how_tos import module
from tests.unit.test_agent_executor import PLAN, Service, carried_out, scheduler


def test_a_toy_scheduler_carries_out_a_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The node is cordoned and the job launched, by the executor of all schedulers, and nothing else names the toy."""
    toy = module("A scheduler")
    toy.LAB = scheduler()
    seen = list[tuple[str, Service]]()

    async def run_agent(options: Any, name: str, build: Any) -> None:
        cluster, source = build(None, AgentState())
        assert (cluster.name, source.scheduler) == (options.cluster, toy.LAB)
        seen.append((name, await carried_out(cluster)))

    monkeypatch.setattr(runtime, "run_agent", run_agent)
    monkeypatch.setattr(cli, "SCHEDULERS", (*cli.SCHEDULERS, toy.COMMANDS))
    words = ["lab", "--server", "http://diagnoser.test", "--cluster", "north", "--state", str(tmp_path)]
    answer = CliRunner().invoke(cli.build(), words)
    assert answer.exit_code == 0, answer.output
    ((name, service),) = seen
    assert (name, service.end["state"]) == ("lab", "reached")
    assert toy.LAB.asked == [f"cordon n1 diagnoser {PLAN['id']}: ecc_error", "launch seven"]
