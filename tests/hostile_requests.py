"""A fuzz target for the parsers of request bodies: whatever comes is read or refused, and what is read is whole."""

import json
import random

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from diagnoser.ingest import Batch, RecordDefaults, protocols
from diagnoser.ingest.mapping import DEFAULT
from diagnoser.ingest.protocols.elasticsearch import BulkBatch
from diagnoser.model.errors import BadInput
from tests.loki_messages import PushRequest

_NOW = 1_800_000_000.0


def _loki() -> bytes:
    request = PushRequest()
    for labels in ('{job="j", rank="1"}', '{app="web"}', '{slurm_job_id="7", x="\\"q\\\\"}'):
        stream = request.streams.add(labels=labels)
        for line in ("step 1", "x" * 200, "a\nb\n", ""):
            entry = stream.entries.add(line=line)
            entry.timestamp.seconds, entry.timestamp.nanos = 1_790_000_000, len(line)
        entry.structured_metadata.add(name="rank", value="2")
    return bytes(request.SerializeToString())


def _otlp() -> bytes:
    request = ExportLogsServiceRequest()
    made = request.resource_logs.add()
    made.resource.attributes.add(key="k8s.job.name").value.string_value = "j"
    made.resource.attributes.add(key="k8s.namespace.name").value.string_value = "n"
    scope = made.scope_logs.add()
    scope.scope.name = "s"
    for number in range(4):
        record = scope.log_records.add(
            time_unix_nano=number * 1_790_000_000 * 10**9, observed_time_unix_nano=1_790_000_000 * 10**9
        )
        record.attributes.add(key="rank").value.int_value = number
        record.body.string_value = "y" * 100 * number
    record.body.kvlist_value.values.add(key="message").value.double_value = 1.5
    return bytes(request.SerializeToString())


SEEDS = (
    _loki(),
    _otlp(),
    *(sample for protocol in protocols.PROTOCOLS for sample in protocol.samples),
)
FORMATS = [read for protocol in protocols.PROTOCOLS for read in protocol.formats.values()]


def one_input(data: bytes) -> None:
    """Raises AssertionError where a promise does not hold."""
    for read in FORMATS:
        for defaults in (RecordDefaults(), RecordDefaults("j")):
            try:
                batch = read.parse(data, defaults, _NOW, DEFAULT)
            except BadInput:
                continue
            _check(batch)
            if isinstance(batch, BulkBatch):
                assert len(json.loads(batch.answer())["items"]) == len(batch.actions)


def _check(batch: Batch) -> None:
    for target, blocks in batch.blocks.items():
        assert target.job
        for block in blocks:
            assert block.times is None or len(block.times) == block.lines
    assert all(count > 0 for count, _ in batch.unplaced.values())
    json.dumps([[*unplaced.labels, sample] for unplaced, (_, sample) in batch.unplaced.items()]).encode()


def mutated(rng: random.Random) -> bytes:
    """A seed with bytes changed, taken out, doubled or of another seed."""
    data = bytearray(rng.choice(SEEDS))
    for _ in range(rng.randint(0, 8)):
        at = rng.randrange(len(data))
        kind = rng.random()
        if kind < 0.5:
            data[at] = rng.choice((0, 1, 0x0A, 0x12, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind < 0.7:
            del data[at : at + rng.randint(1, 9)]
        elif kind < 0.85:
            data[at:at] = data[at : at + rng.randint(1, 60)]
        else:
            other = rng.choice(SEEDS)
            data[at:at] = other[rng.randrange(len(other)) :][: rng.randint(1, 40)]
        data = data or bytearray(b"x")
    return bytes(data)
