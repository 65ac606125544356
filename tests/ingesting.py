"""Sends bodies to the intake as the routes of the protocols do."""

from diagnoser.ingest import IngestReceipt, RecordDefaults
from diagnoser.ingest.job_access import JobSender
from diagnoser.ingest.protocols import PROTOCOLS
from diagnoser.ingest.protocols.protocol import BodyFormat
from diagnoser.ingest.service import IngestService

FORMATS: dict[str, BodyFormat] = {read.name: read for protocol in PROTOCOLS for read in protocol.formats.values()}


async def accept(
    service: IngestService,
    body: bytes,
    format: str,
    defaults: RecordDefaults,
    received: float,
    sender: JobSender | None = None,
) -> IngestReceipt:
    """Returns once the lines of the body are committed. format: its name."""
    batch = await service.parse_body(body, FORMATS[format], defaults, received)
    return await service.accept_batch(batch, format, defaults, received, sender)
