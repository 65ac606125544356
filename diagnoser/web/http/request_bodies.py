"""Reads request bodies within three limits: bytes sent, bytes decompressed, and bytes of all bodies together.

No decoder may return more than the limit at once, so a small body that unpacks to gigabytes costs no memory.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import cramjam
import zstandard

from diagnoser.model.errors import TooLarge, Unavailable, Undecodable, Unsupported
from diagnoser.web.http.services import RequestLimits

INLINE_BYTES = 256 << 10
"""Smaller bodies are decompressed on the event loop: a thread would cost more."""

DECODERS_AT_ONCE = 2
ZSTD_WINDOW_BYTES = 8 << 20  # what RFC 9659 lets a sender use on the web
ZSTD_SLICE = 512
GZIP_SLICE = 16 << 10
MEMBERS_LIMIT = 10_000
SNAPPY_FRAMED = b"\xff\x06\x00\x00sNaPpY"
SNAPPY_COMPRESSED, SNAPPY_PLAIN = 0, 1

Decoder = Callable[[bytes, int], bytes]
"""(body, bound in bytes) -> the decompressed body. Raises TooLarge or Undecodable."""


@dataclass(slots=True)
class _Load:
    """Bytes that one request holds."""

    size: int = 0


class Bodies:
    """Reads the bodies of all requests and limits their total size in memory."""

    def __init__(self, limits: RequestLimits) -> None:
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


class _Member(Protocol):
    """A decompressor of one gzip member or zstd frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def gunzip(raw: bytes, limit: int) -> bytes:
    """All members of a gzip body, at most ``limit`` bytes."""
    try:
        return _unpack(raw, limit, lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS), GZIP_SLICE)
    except zlib.error as error:
        raise Undecodable(f"the body is not gzip: {error}") from None


def inflate(raw: bytes, limit: int) -> bytes:
    """A deflate body, at most ``limit`` bytes: zlib, as the standard says, or without its header, as Loki's clients
    and some others send it."""
    bits = -zlib.MAX_WBITS
    if len(raw) > 1 and raw[0] & 0x0F == zlib.DEFLATED and not int.from_bytes(raw[:2], "big") % 31:
        bits = zlib.MAX_WBITS  # a header of zlib: the method, and a check of its two bytes
    try:
        return _unpack(raw, limit, lambda: zlib.decompressobj(wbits=bits), GZIP_SLICE)
    except zlib.error as error:
        raise Undecodable(f"the body is not deflate: {error}") from None


def unzstd(raw: bytes, limit: int) -> bytes:
    """All frames of a zstd body, at most ``limit`` bytes."""
    frames = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
    try:
        return _unpack(raw, limit, frames.decompressobj, ZSTD_SLICE)
    except zstandard.ZstdError as error:
        raise Undecodable(f"the body is not zstd: {error}") from None


def _unpack(raw: bytes, limit: int, begin: Callable[[], _Member], step: int) -> bytes:
    """Feeds slices of ``step`` bytes, so that what one call can return is bounded: 1032 times that for gzip, 32 KiB
    times that for zstd. The number of members is bounded too, because empty ones would cost unbounded time.
    """
    parts: list[bytes] = []
    size = position = members = 0
    member = None
    while position < len(raw):
        if member is None or member.eof:
            member, members = begin(), members + 1
            if members > MEMBERS_LIMIT:
                raise Undecodable(f"the body has more than {MEMBERS_LIMIT} compressed parts")
        parts.append(member.decompress(raw[position : position + step]))
        position = min(position + step, len(raw)) - len(member.unused_data)
        size += len(parts[-1])
        if size > limit:
            raise _too_large(limit)
    if member is not None and not member.eof:
        raise Undecodable("the body ends before its compressed data does")
    return b"".join(parts)


def unsnappy(raw: bytes, limit: int) -> bytes:
    """Snappy in either of its forms: one block (as Prometheus and Loki clients send it) or framed."""
    size_of: Callable[[bytes], int] = cramjam.snappy.decompress_raw_len
    decompress = cramjam.snappy.decompress_raw
    if raw.startswith(SNAPPY_FRAMED):
        size_of, decompress = _framed_size, cramjam.snappy.decompress
    try:
        if size_of(raw) > limit:
            raise _too_large(limit)
        return bytes(decompress(raw))
    except cramjam.DecompressionError as error:
        raise Undecodable(f"the body is not snappy: {error}") from None


def _framed_size(raw: bytes) -> int:
    """Size the chunk headers of a framed body declare (type, 3 bytes of length, 4 of checksum, data)."""
    size, position = 0, 0
    while position + 4 <= len(raw):
        length = int.from_bytes(raw[position + 1 : position + 4], "little")
        if raw[position] == SNAPPY_COMPRESSED:
            size += cramjam.snappy.decompress_raw_len(raw[position + 8 : position + 4 + length])
        elif raw[position] == SNAPPY_PLAIN:
            size += length - 4
        position += 4 + length
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
    "deflate": inflate,
}
