"""OTLP/HTTP: what the OpenTelemetry Collector and the SDKs send."""

import orjson
from fastapi import Request, Response

from diagnoser.ingest.protobuf_wire import encoded
from diagnoser.ingest.service import IngestReceipt
from diagnoser.model.errors import Unsupported
from diagnoser.web.api.shipping import JSON, PROTOBUF, ShipperQuery, media_type, query_parameters, take_in
from diagnoser.web.http.problems import Problem, answers
from diagnoser.web.http.routing import Router

router = Router(tags=["logs"])

PATH = "/v1/logs"
UNKNOWN = 2
CODES = {400: 3, 401: 16, 403: 7, 404: 5, 405: 12, 413: 8, 415: 3, 429: 8, 500: 13, 503: 14}
"""Status -> code of gRPC."""
STATUS_CODE, STATUS_MESSAGE = 1, 2  # of google.rpc.Status
PARTIAL_SUCCESS, REJECTED, WHY = 1, 1, 2  # of ExportLogsServiceResponse, and of ExportLogsPartialSuccess

BINARY = {"schema": {"type": "string", "format": "binary"}}
DESCRIPTION = {
    "security": [{"HTTPBearer": []}],
    "parameters": query_parameters(ShipperQuery),
    "requestBody": {
        "required": True,
        "description": "An export request. `Content-Encoding` may be gzip, deflate, zstd or snappy.",
        "content": {
            JSON: {
                "schema": {"type": "object"},
                "example": {
                    "resourceLogs": [
                        {
                            "resource": {"attributes": [{"key": "slurm.job.id", "value": {"stringValue": "7"}}]},
                            "scopeLogs": [{"logRecords": [{"body": {"stringValue": "step 1 loss 11.2"}}]}],
                        }
                    ]
                },
            },
            PROTOBUF: BINARY,
        },
    },
}

STATUS = {
    "type": "object",
    "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
}
"""``google.rpc.Status``."""


@router.post(
    PATH,
    openapi_extra=DESCRIPTION,
    responses={
        200: {
            "description": "All records are committed, but for those that the answer counts as rejected",
            "content": {JSON: {"schema": {"type": "object"}}, PROTOBUF: BINARY},
        },
        **answers(400, 401, 403, 413, 415, 429, 503, content={JSON: {"schema": STATUS}, PROTOBUF: BINARY}),
    },
    summary="Send lines as OTLP",
)
async def export(request: Request) -> Response:
    """Attributes of resource, scope and record say where records belong. What cannot be used, or belongs to no job, is
    a partial success; errors are a `google.rpc.Status`."""
    is_json = _speaks_json(request)
    encoding = request.headers.get("content-encoding", "identity")
    receipt = await take_in(request, "otlp-json" if is_json else "otlp", encoding)
    return _answer_json(receipt) if is_json else _answer(receipt)


def problem_status(request: Request, problem: Problem) -> Response:
    """An error as the protocol wants it, in the form that the sender speaks."""
    code, text = CODES.get(problem.status, UNKNOWN), problem.detail or problem.title
    try:
        is_json = _speaks_json(request)
    except Unsupported:
        is_json = True
    if is_json:
        return Response(orjson.dumps({"code": code, "message": text}), problem.status, media_type=JSON)
    status = encoded(STATUS_CODE, code) + encoded(STATUS_MESSAGE, text.encode())
    return Response(status, problem.status, media_type=PROTOBUF)


def _answer(receipt: IngestReceipt) -> Response:
    rejected, why = _left_out(receipt)
    partial = encoded(REJECTED, rejected) + encoded(WHY, why.encode())
    return Response(encoded(PARTIAL_SUCCESS, partial) if rejected else b"", media_type=PROTOBUF)


def _answer_json(receipt: IngestReceipt) -> Response:
    rejected, why = _left_out(receipt)
    partial = {"rejectedLogRecords": str(rejected), "errorMessage": why}  # 64-bit integers are written as text
    return Response(orjson.dumps({"partialSuccess": partial} if rejected else {}), media_type=JSON)


def _left_out(receipt: IngestReceipt) -> tuple[int, str]:
    """(records that are not stored, why)."""
    unplaced = [f"{receipt.unplaced} records belong to no job"] if receipt.unplaced else []
    return receipt.rejected + receipt.unplaced, "; ".join([*receipt.errors, *unplaced])


def _speaks_json(request: Request) -> bool:
    """Raises Unsupported."""
    return media_type(request.headers.get("content-type", "")) == JSON
