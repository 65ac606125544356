"""What a second replica on one PostgreSQL is worth: ``python -m tools.bench.replicas [--quick]``.

The same requests go to one process and then, each connection to one of them, to two. Scaling is twice the lines per
CPU-second of both over those of one: what two machines would take if the database does not hold them up. CPU of the
replicas is counted until nothing is left to compress; PostgreSQL's is printed beside it.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.contract import postgres
from tests.e2e.service import Service, service
from tools.bench import logs
from tools.bench.ingest import CONNECTIONS, DRAIN_SECONDS, IDLE_SECONDS, PUT_OFF, TEXT, Bench, send_all, spread

ROUNDS = 2
CASES = (("requests of 100 lines", 100, 2000), ("text of 64 kB", 700, 600))


async def left(url: str) -> int:
    """Bytes of raw lines that are not compressed yet."""
    engine = create_async_engine(url.replace("postgresql", "postgresql+asyncpg"))
    try:
        async with engine.connect() as connection:
            return int((await connection.execute(text("SELECT sum(raw_bytes) FROM attempts"))).scalar() or 0)
    finally:
        await engine.dispose()


def drain(url: str) -> None:
    limit = time.monotonic() + DRAIN_SECONDS
    while asyncio.run(left(url)):
        if time.monotonic() > limit:
            raise SystemExit("raw lines are left after minutes: compaction does not keep up")
        time.sleep(0.5)


def cpu_seconds(replicas: Sequence[Service]) -> float:
    return sum(replica.cpu_seconds() for replica in replicas)


def rate(replicas: Sequence[Service], url: str, bodies: Sequence[bytes], job: str) -> float:
    """Lines per CPU-second of all replicas, over what they use when nothing comes."""
    before = cpu_seconds(replicas)
    time.sleep(IDLE_SECONDS / 2)
    idle = (cpu_seconds(replicas) - before) / (IDLE_SECONDS / 2)
    before, begun = cpu_seconds(replicas), time.monotonic()
    work = spread(bodies, job)

    async def send() -> None:
        share = len(replicas)
        await asyncio.gather(*(send_all(each.port, work[at::share], TEXT) for at, each in enumerate(replicas)))

    asyncio.run(send())
    drain(url)
    spent = cpu_seconds(replicas) - before - idle * (time.monotonic() - begun)
    return sum(body.count(b"\n") for body in bodies) / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    quick = parser.parse_args().quick
    programs = postgres.programs()
    if programs is None:
        raise SystemExit(postgres.MISSING)
    healthy = [log[: 4 << 20].splitlines(keepends=True) for log in logs.healthy().values()]
    replayed = healthy[:: max(1, len(healthy) // CONNECTIONS)][:CONNECTIONS]
    with ExitStack() as stack:
        url = f"{stack.enter_context(postgres.server(programs))}/postgres"
        replicas = []
        for _ in range(2):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            replicas.append(stack.enter_context(service(folder, **PUT_OFF, DIAGNOSER_DATABASE_URL=url)))
        replicas[0].start()
        time.sleep(IDLE_SECONDS)  # what a start leaves behind would count as idling
        bench = Bench(replicas[0], replayed, 0.1 if quick else 1.0)
        cases = [(name, list(bench.texts(count, lines))) for name, lines, count in CASES]
        alone = [max(rate(replicas[:1], url, bodies, f"one-{n}") for n in range(ROUNDS)) for _, bodies in cases]
        replicas[1].start()
        time.sleep(IDLE_SECONDS)
        both = [max(rate(replicas, url, bodies, f"two-{n}") for n in range(ROUNDS)) for _, bodies in cases]
    for (name, _), one, two in zip(cases, alone, both, strict=True):
        sys.stdout.write(f"| {name} | {one:,.0f} | {two:,.0f} | {2 * two / one:.2f} x |\n")


if __name__ == "__main__":
    main()
