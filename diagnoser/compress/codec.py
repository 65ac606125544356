"""Deltas as bytes: one version byte, then JSON under zstd. No code can hide in it, unlike in a pickle."""

import math
from typing import Any

import orjson
import zstandard

from diagnoser.compress.delta import Delta, Limits, PointRow, Row, Stat
from diagnoser.compress.progress import Point
from diagnoser.compress.shapes import Kind
from diagnoser.errors import BadInput
from diagnoser.model import Stream

VERSION = 1
_MOST = 512 << 20
"""Largest unpacked delta in bytes: far above what the limits let one become."""


def to_bytes(delta: Delta) -> bytes:
    """The same delta always gives the same bytes, however it was merged."""
    streams = sorted({*delta.ranges, *(stream for stream, _ in delta.voices)})
    at = {stream: index for index, stream in enumerate(streams)}
    body = {
        "streams": [[stream.source, stream.node, stream.rank] for stream in streams],
        "sums": [delta.lines, delta.bytes, delta.cut_lines, delta.cut_bytes, delta.crowded],
        "ranges": [[at[stream], ranges] for stream, ranges in sorted(delta.ranges.items())],
        "shapes": [_stat(key, stat, at) for key, stat in sorted(delta.shapes.items())],
        "rows": [
            [at[row.stream], row.number, row.text, row.voice, int(row.kind), row.signature, row.time, row.received]
            for _, row in sorted(delta.rows.items())
        ],
        "points": [
            [at[row.stream], row.number, row.voice, row.rank, row.time, [_plain(value) for value in row.point]]
            for _, row in sorted(delta.points.items())
        ],
        "voices": [[at[stream], voice, f"{ranks:x}"] for (stream, voice), ranks in sorted(delta.voices.items())],
    }
    return bytes([VERSION]) + zstandard.ZstdCompressor(level=3).compress(orjson.dumps(body))


def from_bytes(data: bytes, limits: Limits | None = None) -> Delta:
    """Raises BadInput when the bytes are no delta of this version."""
    if not data or data[0] != VERSION:
        raise BadInput(f"a delta of version {data[0] if data else 'none'}; this service reads version {VERSION}")
    try:
        body = orjson.loads(zstandard.ZstdDecompressor().decompress(data[1:], max_output_size=_MOST))
        return _delta(body, limits or Limits())
    except (zstandard.ZstdError, orjson.JSONDecodeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise BadInput(f"not a delta: {error}") from error


def _delta(body: dict[str, Any], limits: Limits) -> Delta:
    streams = [Stream(*fields) for fields in body["streams"]]
    lines, size, cut_lines, cut_bytes, crowded = body["sums"]
    delta = Delta(limits, lines, size, cut_lines, cut_bytes, crowded=crowded)
    delta.ranges = {streams[at]: tuple((low, high) for low, high in ranges) for at, ranges in body["ranges"]}
    for key, count, first, first_text, last, last_text, ranks, kind, filtered in body["shapes"]:
        first_place, last_place = (first[0], streams[first[1]]), (last[0], streams[last[1]])
        delta.shapes[key] = Stat(
            count, first_place, first_text, last_place, last_text, int(ranks, 16), Kind(kind), filtered
        )
    for at, number, text, voice, kind, mark, time, received in body["rows"]:
        delta.rows[number, streams[at]] = Row(streams[at], number, text, voice, Kind(kind), mark, time, received)
    for at, number, voice, rank, time, values in body["points"]:
        point = Point(*(_value(value) for value in values[:5]), *values[5:])
        delta.points[number, streams[at]] = PointRow(streams[at], number, voice, rank, time, point)
    delta.voices = {(streams[at], voice): int(ranks, 16) for at, voice, ranks in body["voices"]}
    return delta


def _stat(key: int, stat: Stat, at: dict[Stream, int]) -> list[Any]:
    first, last = [stat.first[0], at[stat.first[1]]], [stat.last[0], at[stat.last[1]]]
    ranks = f"{stat.ranks:x}"
    return [key, stat.count, first, stat.first_text, last, stat.last_text, ranks, int(stat.kind), stat.filtered]


def _plain(value: Any) -> Any:
    """JSON has no NaN: it must not turn into "not printed"."""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _value(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
