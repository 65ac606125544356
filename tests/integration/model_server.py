"""A scripted OpenAI-compatible server on loopback: real HTTP, prepared answers and faults."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

NEVER = 3600.0
"""Seconds that no client waits: the answer comes when the server ends."""


@dataclass
class Reply:
    """content: what the model says. status: other than 200 is an error. wait: seconds before the answer, or NEVER.

    tokens: of the question, as the server counts them. endless: the body is sent again and again, without a length.
    calls: tools that the model calls, each with its arguments as the model writes them.
    """

    content: str = ""
    status: int = 200
    wait: float = 0.0
    drop: bool = False
    raw: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 900
    endless: bool = False
    calls: Sequence[tuple[str, str]] = ()


Say = Callable[[dict[str, Any]], Reply]
"""A model: the request's body -> its reply."""


def refusal(message: str, status: int = 400) -> Reply:
    """An error as servers word it."""
    return Reply(status=status, raw=json.dumps({"error": {"message": message, "type": "invalid"}}).encode())


def in_turn(*replies: Reply) -> Say:
    """The replies in order; the last one again and again."""
    left = list(replies)
    lock = threading.Lock()

    def say(asked: dict[str, Any]) -> Reply:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return say


@dataclass
class ModelServer:
    """sent: bytes of bodies that the client took."""

    url: str
    sent: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    """Keeps the connection, as real servers do, until either side hangs up."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client went away between two questions
            super().handle()

    def hang_up(self) -> None:
        self.connection.close()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def model_server(
    say: Say, context: int | None = None, name: str = "scripted", models: Reply | None = None, *, many: bool = False
) -> Iterator[ModelServer]:
    """context: what /v1/models says about the length of a question. models: another answer of it. many: it gives as
    many answers at once as it is asked for; else one, as servers do that do not know the field."""
    found, ending = ModelServer(""), threading.Event()
    offered = {"id": name, "object": "model", "created": 1, "owned_by": "t"}
    listed = {"object": "list", "data": [offered | ({"max_model_len": context} if context else {})]}

    class Handler(_Handler):
        def do_GET(self) -> None:
            if models and models.drop:
                self.hang_up()
                return
            self.answer(models or Reply(raw=json.dumps(listed).encode()))

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.asked.append(asked)
            reply, *others = [say(asked) for _ in range(asked.get("n", 1) if many else 1)]
            if ending.wait(reply.wait) or reply.drop:
                self.hang_up()
                return
            self.answer(reply, *others)

        def answer(self, reply: Reply, *others: Reply) -> None:
            body = reply.raw if reply.raw is not None else json.dumps(_completion([reply, *others], name)).encode()
            try:
                self.send_response(reply.status)
                for header, value in {"Content-Type": "application/json", **reply.headers}.items():
                    self.send_header(header, value)
                self.send_header(*(("Connection", "close") if reply.endless else ("Content-Length", str(len(body)))))
                self.end_headers()
                for _ in count() if reply.endless else range(1):
                    found.sent += self.wfile.write(body)
            except OSError:
                """The client went away: that is what some tests want."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ending.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _completion(replies: Sequence[Reply], name: str) -> dict[str, Any]:
    """The tokens of the question are counted once, however many answers there are."""
    read, written = replies[0].tokens, 60 * len(replies)
    return {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1,
        "model": name,
        "choices": [_choice(index, reply) for index, reply in enumerate(replies)],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }


def _choice(index: int, reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.calls:
        functions = [{"name": tool, "arguments": arguments} for tool, arguments in reply.calls]
        message |= {"content": None, "tool_calls": [{"id": "x", "type": "function", "function": f} for f in functions]}
    return {"index": index, "finish_reason": "tool_calls" if reply.calls else "stop", "message": message}
