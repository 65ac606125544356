"""Slurm's REST daemon with a JWT, as the option beside Slurm's commands.

It tells of jobs and nodes, takes nodes out, gives them back and ends jobs. Commands are still needed for what it has no
verb for in any version (requeue, hold, reservations, srun, the script of a job), and for nodes before Slurm 23.02,
where it answers 405.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.slurm.commands import COMMAND_SECONDS, CommandResult, Runner, Slurm, run
from diagnoser.agent.slurm.parsing import JobRecord, parse_jobs, parse_rest_nodes
from diagnoser.model.errors import BadInput, Denied, Unavailable

_JOBS = re.compile(r"/slurm/v0\.0\.(\d+)/jobs/?")
_STATES = {"drain": ["DRAIN"], "resume": ["RESUME"]}


@dataclass(frozen=True, slots=True)
class RestRequest:
    """One command as a request. path: below ``/slurm/<version>/``."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RestClient:
    """The daemon. version: such as v0.0.38. headers: made anew for each request, because tokens run out."""

    client: httpx.AsyncClient
    version: str
    headers: Callable[[], dict[str, str]]

    async def read(self, what: str) -> str:
        """The JSON of a listing. Raises Unavailable, also while there is no valid token."""
        answer = await self._ask("GET", what)
        if not answer.is_success:
            raise Unavailable(f"slurmrestd answers {answer.status_code} for {what}: {_errors(answer)}")
        return answer.text

    async def change(self, words: Sequence[str], request: RestRequest) -> CommandResult | None:
        """Run a command as a request; None when this version of the daemon has no such request."""
        try:
            answer = await self._ask(request.method, request.path, request.body)
        except Unavailable as error:
            return CommandResult(tuple(words), 1, error=str(error))
        if answer.status_code in (404, 405, 501):
            return None
        errors, code = _errors(answer), 1
        if answer.is_success and not errors:
            code = 0
        return CommandResult(tuple(words), code, "by slurmrestd", errors)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        try:
            where, headers = f"/slurm/{self.version}/{path}", self.headers()
            answer = await self.client.request(method, where, json=body, headers=headers, timeout=COMMAND_SECONDS)
        except httpx.TransportError as error:
            raise Unavailable(f"slurmrestd is away: {type(error).__name__}") from None
        if answer.status_code in (401, 403):
            raise Unavailable("slurmrestd refuses the token")
        return answer


@dataclass(frozen=True, slots=True)
class RestSlurm(Slurm):
    """Reads over REST. client: must be given."""

    client: RestClient = field(kw_only=True)

    async def jobs(self) -> dict[int, JobRecord]:
        return parse_jobs(await self.client.read("jobs"))

    async def _read_nodes(self) -> dict[str, NodeRecord]:
        return parse_rest_nodes(await self.client.read("nodes"))


def over_rest(client: RestClient, commands: Runner = run) -> RestSlurm:

    async def runner(words: Sequence[str], seconds: float) -> CommandResult:
        request, result = as_request(words), None
        if request:
            result = await client.change(words, request)
        return result or await commands(words, seconds)

    return RestSlurm(runner, client=client)


def as_request(words: Sequence[str]) -> RestRequest | None:
    """The request that does what the command does, None where there is none."""
    match list(words):
        case ["scontrol", "update", node, state, *reason] if node.startswith("nodename="):
            states = _STATES.get(state.removeprefix("state="))
            if states is None:
                return None
            body: dict[str, object] = {"state": states}
            for word in reason[:1]:
                body["reason"] = word.removeprefix("reason=")
            name = quote(node.removeprefix("nodename="), safe="")
            return RestRequest("POST", f"node/{name}", body)
        case ["scancel", number] if number.isdecimal():
            return RestRequest("DELETE", f"job/{number}")
    return None


async def connect(client: httpx.AsyncClient, headers: Callable[[], dict[str, str]]) -> RestClient:
    """A client for the newest version that the daemon speaks. Raises Unavailable, Denied, BadInput."""
    try:
        answer = await client.get("/openapi.json", headers=headers(), timeout=COMMAND_SECONDS)
    except httpx.TransportError as error:
        raise Unavailable(f"slurmrestd is away: {type(error).__name__}") from None
    if answer.status_code in (401, 403):
        raise Denied("slurmrestd refuses the token")
    paths: Iterable[str] = ()
    if answer.is_success:
        with suppress(ValueError, KeyError, TypeError):
            paths = answer.json()["paths"]
    versions = [int(match[1]) for path in paths if (match := _JOBS.fullmatch(path))]
    if not versions:
        raise BadInput("no slurmrestd that tells of jobs: start it with -s openapi/v0.0.38, or openapi/slurmctld")
    return RestClient(client, f"v0.0.{max(versions)}", headers)


def credentials(user: str, path: Path | None, given: str) -> Callable[[], dict[str, str]]:
    """Headers with the JWT of a file, else the one given. Raises BadInput where there is neither."""
    if path is None and not given:
        raise BadInput("slurmrestd needs a token: --rest-token-file, or SLURM_JWT in the environment")

    def headers() -> dict[str, str]:
        token = given
        if path is not None:
            try:
                token = path.read_text()
            except OSError as error:
                raise Unavailable(f"cannot read {path}: {error.strerror}") from None
        return {"X-SLURM-USER-NAME": user, "X-SLURM-USER-TOKEN": token.strip().removeprefix("SLURM_JWT=")}

    return headers


def _errors(answer: httpx.Response) -> str:
    try:
        errors = answer.json().get("errors") or []
        return "; ".join(str(error.get("error") or error.get("description") or error) for error in errors)
    except (ValueError, AttributeError):
        return "" if answer.is_success else answer.text[:200]
