"""Deltas as bytes: one version byte, then JSON under zstd. Unlike a pickle, it cannot carry code.

Each shape and the share of each stream is a line of the JSON, and read by itself: the parser takes twelve times the
memory of what it reads at once.
"""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import starmap
from typing import Any

import orjson
import zstandard

from diagnoser.compress.delta import Delta, DeltaRow, PointRow, StreamDelta, TemplateStats, row_of
from diagnoser.compress.limits import DEFAULT_LIMITS, CompressorLimits
from diagnoser.model import Cap, Provenance, Stream
from diagnoser.model.errors import BadInput
from diagnoser.structure.progress import Point

VERSION = 4
_READ = frozenset({3, VERSION})
"""Version 3 did not know who vouches for a stream: its lines count as the job's own."""
_SHAPES, _SHARES = b',"shapes":[\n', b',"shares":[\n'
_Read = Iterable[list[Any]]
_ROW, _POINT = len(DeltaRow._fields), len(PointRow._fields)
_MOST = 512 << 20
"""Largest unpacked delta in bytes: far above what the limits allow."""


def to_bytes(delta: Delta) -> bytes:
    """The same delta always gives the same bytes, however it was merged."""
    streams = sorted(delta.shares)
    index_of = dict(zip(streams, range(len(streams)), strict=True))
    head = {
        "streams": [[stream.source, stream.node, stream.rank, stream.provenance] for stream in streams],
        "sums": [delta.lines, delta.bytes, delta.cut_lines, delta.cut_bytes, delta.painted, sorted(delta.caps)],
    }
    shapes = [_line(_stat(key, stat, index_of)) for key, stat in sorted(delta.shapes.items())]
    shares = [_line(_share(delta.shares[stream])) for stream in streams]
    text = b"".join((orjson.dumps(head)[:-1], _SHAPES, b",".join(shapes), b"]", _SHARES, b",".join(shares), b"]}"))
    return bytes([VERSION]) + zstandard.ZstdCompressor(level=3).compress(text)


