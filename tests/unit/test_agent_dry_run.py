"""What the agent's dry run says of each verdict."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import httpx
import pytest
from structlog.testing import capture_logs

from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.cluster import Cluster
from diagnoser.agent.dry_run import DryRunReporter
from diagnoser.agent.nodes import NodeRecord
from tests.unit.memory_cluster import MemoryCluster, MemoryJob, MemoryScheduler

OBSERVED: dict[str, Any] = {
    "id": "p1",
    "job": "memory-seven",
    "attempt": 1,
    "action": "cordon_and_resubmit",
    "nodes": ["n1"],
    "state": "advised",
    "reason": "observe_only",
    "history": [{"why": "the policy only advises here"}],
    "diagnosis": "d1",
    "expires": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
}
BUT = "the plan is advised (observe_only): the policy only advises here"


def scheduler() -> MemoryScheduler:
    nodes = {name: NodeRecord(name) for name in ("n1", "n2")}
    return MemoryScheduler({"seven": MemoryJob("seven", ("n1",), state="failed")}, nodes)


async def logged(*looks: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(what it would do, why it does not) of each entry, after these answers of the service."""
    answers = iter(looks)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/plans"):
            return httpx.Response(200, json={"items": next(answers), "next": None})
        return httpx.Response(200, json={"type": "ecc_error"})

    made = scheduler()
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://diagnoser.test") as http:
        cluster = cast(Cluster[MemoryJob], MemoryCluster(made))
        reporter = DryRunReporter(ApiClient(http), cluster)
        with capture_logs() as entries:
            for _ in looks:
                await reporter.report_new()
    assert made.asked == []
    return [(entry["would"], entry["but"]) for entry in entries]


@pytest.mark.parametrize(
    ("fields", "would"),
    [
        ({}, "run cordon n1 'diagnoser p1: ecc_error'"),
        ({"action": "resubmit", "nodes": []}, "run launch seven"),
        ({"action": "check_and_resubmit", "nodes": []}, "run hold seven"),
        ({"action": "notify_user", "nodes": []}, "nothing on the cluster: notify_user is for a person"),
        ({"nodes": ["n9"]}, "nothing: the cluster has no node n9; nothing was done"),
    ],
)
async def test_each_verdict_has_its_first_step_and_what_is_in_its_way(fields: dict[str, Any], would: str) -> None:
    """Also where the policy only advises, so that no executor ever gets the plan."""
    assert await logged([OBSERVED | fields]) == [(would, BUT)]


async def test_a_plan_is_reported_once_in_each_state() -> None:
    """A plan that waits for a person after it was only advice is news; the same one again is none."""
    waiting = OBSERVED | {"state": "waiting", "reason": "needs_approval", "history": []}
    entries = await logged([OBSERVED], [OBSERVED], [waiting])
    assert [but for _, but in entries] == [BUT, "the plan is waiting (needs_approval): needs_approval"]


async def test_what_is_not_for_this_agent_is_passed_over() -> None:
    """Plans of another cluster, plans that an executor gets, and those that have expired."""
    foreign, sent = OBSERVED | {"job": "slurm-7"}, OBSERVED | {"state": "sent"}
    past = OBSERVED | {"expires": (datetime.now(UTC) - timedelta(hours=1)).isoformat()}
    assert await logged([foreign, sent, past]) == []
