"""Bodies: every encoding reads back, every bound holds, every broken body is told."""

import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable

import cramjam
import pytest
import zstandard

from diagnoser.ingest.encodings import decoder, gunzip, inflate, unsnappy, unzstd
from diagnoser.model.errors import DiagnoserError, TooLarge, Unavailable, Undecodable, Unsupported
from diagnoser.web.http import request_bodies
from diagnoser.web.http.request_bodies import Bodies

TEXT = b"".join(b"step %d loss %d\n" % (number, number * 7 % 13) for number in range(5_000))


async def chunks(body: bytes, size: int = 1_000) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets some of wire_bytes, body_bytes and flight_bytes."""

    def bound(**most: int) -> None:
        for name, size in most.items():
            monkeypatch.setattr(request_bodies, name.upper(), size)

    return bound


async def read(body: AsyncIterator[bytes], encoding: str, declared: int | None = None) -> bytes:
    async with Bodies().read(body, decoder(encoding), declared) as found:
        return found


def snappy_block(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def snappy_frames(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress(data))


CODERS = [
    ("gzip", gzip.compress, gunzip),
    ("deflate", zlib.compress, inflate),
    ("deflate", lambda data: zlib.compress(data, wbits=-15), inflate),
    ("zstd", zstandard.compress, unzstd),
    ("snappy", snappy_block, unsnappy),
    ("snappy", snappy_frames, unsnappy),
]
Coder = Callable[[bytes], bytes]
Decoder = Callable[[bytes, int], bytes]


@pytest.mark.parametrize(("encoding", "encode", "decode"), CODERS)
async def test_every_encoding_reads_back(encoding: str, encode: Coder, decode: Decoder) -> None:
    """What was compressed comes out as it went in, however the network cuts it."""
    assert await read(chunks(encode(TEXT)), encoding) == TEXT


@pytest.mark.parametrize(("encoding", "encode", "decode"), CODERS)
def test_the_bound_is_exact(encoding: str, encode: Coder, decode: Decoder) -> None:
    """A body of exactly the bound passes, one byte more does not."""
    assert decode(encode(TEXT), len(TEXT)) == TEXT
    with pytest.raises(TooLarge):
        decode(encode(TEXT), len(TEXT) - 1)


@pytest.mark.parametrize(("encoding", "encode", "decode"), CODERS)
def test_a_body_that_ends_too_early_is_told(encoding: str, encode: Coder, decode: Decoder) -> None:
    """A transfer that broke off is refused as a whole: half of it would look like a log that ends there."""
    whole = encode(TEXT)
    for missing in (1, 7, len(whole) // 2):
        with pytest.raises(Undecodable):
            decode(whole[:-missing], 1 << 20)


@pytest.mark.parametrize(("encoding", "encode", "decode"), CODERS)
def test_garbage_is_told(encoding: str, encode: Coder, decode: Decoder) -> None:
    """Bytes that are not of the named encoding are refused with a sentence."""
    with pytest.raises(Undecodable, match=encoding):
        decode(b"step 1 loss 11.2\n" * 50, 1 << 20)


@pytest.mark.parametrize(("encode", "decode"), [(gzip.compress, gunzip), (zstandard.compress, unzstd)])
def test_members_in_a_row_are_one_body(encode: Coder, decode: Decoder) -> None:
    """Shippers that append compressed pieces to a file send several members: all of them count."""
    assert decode(encode(TEXT) + encode(b"last\n"), 1 << 20) == TEXT + b"last\n"


@pytest.mark.parametrize(("encode", "decode"), [(gzip.compress, gunzip), (zstandard.compress, unzstd)])
def test_a_bomb_costs_no_memory(encode: Coder, decode: Decoder) -> None:
    """A small body that unpacks to 256 MiB is refused long before that much is held."""
    bomb = encode(bytes(256 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            decode(bomb, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("encode", "decode"), [(gzip.compress, gunzip), (zstandard.compress, unzstd)])
def test_countless_empty_members_are_refused(encode: Coder, decode: Decoder) -> None:
    """A body that is nothing but beginnings and ends is not worked through."""
    assert decode(encode(b"") * 10_000, 1 << 20) == b""
    with pytest.raises(Undecodable, match="10000"):
        decode(encode(b"") * 10_001, 1 << 20)


def test_a_snappy_block_that_promises_too_much_is_refused_unread() -> None:
    """The length that a block announces is checked before memory is taken for it."""
    with pytest.raises(TooLarge):
        unsnappy(b"\xff\xff\xff\xff\x0f" + b"a" * 50, 1 << 20)


@pytest.mark.parametrize("encoding", ["br", "compress", "gzip, gzip", ""])
async def test_other_encodings_are_refused_by_name(encoding: str) -> None:
    """An encoding that is not read is a 415 that lists those that are."""
    with pytest.raises(Unsupported, match=r"identity.*gzip.*zstd.*snappy"):
        await read(chunks(TEXT), encoding)


@pytest.mark.parametrize("declared", [None, 300_000])
async def test_a_body_over_the_bound_is_not_read_to_its_end(declared: int | None, bounds: Callable[..., None]) -> None:
    """Reading stops at the bound, or before the first byte when the sender announces too many."""
    bounds(wire_bytes=200_000, body_bytes=200_000)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 50_000
            yield bytes(50_000)

    with pytest.raises(TooLarge):
        await read(endless(), "identity", declared)
    assert sent == (250_000 if declared is None else 0)


async def test_the_wire_bound_holds_for_compressed_bodies(bounds: Callable[..., None]) -> None:
    """A compressed body over the bound on the wire is refused, whatever it unpacks to."""
    bounds(wire_bytes=10_000)
    noise = zlib.compress(TEXT) * 20
    with pytest.raises(TooLarge):
        await read(chunks(noise), "gzip")


async def test_a_large_compressed_body_reads_back() -> None:
    """Above the size that goes to a thread the result is the same."""
    noise = bytes(number * number % 251 for number in range(3_000_000))
    packed = zstandard.compress(noise, 1) + skippable_frame()
    assert await read(chunks(packed, 65_536), "zstd") == noise


def skippable_frame() -> bytes:
    """A skippable zstd frame large enough to pass the size that goes to a thread."""
    return b"\x50\x2a\x4d\x18" + (300 << 10).to_bytes(4, "little") + bytes(300 << 10)


async def test_bodies_that_are_held_at_once_have_a_bound_together(bounds: Callable[..., None]) -> None:
    """While other requests hold too much a body is refused for now; once they are done the same body passes."""
    bounds(wire_bytes=10_000, body_bytes=10_000, flight_bytes=15_000)
    bodies = Bodies()
    small = gzip.compress(bytes(8_000))
    async with bodies.read(chunks(bytes(9_000)), None, None) as held:
        assert len(held) == 9_000
        for body, encoding in ((bytes(9_000), "identity"), (small, "gzip")):
            with pytest.raises(Unavailable):
                async with bodies.read(chunks(body), decoder(encoding), None):
                    pass
        async with bodies.read(chunks(bytes(6_000)), None, None) as other:
            assert len(other) == 6_000
    with pytest.raises(TooLarge):
        async with bodies.read(chunks(bytes(10_001)), None, None):
            pass
    for body, encoding in ((bytes(9_000), "identity"), (small, "gzip")):
        async with bodies.read(chunks(body), decoder(encoding), None) as passed:
            assert len(passed) in (8_000, 9_000)


def test_errors_are_the_service_s_own() -> None:
    """Whatever the bytes, only errors of the service's tree come out."""
    for seed in range(300):
        junk = bytes((seed * 31 + place * place * 7) % 256 for place in range(seed % 60))
        for head in (b"", b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd", b"\xff\x06\x00\x00sNaPpY"):
            for decode in (gunzip, unzstd, unsnappy):
                try:
                    decode(head + junk, 10_000)
                except DiagnoserError:
                    continue
