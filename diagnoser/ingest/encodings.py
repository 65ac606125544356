"""Decoders of compressed bodies. None returns more than its limit, so that a small body cannot unpack to gigabytes.

Two libraries: only zstandard bounds the window of a frame and what one call returns, and only cramjam has snappy.
"""

import zlib
from collections.abc import Callable
from typing import Protocol

import cramjam
import zstandard

from diagnoser.model.errors import TooLarge, Undecodable, Unsupported

ZSTD_WINDOW_BYTES = 8 << 20  # what RFC 9659 lets a sender use on the web
ZSTD_SLICE = 512
GZIP_SLICE = 16 << 10
MEMBERS_LIMIT = 10_000
SNAPPY_FRAMED = b"\xff\x06\x00\x00sNaPpY"
SNAPPY_COMPRESSED, SNAPPY_PLAIN = 0, 1

Decoder = Callable[[bytes, int], bytes]
"""(body, bound in bytes) -> the decompressed body. Raises TooLarge or Undecodable."""


class _Member(Protocol):
    """A decompressor of one gzip member or zstd frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def gunzip(raw: bytes, limit: int) -> bytes:
    try:
        return _unpack(raw, limit, lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS), GZIP_SLICE)
    except zlib.error as error:
        raise Undecodable(f"the body is not gzip: {error}") from None


def inflate(raw: bytes, limit: int) -> bytes:
    """A deflate body, at most ``limit`` bytes: zlib, as the standard says, or without its header, as Loki's clients
    and some others send it."""
    bits = zlib.MAX_WBITS if _has_zlib_header(raw) else -zlib.MAX_WBITS
    try:
        return _unpack(raw, limit, lambda: zlib.decompressobj(wbits=bits), GZIP_SLICE)
    except zlib.error as error:
        raise Undecodable(f"the body is not deflate: {error}") from None


def _has_zlib_header(raw: bytes) -> bool:
    if len(raw) < 2:
        return False
    if raw[0] & 0x0F != zlib.DEFLATED:
        return False
    return int.from_bytes(raw[:2], "big") % 31 == 0


def unzstd(raw: bytes, limit: int) -> bytes:
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
            raise too_large(limit)
    if member is not None and not member.eof:
        raise Undecodable("the body ends before its compressed data does")
    return b"".join(parts)


def unsnappy(raw: bytes, limit: int) -> bytes:
    """Snappy in either of its forms: one block (as Prometheus and Loki clients send it) or framed."""
    size_of: Callable[[bytes], int] = _framed_size
    unpack: Callable[[bytes], cramjam.Buffer] = cramjam.snappy.decompress
    if not raw.startswith(SNAPPY_FRAMED):
        size_of, unpack = cramjam.snappy.decompress_raw_len, cramjam.snappy.decompress_raw
    try:
        size = size_of(raw)
        if size > limit:
            raise too_large(limit)
        return bytes(unpack(raw))
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


def decoder(encoding: str | None) -> Decoder | None:
    """Of a Content-Encoding; None where the body came as it is. Raises Unsupported."""
    if encoding is None:
        return None
    name = encoding.strip().lower()
    if name not in DECODERS:
        raise Unsupported(f"Content-Encoding {name[:40]!r} is not one of {', '.join(DECODERS)}")
    return DECODERS[name]


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body holds more than {limit} bytes: send it in smaller parts")


DECODERS: dict[str, Decoder | None] = {
    "identity": None,
    "gzip": gunzip,
    "x-gzip": gunzip,
    "zstd": unzstd,
    "snappy": unsnappy,
    "deflate": inflate,
}
