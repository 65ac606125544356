"""What lines cost the server that come by the protocols of others, beside text and NDJSON in the same run.

    python -m tools.bench.protocols [--quick] [--only NAME]

As ``tools.bench.ingest``: the real process, CPU seconds with all that follows, and every connection a rank of a job.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import cramjam
import orjson
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.e2e.service import service
from tests.loki_messages import PushRequest
from tools.bench import logs
from tools.bench.ingest import CONNECTIONS, LOGS, NDJSON, PUT_OFF, TEXT, Bench, Row, records

JSON, PROTOBUF = "application/json", "application/x-protobuf"
SECONDS = 1_790_000_000
JOBS = 8
LARGE_BYTES, SMALL_LINES = 1 << 20, 100

Encode = Callable[[str, int, bytes], tuple[str, bytes]]
"""(job, rank, lines of a log) -> path and body of a request."""


def texts(body: bytes) -> Iterator[tuple[int, str]]:
    return enumerate(body.decode("utf-8", "replace").splitlines())


def text(job: str, rank: int, body: bytes) -> tuple[str, bytes]:
    return f"{LOGS}job={job}&attempt=1&rank={rank}", body


def ndjson(job: str, rank: int, body: bytes) -> tuple[str, bytes]:
    return f"{LOGS}job={job}&attempt=1&rank={rank}", records(body)


def fluent_bit(job: str, rank: int, body: bytes) -> tuple[str, bytes]:
    """NDJSON with what the Kubernetes filter adds to each record."""
    pod = {
        "pod_name": f"{job}-{rank}",
        "namespace_name": "team",
        "host": f"gpu-{rank:03}",
        "container_name": "main",
        "labels": {"job-name": job, "app": "train"},
        "annotations": {"diagnoser.io/rank": str(rank)},
    }
    rows = ({"date": SECONDS + n, "stream": "stdout", "log": line, "kubernetes": pod} for n, line in texts(body))
    return "/api/v1/logs", b"\n".join(map(orjson.dumps, rows))


def loki(job: str, rank: int, body: bytes) -> tuple[str, bytes]:
    request = PushRequest()
    stream = request.streams.add(labels=f'{{job="{job}", rank="{rank}", node="gpu-{rank:03}"}}')
    for number, line in texts(body):
        entry = stream.entries.add(line=line)
        entry.timestamp.seconds, entry.timestamp.nanos = SECONDS + number, 123_456_789
    return "/loki/api/v1/push", bytes(cramjam.snappy.compress_raw(request.SerializeToString()))


def loki_json(job: str, rank: int, body: bytes) -> tuple[str, bytes]:
    labels = {"job": job, "rank": str(rank), "node": f"gpu-{rank:03}"}
    values = [[f"{SECONDS + number}123456789", line] for number, line in texts(body)]
    return "/loki/api/v1/push", orjson.dumps({"streams": [{"stream": labels, "values": values}]})


def otlp(job: str, rank: int, body: bytes) -> tuple[str, bytes]:
    """As the Collector reads files: the file is an attribute of each record."""
    request = ExportLogsServiceRequest()
    made = request.resource_logs.add()
    for name, value in (("job", job), ("rank", str(rank)), ("host.name", f"gpu-{rank:03}")):
        made.resource.attributes.add(key=name).value.string_value = value
    scope = made.scope_logs.add()
    scope.scope.SetInParent()
    for number, line in texts(body):
        record = scope.log_records.add(observed_time_unix_nano=(SECONDS + number) * 10**9)
        record.body.string_value = line
        record.attributes.add(key="log.file.name").value.string_value = "train.log"
    return "/v1/logs", bytes(request.SerializeToString())


def bulk(job: str, rank: int, body: bytes) -> tuple[str, bytes]:
    """As rsyslog sends it: what is asked of it and nothing else."""
    return _bulk({"job": job, "rank": rank, "host": {"name": f"gpu-{rank:03}"}}, body)


def filebeat(job: str, rank: int, body: bytes) -> tuple[str, bytes]:
    """With all that Filebeat adds to each document."""
    agent = {"type": "filebeat", "version": "8.17.0", "id": "6f1c", "ephemeral_id": "a11", "name": f"gpu-{rank:03}"}
    fields = {"job": job, "rank": rank}
    file = {"path": f"/logs/rank-{rank}.log", "device_id": "2049", "inode": "1835"}
    more = {"input": {"type": "filestream"}, "ecs": {"version": "8.0.0"}, "host": {"name": f"gpu-{rank:03}"}}
    return _bulk({"log": {"offset": 4711, "file": file}, "fields": fields, "agent": agent, **more}, body)


def _bulk(about: dict[str, object], body: bytes) -> tuple[str, bytes]:
    action = b'{"create":{"_index":"training"}}\n'
    rows = ({"@timestamp": "2026-09-21T13:33:20.123Z", "message": line, **about} for _, line in texts(body))
    return "/_bulk", b"".join(action + orjson.dumps(row) + b"\n" for row in rows)


FORMS: dict[str, tuple[Encode, str, bool]] = {
    "text": (text, TEXT, False),
    "NDJSON": (ndjson, NDJSON, False),
    "NDJSON of Fluent Bit": (fluent_bit, NDJSON, False),
    "Loki protobuf": (loki, PROTOBUF, True),
    "Loki JSON": (loki_json, JSON, False),
    "OTLP protobuf": (otlp, PROTOBUF, True),
    "_bulk": (bulk, NDJSON, True),
    "_bulk of Filebeat": (filebeat, NDJSON, False),
}
"""Name -> its form, its content type, and whether it has a bar."""


def requests(bodies: Iterable[bytes], encode: Encode, job: str) -> list[list[tuple[str, bytes]]]:
    """For each connection, in its order."""
    work: list[list[tuple[str, bytes]]] = [[] for _ in range(CONNECTIONS)]
    for number, body in enumerate(bodies):
        rank = number % CONNECTIONS
        work[rank].append(encode(f"{job}-{rank % JOBS}", rank, body))
    return work


def large(bench: Bench, name: str) -> Row:
    encode, kind, has_bar = FORMS[name]
    mean = sum(len(line) for log in bench.logs for line in log) / sum(map(len, bench.logs))
    bodies = list(bench.texts(150, int(LARGE_BYTES / mean)))
    total = sum(body.count(b"\n") for body in bodies)
    cpu, _ = bench.cost_of(requests(bodies, encode, f"large-{slug(name)}"), kind)
    must = "120,000" if has_bar else ""
    return Row(f"{name}, bodies of 1 MB: lines per CPU-second", must, f"{total / cpu:,.0f}", total / cpu)


def small(bench: Bench, name: str) -> Row:
    encode, kind, has_bar = FORMS[name]
    bodies = list(bench.texts(6000, SMALL_LINES))
    cpu, _ = bench.cost_of(requests(bodies, encode, f"small-{slug(name)}"), kind)
    rate = len(bodies) / cpu
    return Row(f"{name}, 100 records: requests per CPU-second", "600" if has_bar else "", f"{rate:,.0f}", rate)


def slug(name: str) -> str:
    return name.lower().strip("_").replace(" ", "-")


def measure(bench: Bench, names: Sequence[str]) -> Iterator[Row]:
    for name in names:
        yield large(bench, name)
        yield small(bench, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--only", choices=FORMS, help="one form")
    options = parser.parse_args()
    healthy = [log[: 4 << 20].splitlines(keepends=True) for log in logs.healthy().values()]
    replayed = list(islice(healthy[:: max(1, len(healthy) // CONNECTIONS)], CONNECTIONS))
    say(f"{os.cpu_count()} cores, {len(replayed)} logs replayed\n\n| what | must | measured |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder, service(Path(folder), **PUT_OFF) as server:
        server.start()
        bench = Bench(server, replayed, 0.1 if options.quick else 1.0)
        bench.rest()
        for row in measure(bench, [options.only] if options.only else list(FORMS)):
            say(f"| {row.name} | {row.must} | {row.measured} |")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
