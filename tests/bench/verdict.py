"""What one verdict costs, in CPU-seconds of the service, from the exit event to the stored diagnosis.

``python -m tests.bench.verdict [MEGABYTES]``: a log of one stream, and one of 1,024 ranks.

The log is stored in commits of 4 MB, as the ingest writes them under load, before the clock starts.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.app import running
from diagnoser.compress import to_bytes
from diagnoser.config.loader import load_analyzer
from diagnoser.config.settings import Settings
from diagnoser.model import AttemptKey, LineBlock, Stream
from diagnoser.ports import Append, DiagnosisFilter
from tests.bench import logs

COMMIT = 4 << 20
KEY = AttemptKey("bench")
FATAL = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB.\n"


async def fill(store: SqlStore, settings: Settings, megabytes: int, ranks: int) -> None:
    """The stored deltas of a log whose last line is fatal."""
    analyzer, number = load_analyzer(settings), 1
    for data in chunks(megabytes, ranks):
        compressor = analyzer.compressor()
        compressor.feed(LineBlock(Stream(), data, number))
        number += data.count(b"\n")
        await store.append([Append(KEY, to_bytes(compressor.take()), time.time(), {}, data.endswith(FATAL))])


def chunks(megabytes: int, ranks: int) -> Iterator[bytes]:
    block = logs.steady(COMMIT // 70, ranks)
    for _ in range(max(1, (megabytes << 20) // len(block)) - 1):
        yield block
    yield block + FATAL


async def measure(folder: Path, megabytes: int, ranks: int) -> float:
    """CPU-seconds of one verdict."""
    settings = Settings(
        database_url=f"sqlite:///{folder}/bench.db", exit_grace_seconds=0.01, fatal_debounce_seconds=3600.0
    )
    store = await open_store(settings.database_url)
    await fill(store, settings, megabytes, ranks)
    async with running(settings, asyncio.Event()) as app:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://bench") as client:
            await asyncio.sleep(2.0)  # start-up, and the maintenance of what was stored at once
            started = time.process_time()
            event = {"kind": "exit", "code": 1}
            (await client.post(f"/api/v1/jobs/{KEY.job}/events", json=event)).raise_for_status()
            while not await store.diagnoses(DiagnosisFilter(), "", 1):  # noqa: ASYNC110 - another process would do so
                await asyncio.sleep(0.2)
            spent = time.process_time() - started
    await store.close()
    return spent


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for ranks in (1, 1024):
        with tempfile.TemporaryDirectory() as folder:
            spent = asyncio.run(measure(Path(folder), megabytes, ranks))
        sys.stdout.write(f"{megabytes} MB, {ranks} ranks: {spent:.2f} CPU-seconds\n")


if __name__ == "__main__":
    main()
