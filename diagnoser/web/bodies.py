"""Reads bodies under three bounds: bytes on the wire, bytes after decompression, and bytes of all bodies at once.

No decoder is ever asked for more than the bound, so that a small body that unpacks to gigabytes costs no memory.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import cramjam
import zstandard

from diagnoser.errors import TooLarge, Unavailable, Undecodable, Unsupported
from diagnoser.web.services import Limits

INLINE_BYTES = 256 << 10
"""Smaller bodies are decompressed on the event loop: a thread would cost more."""

DECODERS_AT_ONCE = 2
ZSTD_WINDOW_BYTES = 8 << 20  # what RFC 9659 lets a sender use on the web
ZSTD_SLICE = 512
SNAPPY_FRAMED = b"\xff\x06\x00\x00sNaPpY"
SNAPPY_COMPRESSED, SNAPPY_PLAIN = 0, 1

Decoder = Callable[[bytes, int], bytes]
"""(body, bound in bytes) -> the decompressed body. Raises TooLarge or Undecodable."""


@dataclass(slots=True)
class _Load:
    """Bytes that one request holds."""

    size: int = 0


class Bodies:
    """Reads the bodies of all requests, and counts what they hold together: many at once cannot fill the memory."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held = 0
        self._decoding = asyncio.Semaphore(DECODERS_AT_ONCE)

    @asynccontextmanager
    async def read(self, chunks: AsyncIterator[bytes], encoding: str, declared: int | None) -> AsyncIterator[bytes]:
        """The decompressed body, counted as held until the block ends.

        ``encoding`` is the Content-Encoding, ``declared`` the Content-Length. Raises Unsupported, TooLarge,
        Undecodable, or Unavailable when other requests hold too much.
        """
        decode, load = _decoder(encoding), _Load()
        try:
            if decode is None:
                yield await self._collect(chunks, declared, self._limits.body_bytes, load)
            else:
                raw = await self._collect(chunks, declared, self._limits.wire_bytes, load)
                body = await self._decode(decode, raw)
                self._hold(load, len(body))
                yield body
        finally:
            self._held -= load.size

    async def _collect(self, chunks: AsyncIterator[bytes], declared: int | None, limit: int, load: _Load) -> bytes:
        if declared is not None and declared > limit:
            raise _too_large(limit)
        body = bytearray()
        async for chunk in chunks:
            self._hold(load, len(chunk))
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
        return bytes(body)

    async def _decode(self, decode: Decoder, raw: bytes) -> bytes:
        if len(raw) <= INLINE_BYTES:
            return decode(raw, self._limits.body_bytes)
        async with self._decoding:
            return await asyncio.to_thread(decode, raw, self._limits.body_bytes)

    def _hold(self, load: _Load, size: int) -> None:
        if self._held + size > self._limits.flight_bytes:
            raise Unavailable("too many large bodies arrive at once")
        load.size += size
        self._held += size


def gunzip(raw: bytes, limit: int) -> bytes:
    """All members of a gzip file, at most ``limit`` bytes."""
    parts, size = [], 0
    try:
        while raw:
            member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
            part = member.decompress(raw, limit - size + 1)
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            if not member.eof:
                raise Undecodable("the gzip body ends too early")
            parts.append(part)
            raw = member.unused_data
    except zlib.error as error:
        raise Undecodable(f"the body is not gzip: {error}") from None
    return b"".join(parts)


def unzstd(raw: bytes, limit: int) -> bytes:
    """All frames of a zstd body, at most ``limit`` bytes.

    Fed by small slices, because this decoder takes no bound on what one call returns: a slice of ``ZSTD_SLICE`` bytes
    holds at most ``ZSTD_SLICE / 4`` blocks of 128 KiB. (The reader that takes a bound hides a body that ends early.)
    """
    parts: list[bytes] = []
    size, at = 0, 0
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
    frame = decompressor.decompressobj()
    try:
        while at < len(raw):
            if frame.eof:
                frame = decompressor.decompressobj()
            parts.append(frame.decompress(raw[at : at + ZSTD_SLICE]))
            at = min(at + ZSTD_SLICE, len(raw)) - len(frame.unused_data)
            size += len(parts[-1])
            if size > limit:
                raise _too_large(limit)
    except zstandard.ZstdError as error:
        raise Undecodable(f"the body is not zstd: {error}") from None
    if raw and not frame.eof:
        raise Undecodable("the zstd body ends too early")
    return b"".join(parts)


def unsnappy(raw: bytes, limit: int) -> bytes:
    """Snappy in either of its forms: one block (as Prometheus and Loki clients send it) or framed."""
    framed = raw.startswith(SNAPPY_FRAMED)
    try:
        size = _framed_size(raw) if framed else cramjam.snappy.decompress_raw_len(raw)
        if size > limit:
            raise _too_large(limit)
        return bytes(cramjam.snappy.decompress(raw) if framed else cramjam.snappy.decompress_raw(raw))
    except cramjam.DecompressionError as error:
        raise Undecodable(f"the body is not snappy: {error}") from None


def _framed_size(raw: bytes) -> int:
    """What the chunks of a framed body say they unpack to (type, 3 bytes of length, 4 of checksum, data)."""
    size, at = 0, 0
    while at + 4 <= len(raw):
        length = int.from_bytes(raw[at + 1 : at + 4], "little")
        if raw[at] == SNAPPY_COMPRESSED:
            size += cramjam.snappy.decompress_raw_len(raw[at + 8 : at + 4 + length])
        elif raw[at] == SNAPPY_PLAIN:
            size += length - 4
        at += 4 + length
    return size


def _decoder(encoding: str) -> Decoder | None:
    name = encoding.strip().lower()
    if name not in DECODERS:
        raise Unsupported(f"Content-Encoding {name[:40]!r} is not one of {', '.join(DECODERS)}")
    return DECODERS[name]


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body holds more than {limit} bytes: send it in smaller parts")


DECODERS: dict[str, Decoder | None] = {
    "identity": None,
    "gzip": gunzip,
    "x-gzip": gunzip,
    "zstd": unzstd,
    "snappy": unsnappy,
}
