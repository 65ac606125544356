"""A process that archives and compresses without a pause, to be killed at any moment: DATABASE_URL FOLDER."""

import asyncio
import sys
import time
from pathlib import Path

from prometheus_client import CollectorRegistry

from diagnoser.adapters.folder_archive import FolderArchive
from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.compress import Compressor
from diagnoser.model.logs import CompactionTiming
from diagnoser.observability.metrics import Metrics
from diagnoser.worker import compaction
from diagnoser.worker.compaction import Compaction

LEASE = 0.2
READY = b"ready\n"


def compactor(store: SqlStore, folder: Path) -> Compaction:
    metrics, timing = Metrics(CollectorRegistry()), CompactionTiming(window=1)
    return Compaction(store.logs, Compressor, time.time, metrics, FolderArchive(folder), timing)


async def main(url: str, folder: Path) -> None:
    compaction.LEASE_SECONDS, compaction.PERIOD, compaction.WINDOW_MOST = LEASE, 0.01, 20_000
    store = await open_store(url)
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    await compactor(store, folder).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
