"""Routes for dumps of a job's ranks: what shippers and agents send, and what agents are asked to collect."""

import asyncio
from typing import Annotated, Any

from fastapi import Path, Query, Request
from pydantic import AliasPath, Field

from diagnoser.hang import report
from diagnoser.hang.report import contract
from diagnoser.ingest.encodings import decoder
from diagnoser.model import AttemptKey, EvidenceKind, EvidenceRequest, Provenance, RequestReason, RuntimeFile
from diagnoser.model.errors import NotFound
from diagnoser.web.api.params import IS_NUMBER, JobPath, KnownRank, Node, TextIfAny
from diagnoser.web.api.plans import ClaimBody, ClusterField
from diagnoser.web.http.access import cluster_for
from diagnoser.web.http.authentication import AGENT, INGEST, READ, Caller
from diagnoser.web.http.dependencies import Core, Intake, Logs
from diagnoser.web.http.long_poll import long_poll
from diagnoser.web.http.problems import answers
from diagnoser.web.http.request_bodies import Bodies, declared_length
from diagnoser.web.http.routing import Answer, ApiRouter, StrictSchema

LEASE_SECONDS = 120.0
"""How long an agent may work on a request before another one gets it."""
OPEN_SECONDS = 600.0
"""After which nobody collects any more what was asked for: what stood still has moved, or is gone."""
CLAIMED_AT_ONCE = 8

router = ApiRouter("evidence")

