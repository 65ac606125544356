"""The HTTP server's protocol with bounds on what a client may cost before anybody knows who it is.

uvicorn bounds neither the size of a request's head nor the time that it takes, and counts connections only once a
request is complete. Here a connection that has no complete head yet costs at most ``HEAD_BYTES`` and one read of the
socket, lives for ``head_seconds``, and is the first to go when there are too many.
"""

import asyncio
import resource
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from diagnoser.web.http.answer_headers import ENCODED

HEAD_BYTES = 64 << 10
"""Bytes of a request line with its headers, and of anything else that is no body: trailers, chunk extensions."""

RESERVED_FILES = 128
"""Open files that connections leave to the database, to log files and to outgoing requests."""

BODY_SECONDS = 75.0
"""Silence within a body. An answer may take any time."""
_FIELD_BYTES = 4
"""A colon, a blank and a line end for each header."""
_SECURITY = b"".join(b"%s: %s\r\n" % pair for pair in ENCODED)


class _HeadTooLarge(Exception):
    """Ends the parsing of a request."""


class BoundedProtocol(HttpToolsProtocol):
    """Answers 431 to a head that is too large, 408 to one that is too slow, 503 where all connections are busy."""

    most: ClassVar[int]
    """Connections at a time."""
    head_seconds: ClassVar[float]
    """From the first byte of a request to the end of its headers."""
    waiting: ClassVar[dict["BoundedProtocol", None]]
    """Connections without a complete head, idle ones among them; the one that has waited longest comes first."""

    _timer: asyncio.TimerHandle | None = None
    _in_head = False
    _in_body = False
    _head_bytes = 0
    """Bytes of the headers that are complete."""
    _other_bytes = 0
    """Bytes since the last head or part of a body was complete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waiting[self] = None
        self._restart(self.head_seconds)
        if len(self.connections) > self.most:
            oldest = next(iter(self.waiting))
            del self.waiting[oldest]
            if oldest is self:
                self.refuse(503, "Too many connections are busy.")
            else:  # an answer that nobody asked for could be taken for that to the next request
                oldest.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.waiting.pop(self, None)
        self._stop()

    def data_received(self, data: bytes) -> None:
        if self._in_body:
            self._restart(BODY_SECONDS)
        elif self._timer is None:
            self._restart(self.head_seconds)
        self._other_bytes += len(data)
        super().data_received(data)
        if self._other_bytes > HEAD_BYTES:
            self._refuse_size()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        if self._timer is None:
            self._restart(self.head_seconds)

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + _FIELD_BYTES)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.waiting.pop(self, None)
        self._in_head, self._in_body, self._other_bytes = False, True, 0
        self._restart(BODY_SECONDS)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._other_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._other_bytes = False, 0
        self._stop()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and not self.transport.is_closing():
            self.waiting[self] = None

    def send_400_response(self, msg: str) -> None:
        """Called for whatever the parser does not take, our own exception included."""
        if self._head_bytes > HEAD_BYTES:
            self._refuse_size()
        else:
            self.refuse(400, msg)

    def refuse(self, status: int, why: str) -> None:
        """Closes the connection, with an answer unless that to an earlier request is under way."""
        if self.transport.is_closing():
            return
        if self._can_answer():
            if self.cycle is not None:
                self.cycle.disconnected = True  # what the application says from now on is not sent
            text = why.encode()
            head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n"
            self.transport.write(STATUS_LINE[status] + head % len(text) + _SECURITY + b"\r\n" + text)
        self.transport.close()

    def _can_answer(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None:
            return True
        if not self._in_body:
            return cycle.response_complete
        if not cycle.response_started:
            return True
        return cycle.response_complete

    def _refuse_size(self) -> None:
        self.refuse(431, f"The head of a request may have {HEAD_BYTES} bytes.")

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            raise _HeadTooLarge

    def _restart(self, seconds: float) -> None:
        self._stop()
        self._timer = self.loop.call_later(seconds, self._expire)

    def _stop(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        """A body that waits for us, because reading is paused, is not late."""
        if self._in_body and self.flow.read_paused:
            self._restart(BODY_SECONDS)
        elif self._in_body or self._in_head:
            self.refuse(408, "The request took too long to arrive.")
        else:  # nothing was asked
            self.transport.close()


def bounded(connections: int, head_seconds: float) -> type[BoundedProtocol]:
    """The protocol of one server. Connections are kept below the number of files that the process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY:
        connections = max(min(connections, files - RESERVED_FILES), 1)
    limits = {"most": connections, "head_seconds": head_seconds, "waiting": {}}
    return type("BoundedProtocol", (BoundedProtocol,), limits)
