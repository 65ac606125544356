"""The route that takes in logs."""

from dataclasses import asdict
from email.message import Message
from functools import lru_cache

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from diagnoser.client.service import API
from diagnoser.ingest.service import IngestReceipt
from diagnoser.model.errors import BadInput, Unsupported
from diagnoser.web.api.shipping import ShipperQuery, declared_length, query_parameters, read_query
from diagnoser.web.http.authentication import identified, may_ingest
from diagnoser.web.http.problems import answers
from diagnoser.web.http.request_bodies import Bodies
from diagnoser.web.http.routing import Router
from diagnoser.web.http.services import WebServices

router = Router(prefix=API, tags=["logs"])

FORMATS = {
    "text/plain": "text",
    "application/x-ndjson": "ndjson",
    "application/json": "json",
    "application/syslog": "syslog",
}
CHARSETS = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii"})
LINE_NUMBER_LIMIT = 1 << 53


class LogQuery(ShipperQuery):
    """As of every shipper, and the numbers of the lines."""

    offset: int | None = Field(
        None,
        ge=0,
        lt=LINE_NUMBER_LIMIT,
        description="Number of lines of the stream before this body; with it, a body that is sent again counts once",
    )


DESCRIPTION = {
    "security": [{"HTTPBearer": []}],
    "parameters": query_parameters(LogQuery),
    "requestBody": {
        "required": True,
        "description": "Lines of a log. `Content-Encoding` may be gzip, deflate, zstd or snappy.",
        "content": {
            "text/plain": {"schema": {"type": "string"}, "example": "step 1 loss 11.2\nstep 2 loss 10.9\n"},
            "application/x-ndjson": {
                "schema": {"description": "One record a line: an object with a `message`, or a string"},
                "example": '{"message": "step 1 loss 11.2", "rank": 0, "time": "2026-01-05T10:00:00Z"}\n',
            },
            "application/json": {
                "schema": {"description": "An array of records, each an object with a `message` or a string; or one"},
                "example": [{"message": "step 1 loss 11.2", "job": "llm-7b", "node": "gpu-017", "rank": 0}],
            },
            "application/syslog": {
                "schema": {"type": "string"},
                "example": "<3>1 2026-01-05T10:00:00Z gpu-017 kernel - - - NVRM: Xid (PCI:0000:1b:00): 79\n",
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
    services: WebServices = request.app.state.services
    caller = await identified(request, services.people)
    await may_ingest(request, caller)
    query = read_query(request, LogQuery)
    defaults = query.defaults(caller, None if query.offset is None else query.offset + 1)
    kind = _format(request.headers.get("content-type", ""))
    if kind == "text" and not defaults.target.job:
        raise BadInput("no job: name it in the query, as in /api/v1/logs?job=my-job")
    sender = services.intake.job_access.sender(caller)
    bodies: Bodies = request.app.state.bodies
    encoding = request.headers.get("content-encoding", "identity")
    async with bodies.read(request.stream(), encoding, declared_length(request)) as body:
        if not body:
            raise BadInput("the body is empty: send the lines of the log in it")
        receipt = await services.intake.ingest.accept(body, kind, defaults, services.core.clock(), sender)
    if receipt.rejected or receipt.duplicates or receipt.cut or receipt.errors:
        return JSONResponse(asdict(receipt))
    return Response(status_code=204)


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