AttemptPath = Annotated[int, Path(ge=1, lt=1 << 31, description="Launch of the job")]
BODY = {
    "requestBody": {
        "required": True,
        "description": "The dump as its tool wrote it. `Content-Encoding` may be gzip, zstd or snappy.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class EvidenceQuery(StrictSchema):
    """What the body is."""

    kind: EvidenceKind
    rank: int = Field(-1, ge=-1, lt=1 << 31, description="Rank that it is of; needed where its content names none")
    node: Node | None = Field(None, description="Node that it was taken on")
    more: bool = Field(
        False, description="Others that were taken with it follow: a silent run is judged anew with the last one"
    )


class EvidenceShape(Answer):
    """A dump that is stored. bytes: as it was sent."""

    kind: EvidenceKind
    rank: KnownRank
    node: TextIfAny
    received: float
    provenance: Provenance
    bytes: int


class EvidenceClaimBody(ClaimBody):
    limit: Annotated[int, Field(ge=1, le=CLAIMED_AT_ONCE), IS_NUMBER] = Field(
        CLAIMED_AT_ONCE, description="Requests to be handed out, at most"
    )


class EvidenceRequestShape(Answer):
    """What an agent is asked to collect. since: files that are older are of an earlier silence or launch.

    nodes: of the attempt; ranks: rank -> node, as far as known: hints, beside what the scheduler itself shows.
    """

    id: str
    job: str = Field(validation_alias=AliasPath("attempt", "job"))
    attempt: int = Field(validation_alias=AliasPath("attempt", "number"))
    reason: RequestReason
    since: float
    nodes: list[str]
    ranks: dict[int, str]
    lease_seconds: float = LEASE_SECONDS


class OpenRequestShape(Answer):
    """A request that clients beside the ranks answer. since: dumps that are older are of an earlier silence."""

    id: str
    since: float


class EvidenceResultBody(StrictSchema):
    cluster: ClusterField = ""
    result: str = Field(max_length=2000, pattern=r"^[^\x00]+$", description="What was collected, or why nothing was")


@router.post(
    "/jobs/{id}/attempts/{attempt}/evidence",
    status_code=204,
    dependencies=INGEST,
    openapi_extra=BODY,
    response_description="Stored",
    responses=answers(404, 415),
    summary="Send a dump of a rank",
)
async def send(
    request: Request,
    id: JobPath,
    attempt: AttemptPath,
    query: Annotated[EvidenceQuery, Query()],
    core: Core,
    intake: Intake,
    caller: Caller,
) -> None:
    """A flight recorder of PyTorch, an answer of NCCL RAS, or stacks. A later one of the same rank and node replaces
    it. Nothing in it is executed. A silent run is judged anew at once, unless ``more`` of them follow: with dumps of
    only a part of its ranks, the others would look absent."""
    job = await intake.job_access.check(caller, id)
    bodies: Bodies = request.app.state.bodies
    decode = decoder(request.headers.get("content-encoding"))
    async with bodies.read(request.stream(), decode, declared_length(request)) as body:
        provenance = Provenance.RUNTIME if caller.vouches else Provenance.JOB
        file = RuntimeFile(query.kind, body, query.rank, query.node or "", core.clock(), provenance)
        await asyncio.to_thread(report.check, file)
        await core.store.evidence.add_runtime_files(AttemptKey(job, attempt), [file], due=not query.more)
    if not query.more:
        intake.attempts_due.notify()


@router.get("/jobs/{id}/attempts/{attempt}/evidence", dependencies=READ, summary="List the dumps of an attempt")
async def index(id: JobPath, attempt: AttemptPath, core: Core) -> list[EvidenceShape]:
    files = await core.store.evidence.list_runtime_files(AttemptKey(id, attempt))
    return EvidenceShape.list_of(files)


@router.get(
    "/jobs/{id}/attempts/{attempt}/evidence-requests",
    dependencies=INGEST,
    responses=answers(404),
    summary="List requests for evidence of an attempt",
)
async def open_requests(
    id: JobPath, attempt: AttemptPath, core: Core, intake: Intake, caller: Caller
) -> list[OpenRequestShape]:
    """What `client.pyz run` is asked for: each client answers for the ranks below it, and an agent beside them."""
    (job,) = (await intake.job_access.names(caller, [id])).values()
    oldest, shown = core.clock() - OPEN_SECONDS, []
    for asked, _ in await core.store.evidence.requests(AttemptKey(job, attempt)):
        if asked.reason is RequestReason.SILENCE and asked.created >= oldest:
            shown.append(OpenRequestShape.model_validate(asked))
    return shown


@router.get(
    "/jobs/{id}/attempts/{attempt}/hang",
    dependencies=READ,
    responses=answers(404),
    summary="Who waits for whom",
)
async def hang(id: JobPath, attempt: AttemptPath, logs: Logs) -> dict[str, Any]:
    """What the dumps of an attempt show, as `diagnoser hang --json` prints it. 404 while there are none."""
    shown = await logs.context.hang_report(AttemptKey(id, attempt))
    if shown is None:
        raise NotFound(f"attempt {attempt} of {id!r} has sent no dumps")
    return contract(shown)


@router.post("/evidence-requests/claim", dependencies=AGENT, summary="Claim requests for evidence")
async def claim(body: EvidenceClaimBody, request: Request, core: Core, caller: Caller) -> list[EvidenceRequestShape]:
    """Runs of the cluster that may hang. Each is handed to one agent at a time, again when its lease ends."""
    cluster = cluster_for(caller, body.cluster)

    async def look() -> list[EvidenceRequest]:
        now, claim = core.clock(), core.store.evidence.claim_requests
        return await claim(cluster, now, LEASE_SECONDS, now - OPEN_SECONDS, body.limit)

    return EvidenceRequestShape.list_of(await long_poll(look, body.wait, request, caller))


@router.post(
    "/evidence-requests/{request_id}/result",
    status_code=204,
    dependencies=AGENT,
    response_description="Noted",
    responses=answers(404),
    summary="Report what was collected",
)
async def finish(
    request_id: Annotated[str, Path(pattern=r"^[0-9A-Z]{26}$")],
    body: EvidenceResultBody,
    core: Core,
    caller: Caller,
) -> None:
    """Ends a request. May be repeated."""
    cluster = cluster_for(caller, body.cluster)
    if not await core.store.evidence.finish_request(request_id, cluster, core.clock(), body.result):
        raise NotFound(f"no request for evidence of this cluster is called {request_id!r}")