def _line(value: list[Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def from_bytes(data: bytes, limits: CompressorLimits = DEFAULT_LIMITS) -> Delta:
    """Raises BadInput when the bytes are no delta of this version."""
    if not data or data[0] not in _READ:
        raise BadInput(f"a delta of version {data[0] if data else 'none'}; this service reads version {VERSION}")
    try:
        text = zstandard.ZstdDecompressor().decompress(data[1:], max_output_size=_MOST)
        return _delta(*_parts(text), limits)
    except (zstandard.ZstdError, orjson.JSONDecodeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise BadInput(f"not a delta: {error}") from error


def _parts(text: bytes) -> tuple[dict[str, Any], _Read, _Read]:
    """What the JSON says of the whole log, its shapes and the shares of its streams, each read when it is taken."""
    shapes, shares = text.find(_SHAPES), text.find(_SHARES)
    if shapes < 0:  # as older releases wrote it: without these line ends
        body = orjson.loads(text)
        return body, body["shapes"], body["shares"]
    streams = _lines(text, shares + len(_SHARES), len(text))
    return orjson.loads(text[:shapes] + b"}"), _lines(text, shapes + len(_SHAPES), shares), streams


def _lines(text: bytes, start: int, stop: int) -> Iterator[list[Any]]:
    """start: of the first value. The others begin with the comma that makes all of it one JSON."""
    view = memoryview(text)
    while (end := text.find(b"\n", start, stop)) >= 0:
        yield orjson.loads(view[start + text.startswith(b",", start) : end])
        start = end + 1


def _delta(body: dict[str, Any], shapes: _Read, shares: _Read, limits: CompressorLimits) -> Delta:
    streams = list(starmap(_stream, body["streams"]))
    lines, size, cut_lines, cut_bytes, painted, caps = body["sums"]
    delta = Delta(limits, lines, size, cut_lines, cut_bytes, painted, set(map(Cap, caps)))
    for key, count, first, early, last, late, ranks, kind, filtered in shapes:
        first_place, last_place = (first[0], streams[first[1]]), (last[0], streams[last[1]])
        delta.shapes[key] = TemplateStats(
            count, first_place, early.encode(), last_place, late.encode(), int(ranks, 16), kind, filtered
        )
    delta.shares = dict(zip(streams, map(partial(_shared, _Values()), shares), strict=True))
    return delta


def _stream(source: str, node: str, rank: int, provenance: str = Provenance.JOB) -> Stream:
    return Stream(source, node, rank, Provenance(provenance))


def _share(share: StreamDelta) -> list[Any]:
    ordered = map(share.rows.__getitem__, sorted(share.rows))
    rows = [(row[0], row[1].decode("utf-8", "replace"), *row[2:]) for row in ordered]
    points = list(map(_point, map(share.points.__getitem__, sorted(share.points))))
    voices = [[voice, f"{ranks:x}"] for voice, ranks in sorted(share.voices.items())]
    return [
        share.ranges,
        rows,
        points,
        voices,
        [[*key, *node] for key, node in sorted(share.nodes.items())],
        share.least,
    ]


class _Texts(dict[str, bytes]):
    """Text as JSON has it -> as a row has it, encoded once."""

    def __missing__(self, text: str) -> bytes:
        self[text] = encoded = text.encode()
        return encoded


class _Values:
    """The values of rows that were read so far: thousands of ranks print the same line at the same time, and an equal
    value is held once. Each kind has its own, for 1 and 1.0 are equal."""

    def __init__(self) -> None:
        self.texts = _Texts()
        self._known: tuple[dict[Any, Any], ...] = tuple({} for _ in DeltaRow._fields[2:])

    def row_columns(self, rows: list[list[Any]]) -> Iterator[tuple[Any, ...]]:
        """The columns of a stream's rows."""
        numbers, texts, *others = _columns(rows, _ROW)
        yield numbers
        yield tuple(map(self.texts.__getitem__, texts))
        for known, values in zip(self._known, others, strict=True):
            yield tuple(map(known.setdefault, values, values))


def _shared(values: _Values, fields: list[Any]) -> StreamDelta:
    ranges, rows, points, voices, nodes, least = fields
    share = StreamDelta(tuple(map(tuple, ranges)), least=tuple(least))
    if rows:
        numbers, *others = values.row_columns(rows)
        share.rows = dict(zip(numbers, map(row_of, zip(numbers, *others, strict=True)), strict=True))
    if points:
        numbers, speakers, dialects, lines, *times, own = _columns(points, _POINT)
        encoded = map(values.texts.__getitem__, lines)
        columns = zip(numbers, speakers, dialects, encoded, *times, map(_own_point, own), strict=True)
        share.points = dict(zip(numbers, map(PointRow._make, columns), strict=True))
    share.voices = {voice: int(ranks, 16) for voice, ranks in voices}
    share.nodes = {(rank, weight): (number, node) for rank, weight, number, node in nodes}
    return share


def _columns(rows: list[list[Any]], count: int) -> list[tuple[Any, ...]]:
    columns = list(zip(*rows, strict=True))
    if len(columns) != count:
        raise ValueError(f"rows of {len(columns)} fields instead of {count}")
    return columns


def _own_point(own: list[Any] | None) -> Point | None:
    if not own:
        return None
    return Point(*map(_value, own[:5]), *own[5:])


def _stat(key: int, stat: TemplateStats, index_of: dict[Stream, int]) -> list[Any]:
    first, last = [stat.first[0], index_of[stat.first[1]]], [stat.last[0], index_of[stat.last[1]]]
    ranks = f"{stat.ranks:x}"
    early, late = stat.first_text.decode("utf-8", "replace"), stat.last_text.decode("utf-8", "replace")
    return [key, stat.count, first, early, last, late, ranks, stat.kind, stat.filtered]


def _point(row: PointRow) -> list[Any]:
    own = list(map(_plain, row.own)) if row.own else None
    return [row.number, row.voice, row.dialect, row.line.decode("utf-8", "replace"), row.time, row.received, own]


def _plain(value: Any) -> Any:
    """As a string: JSON has no NaN, and it must not become "not printed"."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


def _value(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
