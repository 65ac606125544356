"""Slurm over REST: which commands become requests, and what newer daemons answer."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest

from diagnoser.agent.slurm import rest
from diagnoser.agent.slurm.commands import CommandResult
from diagnoser.agent.slurm.parsing import parse_rest_nodes
from diagnoser.model.errors import BadInput, Denied, Unavailable

Answers = Callable[[httpx.Request], httpx.Response]

PATHS: dict[str, dict[str, dict[str, str]]] = {
    "paths": {"/slurm/v0.0.41/jobs/": {}, "/slurm/v0.0.42/jobs/": {}, "/slurm/v0.0.42/job/{job_id}": {}}
}
DRAIN = ("scontrol", "update", "nodename=gpu-01", "state=drain", "reason=diagnoser p1: ecc_error")


def http_client(answer: Answers) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://slurm.test")


async def commands(command: Sequence[str], seconds: float) -> CommandResult:
    return CommandResult(tuple(command), 0, "by command")


async def outcome(command: Sequence[str], answer: Answers) -> CommandResult:
    async with http_client(answer) as http:
        rest_client = rest.RestClient(http, "v0.0.42", rest.credentials("root", None, "t"))
        return await rest.over_rest(rest_client, commands).runner(command, 5.0)


async def test_a_newer_daemon_drains_a_node() -> None:
    """With the node's name in the path, the reason in the body, and the user's token."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={"errors": []})

    assert await outcome(DRAIN, answer) == CommandResult(DRAIN, 0, "by slurmrestd", "")
    assert (asked[0].method, asked[0].url.path) == ("POST", "/slurm/v0.0.42/node/gpu-01")
    assert json.loads(asked[0].content) == {"state": ["DRAIN"], "reason": "diagnoser p1: ecc_error"}
    assert (asked[0].headers["x-slurm-user-name"], asked[0].headers["x-slurm-user-token"]) == ("root", "t")


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_what_a_daemon_cannot_do_is_done_by_command(status: int) -> None:
    """Slurm 22.05 has no request that changes a node."""
    assert (await outcome(DRAIN, lambda request: httpx.Response(status))).output == "by command"


async def test_what_has_no_request_is_a_command() -> None:
    """Nothing is asked."""

    def answer(request: httpx.Request) -> httpx.Response:
        raise AssertionError(request.url)

    for command in (("scontrol", "requeue", "7"), ("sbatch", "x.sh"), ("scancel", "--full", "7"), (*DRAIN[:3], "x=y")):
        assert (await outcome(command, answer)).output == "by command"


async def test_a_refusal_is_told_in_the_daemon_s_words() -> None:
    """Also one that comes with status 200."""
    for status in (200, 500):
        refused = httpx.Response(status, json={"errors": [{"error": "Invalid job id specified", "errno": 2017}]})
        done = await outcome(("scancel", "7"), lambda request, refused=refused: refused)  # type: ignore[misc]
        assert (done.code, done.error) == (1, "Invalid job id specified")


async def test_a_daemon_that_is_away_fails_the_command() -> None:
    """It is neither lost nor done by another way, since it may have arrived."""

    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("slow")

    done = await outcome(DRAIN, answer)
    assert (done.code, done.error) == (1, "slurmrestd is away: ReadTimeout")


async def test_the_newest_version_is_spoken() -> None:
    """What the daemon itself lists."""
    async with http_client(lambda request: httpx.Response(200, json=PATHS)) as http:
        assert (await rest.connect(http, rest.credentials("root", None, "t"))).version == "v0.0.42"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(401, text="Authentication failure"), Denied),
        (httpx.Response(200, text="hello"), BadInput),
        (httpx.Response(200, json={"paths": {"/slurmdb/v0.0.42/jobs/": {}}}), BadInput),
        (httpx.Response(404), BadInput),
    ],
)
async def test_an_unusable_daemon_stops_the_start(answer: httpx.Response, error: type[Exception]) -> None:
    """With a reason that says what to do."""
    async with http_client(lambda request: answer) as http:
        with pytest.raises(error):
            await rest.connect(http, rest.credentials("root", None, "t"))


async def test_a_listing_that_fails_is_tried_later() -> None:
    """The agent looks again; so also when the token has run out."""
    for answer in (httpx.Response(401), httpx.Response(500, json={"errors": [{"error": "Unspecified error"}]})):
        async with http_client(lambda request, answer=answer: answer) as http:  # type: ignore[misc]
            rest_client = rest.RestClient(http, "v0.0.42", rest.credentials("root", None, "t"))
            with pytest.raises(Unavailable):
                await rest.over_rest(rest_client).nodes()


def test_a_token_comes_from_a_file_each_time(tmp_path: Path) -> None:
    """As ``scontrol token`` prints it, or bare."""
    given = tmp_path / "token"
    given.write_text("SLURM_JWT=one\n")
    headers = rest.credentials("root", given, "other")
    assert headers()["X-SLURM-USER-TOKEN"] == "one"
    given.write_text("two")
    assert headers()["X-SLURM-USER-TOKEN"] == "two"
    given.unlink()
    with pytest.raises(Unavailable):
        headers()
    with pytest.raises(BadInput):
        rest.credentials("root", None, "")


@pytest.mark.parametrize(
    "state",
    [
        {"state": "idle", "state_flags": ["DRAIN", "NOT_RESPONDING"]},
        {"state": ["IDLE", "DRAIN", "NOT_RESPONDING"]},
    ],
)
def test_nodes_of_older_and_newer_daemons(state: dict[str, object]) -> None:
    """Their states are one word and flags, or a list."""
    row = {"name": "gpu-01", "reason": "ask Ida", "address": "10.0.0.1", "gres": "gpu:h100:8(S:0-1)", **state}
    node = parse_rest_nodes(json.dumps({"nodes": [row]}))["gpu-01"]
    assert (node.cordoned, node.up, node.reason, node.address, node.gpus) == (True, False, "ask Ida", "10.0.0.1", 8)
    assert node.record == "NodeName=gpu-01 State=IDLE+DRAIN* Reason=ask Ida"
    with pytest.raises(BadInput):
        parse_rest_nodes("{}")
