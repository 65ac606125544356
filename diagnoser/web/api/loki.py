"""Loki's push route: what Promtail, Alloy, Fluent Bit, Vector and many libraries send."""

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse

from diagnoser.model.errors import TooLarge, Undecodable
from diagnoser.web.api.shipping import JSON, PROTOBUF, ShipperQuery, media_type, query_parameters, take_in
from diagnoser.web.http.problems import Problem, answers
from diagnoser.web.http.request_bodies import unsnappy
from diagnoser.web.http.routing import Router

router = Router(tags=["logs"])

PATH = "/loki/api/v1/push"
_STREAM_KEY = b"\n"  # the first byte of a request that is not compressed

DESCRIPTION = {
    "security": [{"HTTPBearer": []}],
    "parameters": query_parameters(ShipperQuery),
    "requestBody": {
        "required": True,
        "description": "A push request. `Content-Encoding` may be gzip, deflate, zstd or snappy. Protobuf is "
        "compressed with snappy, whatever the header says.",
        "content": {
            JSON: {
                "schema": {
                    "type": "object",
                    "required": ["streams"],
                    "properties": {"streams": {"type": "array", "items": {"type": "object"}}},
                },
                "example": {
                    "streams": [
                        {"stream": {"job": "llm-7b", "rank": "0"}, "values": [["1790000000000000000", "step 1"]]}
                    ]
                },
            },
            PROTOBUF: {"schema": {"type": "string", "format": "binary"}},
        },
    },
}


@router.post(
    PATH,
    status_code=204,
    openapi_extra=DESCRIPTION,
    responses={
        204: {"description": "All entries are committed, but for streams that belong to no job"},
        **answers(400, 401, 403, 413, 415, 429, 503, content={"text/plain": {"schema": {"type": "string"}}}),
    },
    summary="Send lines as to Loki",
)
async def push(request: Request) -> Response:
    """Labels and structured metadata say where entries belong. Loki's way with faulty entries: 400 names them, the
    others are committed. Streams that belong to no job are counted and shown, and no error."""
    content_type, encoding = request.headers.get("content-type", ""), request.headers.get("content-encoding", "")
    if media_type(content_type or PROTOBUF) == JSON:
        receipt = await take_in(request, "loki-json", encoding or "identity")
    elif encoding in ("", "snappy"):
        receipt = await take_in(request, "loki", "snappy")
    else:
        limit = request.app.state.services.core.config.limits.body_bytes
        receipt = await take_in(request, "loki", encoding, lambda body: _unwrapped(body, limit))
    if receipt.rejected:
        told = "\n".join(receipt.errors) or "entries cannot be used"
        return PlainTextResponse(f"{receipt.rejected} of the entries were not taken:\n{told}\n", 400)
    return Response(status_code=204)


def problem_text(_request: Request, problem: Problem) -> Response:
    """Shippers print what Loki says: plain text."""
    return PlainTextResponse(f"{problem.detail or problem.title}\n", problem.status)


def _unwrapped(body: bytes, limit: int) -> bytes:
    """Within another encoding, protobuf is mostly still snappy. Raises Undecodable, TooLarge."""
    try:
        return unsnappy(body, limit)
    except (Undecodable, TooLarge):
        if body.startswith(_STREAM_KEY):
            return body
        raise
