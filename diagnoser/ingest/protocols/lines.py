"""The service's own protocol: lines as they are, records of JSON, or messages of syslog."""

from dataclasses import asdict

import orjson

from diagnoser.compress.lines import count_lines
from diagnoser.ingest.batch import LINES_LIMIT, Batch, IngestReceipt, RecordDefaults, check_count
from diagnoser.ingest.encodings import decoder
from diagnoser.ingest.mapping import FieldMapping
from diagnoser.ingest.ndjson import parse_array, parse_ndjson
from diagnoser.ingest.protocols.protocol import (
    JSON,
    PLAIN_TEXT,
    Answer,
    BodyFormat,
    BodyReading,
    Description,
    Parser,
    Protocol,
    RequestHead,
    format_of,
    media_type,
)
from diagnoser.ingest.syslog import parse_syslog
from diagnoser.model import LineBlock
from diagnoser.model.errors import BadInput, Unsupported


def parse_text(body: bytes, defaults: RecordDefaults, received: float) -> Batch:
    """All lines of ``body`` as one block. Raises BadInput when the query names no job, TooLarge for too many lines."""
    target = defaults.target
    if not target.job:
        raise BadInput("no job: name it in the query, as in /api/v1/logs?job=my-job")
    if len(body) > LINES_LIMIT:
        check_count(count_lines(body), LINES_LIMIT, "lines")
    batch = Batch()
    batch.add(target, LineBlock(defaults.stream, body, defaults.first or 0, received=received))
    return batch


CHARSETS = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii"})


def _filled(parse: Parser) -> Parser:
    """The parser, which refuses a body of nothing."""

    def parse_filled(body: bytes, defaults: RecordDefaults, received: float, mapping: FieldMapping) -> Batch:
        if not body:
            raise BadInput("the body is empty: send the lines of the log in it")
        return parse(body, defaults, received, mapping)

    return parse_filled


TEXT = BodyFormat(
    "text",
    _filled(lambda body, defaults, received, _: parse_text(body, defaults, received)),
    hint="Name the job in the address: /api/v1/logs?job=NAME",
    is_cheap=True,  # one count of its lines
)
NDJSON = BodyFormat(
    "ndjson",
    _filled(parse_ndjson),
    hint='Give each record a field "job", or name the job in the address: /api/v1/logs?job=NAME',
)
JSON_RECORDS = BodyFormat("json", _filled(parse_array))
SYSLOG = BodyFormat(
    "syslog", _filled(parse_syslog), hint="Name the job in the address that the shipper sends to: ?job=NAME"
)
FORMATS = {PLAIN_TEXT: TEXT, "application/x-ndjson": NDJSON, JSON: JSON_RECORDS, "application/syslog": SYSLOG}


def _choose(head: RequestHead) -> BodyReading:
    chosen = format_of(FORMATS, head.content_type)
    charset = media_type(head.content_type)[1]
    if charset not in CHARSETS:
        raise Unsupported(f"the charset {charset[:40]!r} is not read: send UTF-8")
    return BodyReading(chosen, decoder(head.encoding))


def _answer(batch: Batch, receipt: IngestReceipt, _: RequestHead) -> Answer:
    """The sender made the body for this service: one without a usable line is its mistake."""
    if not batch.blocks:
        raise BadInput("no usable line: " + ("; ".join(batch.errors) or "the body holds no record"))
    if any((receipt.rejected, receipt.duplicates, receipt.cut, receipt.errors)):
        return Answer(200, orjson.dumps(asdict(receipt)), JSON)
    return Answer()


DESCRIPTION = Description(
    summary="Send lines of a log",
    text="2xx means that the lines are committed. On 503 none of them is: send the same body again.\n\n"
    "Unusable records, and those of jobs of another cluster than the token's, are skipped and counted in the receipt; "
    "the\nrest of the body is accepted. 403 when nothing is left of it.",
    body="Lines of a log. `Content-Encoding` may be gzip, deflate, zstd or snappy.",
    content={
        PLAIN_TEXT: {"schema": {"type": "string"}, "example": "step 1 loss 11.2\nstep 2 loss 10.9\n"},
        "application/x-ndjson": {
            "schema": {"description": "One record a line: an object with a `message`, or a string"},
            "example": '{"message": "step 1 loss 11.2", "rank": 0, "time": "2026-01-05T10:00:00Z"}\n',
        },
        JSON: {
            "schema": {"description": "An array of records, each an object with a `message` or a string; or one"},
            "example": [{"message": "step 1 loss 11.2", "job": "llm-7b", "node": "gpu-017", "rank": 0}],
        },
        "application/syslog": {
            "schema": {"type": "string"},
            "example": "<3>1 2026-01-05T10:00:00Z gpu-017 kernel - - - NVRM: Xid (PCI:0000:1b:00): 79\n",
        },
    },
    answers={
        204: {"description": "All lines are committed"},
        200: {"model": IngestReceipt, "description": "Committed, but not all of it as sent: see the receipt"},
    },
)

PROTOCOL = Protocol(
    name="lines",
    paths=("/api/v1/logs",),
    formats=FORMATS,
    choose=_choose,
    answer=_answer,
    description=DESCRIPTION,
    takes_passwords=False,  # any page can send text
    numbers_lines=True,
    samples=(
        b'{"log": "a", "kubernetes": {"namespace_name": "n", "labels": {"job-name": "t"}}, "date": 1790000000.5}\n'
        b'{"message": "b", "job": "j", "rank": 3, "log": {"file": {"path": "/x"}}}\n',
        b'<11>1 2026-11-22T20:00:00.003Z gpu-1 train 4001 - [diagnoser@0 job="j\\"" rank="3"] \xef\xbb\xbfTrace\n  x\n'
        b"<3>Nov 22 20:00:00 gpu-1 kernel: [12.3] NVRM: Xid\n<30>2026-11-22T20:00:00+01:00 gpu-1 sshd[9]: hello\n",
        b"52 <11>Nov 22 20:00:00 gpu-1 train[4]: Traceback\nFile x46 <3>Nov 22 20:00:00 gpu-1 kernel: [12.3] NVRM: Xid",
    ),
)
