"""A log store that answers as Loki and VictoriaLogs document it: no package that tests can use has either."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson

from tests.ports import free_port

Entry = tuple[int, str, str]
"""Nanoseconds, job and line."""


@dataclass
class LogStore:
    """entries: in no order. authorization: the header that it wants. status: of all answers, where not 200."""

    entries: list[Entry] = field(default_factory=list)
    authorization: str = ""
    status: int = 200
    questions: int = 0

    def selected(self, start: int, end: int, limit: int) -> list[Entry]:
        inside = [entry for entry in self.entries if start <= entry[0] < end]
        return sorted(inside, key=lambda entry: entry[0])[:limit]

    def answer(self, path: str, query: dict[str, str]) -> bytes:
        if path == "/loki/api/v1/query_range":
            return loki_answer(self.selected(int(query["start"]), int(query["end"]), int(query["limit"])))
        assert path == "/select/logsql/query", path
        start, end = (_nanoseconds(query[name]) for name in ("start", "end"))
        return victorialogs_answer(self.selected(start, end, int(query["limit"])))


def loki_answer(entries: list[Entry]) -> bytes:
    """Streams of equal labels. The level that a Loki guesses from each line makes streams of its own."""
    streams = []
    labelled = sorted(entries, key=lambda entry: (entry[1], len(entry[2]) % 2))
    for (job, level), group in groupby(labelled, key=lambda entry: (entry[1], len(entry[2]) % 2)):
        labels = {"diagnoser_job": job, "detected_level": ("info", "error")[level], "service_name": "unknown_service"}
        streams.append({"stream": labels, "values": [[str(time), line] for time, _, line in group]})
    return orjson.dumps({"status": "success", "data": {"resultType": "streams", "result": streams, "stats": {}}})


def victorialogs_answer(entries: list[Entry]) -> bytes:
    rows = []
    for time, job, line in sorted(entries, key=lambda entry: -entry[0]):
        written = f"{datetime.fromtimestamp(time // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{time % 10**9:09d}".rstrip("0") + "Z"
        stream = f'{{diagnoser_job="{job}"}}'
        row = {"_msg": line, "_stream": stream, "_stream_id": "0000", "_time": written, "diagnoser_job": job}
        rows.append(orjson.dumps(row) + b"\n")
    return b"".join(rows)


def _nanoseconds(written: str) -> int:
    seconds, _, rest = written.rstrip("Z").partition(".")
    return int(datetime.fromisoformat(seconds).replace(tzinfo=UTC).timestamp()) * 10**9 + int(rest)


@contextmanager
def serving(store: LogStore, port: int = 0) -> Iterator[str]:
    """Its address. port: any free one by default."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            store.questions += 1
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            status, body = store.status, b"no such thing"
            if self.headers.get("Authorization", "") != store.authorization:
                status = 401
            elif status == 200:
                body = store.answer(parts.path, query)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port or free_port()), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
