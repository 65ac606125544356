"""A scripted OpenAI-compatible server on loopback: real HTTP, prepared answers and faults."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """content: what the model says. status: other than 200 is an error. wait: seconds before the answer."""

    content: str = ""
    status: int = 200
    wait: float = 0.0
    drop: bool = False
    raw: bytes | None = None


@dataclass
class ModelServer:
    url: str
    replies: list[Reply]
    asked: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def model_server(*replies: Reply) -> Iterator[ModelServer]:
    """Gives the replies in order; the last one again and again."""
    found = ModelServer("", list(replies))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            reply = found.replies.pop(0) if len(found.replies) > 1 else found.replies[0]
            time.sleep(reply.wait)
            if reply.drop:
                self.connection.close()
                return
            body = reply.raw if reply.raw is not None else json.dumps(_completion(reply.content)).encode()
            try:
                self.send_response(reply.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                """The client went away: that is what some tests want."""

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _completion(content: str) -> dict[str, Any]:
    return {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}],
        "usage": {"prompt_tokens": 900, "completion_tokens": 60, "total_tokens": 960},
    }
