"""Deltas as bytes: one version byte, then JSON under zstd. Unlike a pickle, it cannot carry code.

Each shape and the share of each stream is a line of the JSON, and read by itself: the parser takes twelve times the
memory of what it reads at once.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from heapq import merge
from io import BufferedReader
from itertools import chain, groupby, starmap
from operator import itemgetter
from typing import Any

import orjson
import zstandard

from diagnoser.compress.delta import LEAST, Delta, PointRow, RowColumns, StreamDelta, TemplateStats, join
from diagnoser.compress.limits import DEFAULT_LIMITS, CompressorLimits
from diagnoser.model import Cap, Provenance, Stream
from diagnoser.model.errors import BadInput
from diagnoser.structure.progress import Point

VERSION = 4
_READ = frozenset({3, VERSION})
"""Version 3 did not know who vouches for a stream: its lines count as the job's own."""
_SHAPES, _SHARES = b',"shapes":[\n', b',"shares":[\n'
_Entries = Iterable[list[Any]]
_AT_ONCE = 16
"""Deltas that are read together: of the others nothing is in memory yet."""
_BUFFER = 64 << 10
"""Bytes of text of a delta that are read at once."""
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
    shapes = (_stat(key, stat, index_of) for key, stat in sorted(delta.shapes.items()))
    shares = map(_share, map(delta.shares.__getitem__, streams))
    pressed = zstandard.ZstdCompressor(level=3).compressobj()
    parts = [bytes([VERSION]), pressed.compress(orjson.dumps(head)[:-1] + _SHAPES)]
    parts += map(pressed.compress, _lines(shapes))
    parts.append(pressed.compress(b"]" + _SHARES))
    parts += map(pressed.compress, _lines(shares))
    return b"".join((*parts, pressed.compress(b"]}"), pressed.flush()))


def _lines(values: Iterable[list[Any]]) -> Iterator[bytes]:
    """Each value as a line, made when it is taken, which begins with a comma unless it is the first."""
    comma = b""
    for value in values:
        yield comma + orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
        comma = b","


def from_bytes(data: bytes, limits: CompressorLimits = DEFAULT_LIMITS) -> Delta:
    """Raises BadInput when the bytes are no delta of this version."""
    return read_together([data], limits)


