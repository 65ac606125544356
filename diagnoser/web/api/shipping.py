"""What the routes share that take in lines: defaults in the query, the bounded body, and the way to the commit."""

from collections.abc import Callable
from email.message import Message
from functools import lru_cache
from typing import TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ConfigDict, Field, ValidationError

from diagnoser.ingest import RecordDefaults
from diagnoser.ingest.service import IngestReceipt
from diagnoser.model import Stream, provenance_of
from diagnoser.model.access import Credential
from diagnoser.model.errors import Unsupported
from diagnoser.web.api.params import JobId, Node, Source
from diagnoser.web.http.access import own_cluster
from diagnoser.web.http.authentication import identified, may_push
from diagnoser.web.http.request_bodies import Bodies
from diagnoser.web.http.routing import Schema
from diagnoser.web.http.services import WebServices

JSON, PROTOBUF = "application/json", "application/x-protobuf"


class ShipperQuery(Schema):
    """Defaults for every line of the body that does not name its own."""

    model_config = ConfigDict(extra="forbid")

    job: JobId | None = Field(
        None,
        description="Id of the job; needed unless every record names its own, or the lines are a node's own log "
        "(source kernel, dmesg, daemon, syslog or scheduler, with its node)",
    )
    cluster: Node | None = Field(None, description="Cluster of the node whose own log this is")
    attempt: int | None = Field(None, ge=1, lt=1 << 31, description="Launch of the job; the latest one by default")
    node: Node | None = Field(None, description="Where the lines were printed")
    rank: int | None = Field(None, ge=0, lt=1 << 31, description="Which rank printed the lines")
    source: Source = Field("stdout", description="Name of the stream")

    def defaults(self, caller: Credential, first: int | None = None) -> RecordDefaults:
        """first: number of the first line. Raises OutOfScope when the query names another cluster than the caller's."""
        provenance = provenance_of(self.source, vouched=caller.vouches)
        stream = Stream(self.source, self.node or "", -1 if self.rank is None else self.rank, provenance)
        cluster = own_cluster(caller, self.cluster or "")
        return RecordDefaults(self.job or "", self.attempt, stream, first, cluster, caller.vouches, caller.name)


Query = TypeVar("Query", bound=ShipperQuery)


def read_query(request: Request, shape: type[Query]) -> Query:
    """Raises RequestValidationError, as the framework does."""
    try:
        return shape.model_validate(dict(request.query_params))
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise RequestValidationError([{**fault, "loc": ("query", *fault["loc"])} for fault in faults]) from None


def query_parameters(shape: type[ShipperQuery]) -> list[dict[str, object]]:
    """For the description of a route that reads its query by itself."""
    return [
        {"name": name, "in": "query", "schema": schema, "description": schema.pop("description", "")}
        for name, schema in shape.model_json_schema()["properties"].items()
    ]


def declared_length(request: Request) -> int | None:
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() else None


@lru_cache(maxsize=256)
def media_type(content_type: str) -> str:
    """``JSON`` or ``PROTOBUF``, in which protocols of others are written. Raises Unsupported."""
    header = Message()
    header["content-type"] = content_type or "unknown/unknown"
    name = header.get_content_type()
    if name not in (JSON, PROTOBUF):
        raise Unsupported(f"Content-Type {content_type[:60]!r} is neither {JSON} nor {PROTOBUF}")
    return name


async def take_in(
    request: Request, format: str, encoding: str, decode: Callable[[bytes], bytes] = bytes
) -> IngestReceipt:
    """Commit what a shipper sends by a protocol of others. encoding: of the body; decode: undoes what the protocol
    itself wraps it in. Raises DiagnoserError."""
    # The framework's own reading of parameters costs more than taking in ten lines: these routes do it by themselves.
    services: WebServices = request.app.state.services
    caller = await identified(request, services.people)
    await may_push(request, caller)
    defaults = read_query(request, ShipperQuery).defaults(caller)
    sender = services.intake.job_access.sender(caller)
    bodies: Bodies = request.app.state.bodies
    async with bodies.read(request.stream(), encoding, declared_length(request)) as body:
        return await services.intake.ingest.accept(decode(body), format, defaults, services.core.clock(), sender)
