"""Reads request bodies within three limits: bytes sent, bytes decompressed, and bytes of all bodies together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request

from diagnoser.ingest.encodings import Decoder, too_large
from diagnoser.model.errors import Unavailable

WIRE_BYTES = BODY_BYTES = 64 << 20
"""Of a body as it is sent, and after decompression."""
FLIGHT_BYTES = 256 << 20
"""Of all bodies that are being read or wait for their commit."""
INLINE_BYTES = 256 << 10
"""Smaller bodies are decompressed on the event loop: a thread would cost more."""

DECODERS_AT_ONCE = 2


@dataclass(slots=True)
class _Load:
    """Bytes that one request holds."""

    size: int = 0


class Bodies:
    """Reads the bodies of all requests and limits their total size in memory."""

    def __init__(self) -> None:
        self._held = 0
        self._decoding = asyncio.Semaphore(DECODERS_AT_ONCE)

    @asynccontextmanager
    async def read(
        self, chunks: AsyncIterator[bytes], decode: Decoder | None, declared: int | None
    ) -> AsyncIterator[bytes]:
        """The decompressed body, counted as held until the block ends.

        decode: of its encoding, None where it came as it is.

        declared: its Content-Length.

        Raises TooLarge, Undecodable, or Unavailable when other requests hold too much.
        """
        load = _Load()
        try:
            if decode is None:
                yield await self._collect(chunks, declared, BODY_BYTES, load)
            else:
                raw = await self._collect(chunks, declared, WIRE_BYTES, load)
                body = await self._decode(decode, raw)
                self._hold(load, len(body))
                yield body
        finally:
            self._held -= load.size

    async def _collect(self, chunks: AsyncIterator[bytes], declared: int | None, limit: int, load: _Load) -> bytes:
        if declared is not None and declared > limit:
            raise too_large(limit)
        body = bytearray()
        async for chunk in chunks:
            self._hold(load, len(chunk))
            body += chunk
            if len(body) > limit:
                raise too_large(limit)
        return bytes(body)

    async def _decode(self, decode: Decoder, raw: bytes) -> bytes:
        if len(raw) <= INLINE_BYTES:
            return decode(raw, BODY_BYTES)
        async with self._decoding:
            return await asyncio.to_thread(decode, raw, BODY_BYTES)

    def _hold(self, load: _Load, size: int) -> None:
        if self._held + size > FLIGHT_BYTES:
            raise Unavailable("too many large bodies arrive at once")
        load.size += size
        self._held += size


def declared_length(request: Request) -> int | None:
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() else None
