"""Shippers that never give up, a service that is killed again and again, and what must hold afterwards."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from diagnoser.adapters.sql.store import open_store
from diagnoser.compress import Delta, read_pieces
from diagnoser.model import AttemptKey, LineBlock, Stream
from tests import accuracy_bars
from tests.e2e.service import Service

JOB = "chaos"
BATCH = 12
LINES_A_BATCH = 25


@dataclass
class Shipper:
    """Sends the numbered lines of a rank; batches overlap, come twice, out of order, until each is acknowledged."""

    rank: int
    urls: Sequence[str]
    random: random.Random
    pause: float = 0.0
    """Seconds after each batch, so that a short run does not spend its processor time on ever more lines."""
    acknowledged: int = 0
    errors: list[str] = field(default_factory=list)

    def line(self, number: int) -> bytes:
        if number % 211 == 0:
            return b"[rank%d]: ValueError: shard %d is empty" % (self.rank, number)
        return b"[rank%d]: step %d loss 2.%03d tokens/s %d" % (self.rank, number, number % 997, number * 7 % 10_007)

    def run(self, stopping: threading.Event) -> None:
        with httpx.Client(timeout=30) as client:
            while not stopping.is_set():
                self._send_round(client, stopping)

    def _send_round(self, client: httpx.Client, stopping: threading.Event) -> None:
        """The next few batches in any order, some twice, each until it is acknowledged."""
        start = self.acknowledged
        batches = [(start + place * LINES_A_BATCH, LINES_A_BATCH) for place in range(BATCH)]
        batches += self.random.sample(batches, 3)  # what a shipper sends again after a lost answer
        batches += [(max(0, first - 10), 20) for first, _ in self.random.sample(batches, 3)]
        self.random.shuffle(batches)
        for first, count in batches:
            if not self._acknowledged(client, first, count, stopping):
                return
            if self.pause and stopping.wait(self.pause):
                return
        self.acknowledged = start + BATCH * LINES_A_BATCH

    def _acknowledged(self, client: httpx.Client, first: int, count: int, stopping: threading.Event) -> bool:
        body = b"".join(self.line(first + place + 1) + b"\n" for place in range(count))
        query: dict[str, str | int] = {"job": JOB, "attempt": 1, "rank": self.rank, "offset": first}
        while True:
            url = self.random.choice(self.urls)
            try:
                answer = client.post(f"{url}/api/v1/logs", params=query, content=body, headers=_TEXT)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code in (200, 204):
                return True
            if answer is not None and answer.status_code not in (429, 503):
                self.errors.append(answer.text)
                return False
            if stopping.wait(0.05):
                return False


_TEXT = {"Content-Type": "text/plain"}


@contextmanager
def shipping(shippers: Sequence[Shipper]) -> Iterator[None]:
    stopping = threading.Event()
    threads = [threading.Thread(target=shipper.run, args=(stopping,)) for shipper in shippers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def kill_again_and_again(
    services: Sequence[Service], shippers: Sequence[Shipper], kills: int, chance: random.Random
) -> None:
    """SIGKILL at any moment after some lines came through, then start anew with the same data."""
    for _ in range(kills):
        service = chance.choice(services)
        wait_for_progress(shippers)
        time.sleep(chance.uniform(0.0, 0.5))
        service.kill()
        service.start()


def wait_for_progress(shippers: Sequence[Shipper], seconds: float = 180.0) -> None:
    before, limit = [shipper.acknowledged for shipper in shippers], time.monotonic() + seconds
    while any(shipper.acknowledged == old for shipper, old in zip(shippers, before, strict=True)):
        if time.monotonic() > limit:
            raise AssertionError("the shippers make no progress")
        time.sleep(0.02)


def check(url: str, shippers: Sequence[Shipper]) -> int:
    """Every acknowledged line is stored once, and the log reads as if it had come in one piece; how many lines.

    Lines behind the acknowledged ones may be there, with gaps: the last round was cut off. Raises AssertionError.
    """
    stored = check_acknowledged(url, shippers)
    sent = accuracy_bars.load().compressor()
    for shipper in shippers:
        stream = stream_of(shipper)
        for first, last in stored.shares[stream].ranges:
            lines = b"\n".join(shipper.line(number) for number in range(first, last + 1))
            sent.feed(LineBlock(stream, lines, first))
    expected = sent.take()
    assert _content(stored) == _content(expected)
    return stored.lines


def check_acknowledged(url: str, shippers: Sequence[Shipper]) -> Delta:
    """Every acknowledged line is stored, and none counts twice; the log. Raises AssertionError."""
    stored = asyncio.run(_stored(url))
    for shipper in shippers:
        assert not shipper.errors, shipper.errors[:3]
        ranges = stored.shares[stream_of(shipper)].ranges
        assert ranges[0][0] == 1, f"rank {shipper.rank} lacks its first lines"
        assert ranges[0][1] >= shipper.acknowledged, (
            f"rank {shipper.rank}: acknowledged {shipper.acknowledged}: {ranges}"
        )
    assert stored.lines == sum(last - first + 1 for share in stored.shares.values() for first, last in share.ranges)
    return stored


def stream_of(shipper: Shipper) -> Stream:
    return Stream("stdout", "", shipper.rank)


async def _stored(url: str) -> Delta:
    store = await open_store(url)
    try:
        return read_pieces(
            [piece.data for piece in await store.logs.pieces(AttemptKey(JOB, 1))], accuracy_bars.load().compressor
        )
    finally:
        await store.close()


def _content(delta: Delta) -> object:
    """All but times of arrival and where texts end: what a reader sees."""
    shapes = {key: (stat.count, stat.first, stat.last, stat.ranks, stat.kind) for key, stat in delta.shapes.items()}
    shares = {
        stream: (share.ranges, [(row.number, row.text, row.voice, row.kind) for _, row in sorted(share.rows.items())])
        for stream, share in delta.shares.items()
    }
    points = {
        stream: sorted((p.number, p.line) for p in share.points.values()) for stream, share in delta.shares.items()
    }
    return delta.lines, shapes, shares, points