def read_together(pieces: Sequence[bytes], limits: CompressorLimits = DEFAULT_LIMITS) -> Delta:
    """All deltas as one, which must be brought under its limits where they are several. Raises BadInput."""
    delta = None
    for start in range(0, len(pieces), _AT_ONCE):
        try:
            part = _merged(list(map(_parts, pieces[start : start + _AT_ONCE])), limits)
        except (zstandard.ZstdError, KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise BadInput(f"not a delta: {error}") from error
        if delta is None:
            delta = part
        else:
            delta.add(part)
    return delta or Delta(limits)


def _parts(data: bytes) -> tuple[dict[str, Any], _Entries, _Entries]:
    """What the JSON says of the whole log, its shapes and the shares of its streams, each read when it is taken."""
    version = data[0] if data else "none"
    if version not in _READ:
        raise BadInput(f"a delta of version {version}; this service reads version {VERSION}")
    if zstandard.frame_content_size(data[1:]) > _MOST:
        raise ValueError("too large")
    text = BufferedReader(zstandard.ZstdDecompressor().stream_reader(memoryview(data)[1:]), _BUFFER)
    head = text.readline()
    if not head.endswith(_SHAPES):  # as older releases wrote it: without these line ends
        body = orjson.loads(head)
        return body, body["shapes"], body["shares"]
    # The shapes are read before the shares: both are what the next lines say.
    return orjson.loads(head.removesuffix(_SHAPES) + b"}"), _values(text), _values(text)


def _values(lines: Iterable[bytes]) -> Iterator[list[Any]]:
    """The values up to the end of their list, one a line, which begins with the comma that makes all of it one JSON."""
    for line in lines:
        if line.startswith(b"]"):
            return
        yield orjson.loads(line.removeprefix(b","))


def _merged(parts: Sequence[tuple[dict[str, Any], _Entries, _Entries]], limits: CompressorLimits) -> Delta:
    """Read deltas stream by stream: what several of them hold of one becomes one share at once."""
    delta, read = Delta(limits), _Read()
    shares = []
    for body, shapes, own_shares in parts:
        lines, size, cut_lines, cut_bytes, painted, caps = body["sums"]
        delta.add(Delta(limits, lines, size, cut_lines, cut_bytes, painted, set(map(Cap, caps))))
        places = [(*place, Provenance.JOB)[:4] for place in body["streams"]]
        streams = list(starmap(read.stream, places))
        for key, *fields in shapes:
            delta.add_shape(key, _stat_of(fields, streams))
        shares.append(zip(places, own_shares, strict=True))
    for place, of_stream in groupby(merge(*shares, key=itemgetter(0)), key=itemgetter(0)):
        delta.shares[read.stream(*place)] = _shared(read, list(map(itemgetter(1), of_stream)))
    return delta


def _stat_of(fields: list[Any], streams: Sequence[Stream]) -> TemplateStats:
    count, first, early, last, late, ranks, kind, filtered = fields
    first_place, last_place = (first[0], streams[first[1]]), (last[0], streams[last[1]])
    return TemplateStats(count, first_place, early.encode(), last_place, late.encode(), int(ranks, 16), kind, filtered)


def _stream(source: str, node: str, rank: int, provenance: str) -> Stream:
    return Stream(source, node, rank, Provenance(provenance))


def _share(share: StreamDelta) -> list[Any]:
    rows = [(row[0], row[1].decode("utf-8", "replace"), *row[2:]) for row in share.rows.ordered()]
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


class _Held(dict[Any, Any]):
    """Names, codes and tuples of them as they were first read, for thousands of ranks print the same lines. No floats:
    1 and 1.0 are equal."""

    def __missing__(self, value: Any) -> Any:
        if isinstance(value, tuple):
            value = tuple(map(self.__getitem__, value))
        self[value] = value
        return value


class _Read:
    """The values that were read so far."""

    def __init__(self) -> None:
        self.held = _Held()
        self.text: Callable[[str], bytes] = cache(str.encode)
        self.stream = cache(_stream)
        self._columns: dict[tuple[str, bytes], array[Any]] = {}

    def numbers(self, kind: str, values: Sequence[Any]) -> "array[Any]":
        """A column of bare numbers, one for all streams with the same."""
        column = array(kind, values)
        return self._columns.setdefault((kind, column.tobytes()), column)


def _shared(read: _Read, parts: Sequence[list[Any]]) -> StreamDelta:
    """The share of a stream. parts: its fields in each delta that has some."""
    ranges, rows, points, voices, nodes, least = map(chain.from_iterable, zip(*parts, strict=True))
    share = StreamDelta(join(map(tuple, ranges)), least=read.held[tuple(sorted(set(least))[:LEAST])])
    if by_number := {row[0]: row for row in sorted(rows, key=itemgetter(0))}:
        numbers, texts, *codes, times, received = zip(*by_number.values(), strict=True)
        held = map(read.held.__getitem__, (tuple(map(read.text, texts)), *codes))
        bare = map(read.numbers, "qdd", (numbers, times, received))
        share.rows = RowColumns((next(bare), *held, *bare))
    for number, voice, dialect, line, time, received, own in points:
        share.points[number] = PointRow(number, voice, dialect, read.text(line), time, received, _own_point(own))
    for voice, ranks in voices:
        share.voices[voice] = share.voices.get(voice, 0) | int(ranks, 16)
    for rank, weight, number, node in nodes:
        share.nodes[rank, weight] = max((number, node), share.nodes.get((rank, weight), (number, node)))
    return share


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
