"""The route that takes in logs."""

from dataclasses import asdict
from email.message import Message
from functools import lru_cache, partial

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diagnoser.ingest import RecordDefaults
from diagnoser.ingest.service import IngestReceipt
from diagnoser.model import Stream, provenance_of
from diagnoser.model.access import Credential
from diagnoser.model.errors import BadInput, Unsupported
from diagnoser.web.access import own_cluster
from diagnoser.web.api.params import JobId, Node, Source
from diagnoser.web.authentication import identified, may_ingest
from diagnoser.web.dependencies import AppDependencies
from diagnoser.web.problems import answers
from diagnoser.web.request_bodies import Bodies

router = APIRouter(tags=["logs"])

FORMATS = {"text/plain": "text", "application/x-ndjson": "ndjson", "application/json": "json"}
CHARSETS = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii"})
LINE_NUMBER_LIMIT = 1 << 53


class LogQuery(BaseModel):
    """Defaults for every line of the body that does not name its own."""

    model_config = ConfigDict(extra="forbid")

    job: JobId | None = Field(
        None,
        description="Id of the job; needed unless every record names its own, or the lines are a node's own log "
        "(source kernel, dmesg, syslog or scheduler, with its node)",
    )
    cluster: Node | None = Field(None, description="Cluster of the node whose own log this is")
    attempt: int | None = Field(None, ge=1, lt=1 << 31, description="Launch of the job; the latest one by default")
    node: Node | None = Field(None, description="Where the lines were printed")
    rank: int | None = Field(None, ge=0, lt=1 << 31, description="Which rank printed the lines")
    source: Source = Field("stdout", description="Name of the stream")
    offset: int | None = Field(
        None,
        ge=0,
        lt=LINE_NUMBER_LIMIT,
        description="Number of lines of the stream before this body; with it, a body that is sent again counts once",
    )

    def defaults(self, caller: Credential) -> RecordDefaults:
        """Raises OutOfScope when the query names another cluster than the caller's."""
        provenance = provenance_of(self.source, vouched=caller.vouches)
        stream = Stream(self.source, self.node or "", -1 if self.rank is None else self.rank, provenance)
        first_line = None if self.offset is None else self.offset + 1
        cluster = own_cluster(caller, self.cluster or "")
        return RecordDefaults(self.job or "", self.attempt, stream, first_line, cluster, caller.vouches)


DESCRIPTION = {
    "security": [{"HTTPBearer": []}],
    "parameters": [
        {"name": name, "in": "query", "schema": schema, "description": schema.pop("description", "")}
        for name, schema in LogQuery.model_json_schema()["properties"].items()
    ],
    "requestBody": {
        "required": True,
        "description": "Lines of a log. `Content-Encoding` may be gzip, zstd or snappy.",
        "content": {
            "text/plain": {"schema": {"type": "string"}, "example": "step 1 loss 11.2\nstep 2 loss 10.9\n"},
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "example": '{"message": "step 1 loss 11.2", "rank": 0, "time": "2026-01-05T10:00:00Z"}\n',
            },
            "application/json": {
                "schema": {"type": "array", "items": {"type": "object"}},
                "example": [{"message": "step 1 loss 11.2", "job": "llm-7b", "node": "gpu-017", "rank": 0}],
            },
        },
    },
}


@router.post(
    "/logs",
    status_code=204,
    openapi_extra=DESCRIPTION,
    responses={
        200: {"model": IngestReceipt, "description": "Committed, but not all of it as sent: see the receipt"},
        204: {"description": "All lines are committed"},
        **answers(400, 401, 403, 413, 415, 429, 503),
    },
    summary="Send lines of a log",
)
async def send_logs(request: Request) -> Response:
    """2xx means that the lines are committed. On 503 none of them is: send the same body again.

    Unusable records, and those of jobs of another cluster than the token's, are skipped and counted in the receipt; the
    rest of the body is accepted. 403 when nothing is left of it.
    """
    # The framework's own reading of parameters costs more than taking in ten lines: this route does it by itself.
    services: AppDependencies = request.app.state.services
    caller = await identified(request, services)
    await may_ingest(request, caller)
    defaults = _query(request).defaults(caller)
    kind = _format(request.headers.get("content-type", ""))
    if kind == "text" and not defaults.target.job:
        raise BadInput("no job: name it in the query, as in /api/v1/logs?job=my-job")
    foreign_jobs = partial(services.job_access.refused, caller)
    bodies: Bodies = request.app.state.bodies
    encoding = request.headers.get("content-encoding", "identity")
    async with bodies.read(request.stream(), encoding, _declared(request)) as body:
        if not body:
            raise BadInput("the body is empty: send the lines of the log in it")
        receipt = await services.ingest.accept(body, kind, defaults, services.clock(), foreign_jobs)
    if receipt.rejected or receipt.duplicates or receipt.cut or receipt.errors:
        return JSONResponse(asdict(receipt))
    return Response(status_code=204)


def _query(request: Request) -> LogQuery:
    """Raises RequestValidationError, as the framework does."""
    try:
        return LogQuery.model_validate(dict(request.query_params))
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise RequestValidationError([{**fault, "loc": ("query", *fault["loc"])} for fault in faults]) from None


@lru_cache(maxsize=256)
def _format(content_type: str) -> str:
    header = Message()
    header["content-type"] = content_type or "unknown/unknown"
    name = header.get_content_type()
    if not content_type or name not in FORMATS:
        raise Unsupported(f"Content-Type {content_type[:60]!r} is not one of {', '.join(FORMATS)}")
    charset = str(header.get_param("charset", "")).lower()
    if charset not in CHARSETS:
        raise Unsupported(f"the charset {charset[:40]!r} is not read: send UTF-8")
    return FORMATS[name]


def _declared(request: Request) -> int | None:
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() else None
