"""Reads the body of a request under two bounds: bytes on the wire, and bytes after decompression.

No decoder is ever asked for more than the bound, so that a small body that unpacks to gigabytes costs no memory.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable

import cramjam
import zstandard

from diagnoser.errors import TooLarge, Undecodable, Unsupported
from diagnoser.web.services import Limits

INLINE_BYTES = 256 << 10
"""Smaller bodies are decompressed on the event loop: a thread would cost more."""

ZSTD_WINDOW_BYTES = 8 << 20  # what RFC 9659 lets a sender use on the web
ZSTD_SLICE = 512
SNAPPY_FRAMED = b"\xff\x06\x00\x00sNaPpY"
SNAPPY_COMPRESSED, SNAPPY_PLAIN = 0, 1

Decoder = Callable[[bytes, int], bytes]
"""(body, bound in bytes) -> the decompressed body. Raises TooLarge or Undecodable."""


async def read_body(chunks: AsyncIterator[bytes], encoding: str, declared: int | None, limits: Limits) -> bytes:
    """The decompressed body. ``encoding`` is the Content-Encoding, ``declared`` the Content-Length.

    Raises Unsupported, TooLarge or Undecodable.
    """
    decode = _decoder(encoding)
    if decode is None:
        return await _bounded(chunks, declared, limits.body_bytes)
    raw = await _bounded(chunks, declared, limits.wire_bytes)
    if len(raw) <= INLINE_BYTES:
        return decode(raw, limits.body_bytes)
    return await asyncio.to_thread(decode, raw, limits.body_bytes)


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


async def _bounded(chunks: AsyncIterator[bytes], declared: int | None, limit: int) -> bytes:
    if declared is not None and declared > limit:
        raise _too_large(limit)
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body holds more than {limit} bytes: send it in smaller parts")


DECODERS: dict[str, Decoder | None] = {
    "identity": None,
    "gzip": gunzip,
    "x-gzip": gunzip,
    "zstd": unzstd,
    "snappy": unsnappy,
}
