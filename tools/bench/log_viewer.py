"""What a look at a large log costs the server: making its index, and pages and searches once it is kept.

``python -m tools.bench.log_viewer [RANKS LINES]`` makes a job of so many ranks with so many lines each (64 and 2,500 by
default; 1,024 and 120 give fifty thousand rows), asks the page and the route over the application in this process, and
prints milliseconds of processor time: that of threads is part of it, the network and other programs are not.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from diagnoser.compress import Compressor, to_bytes
from diagnoser.model import AttemptKey, LineBlock, RootCause, Stream
from diagnoser.model.logs import Append
from diagnoser.model.taxonomy import FailureType
from tests.serving import NOW, save, serving, store_log, verdict
from tools.bench import logs
from tools.bench.measure import knowledge

FIRST_LOOKS = 5
"""Jobs with that log, each of which is looked at a first time."""
BYTES_A_LINE = 100
ROUNDS = 40


def delta(ranks: int, lines: int) -> bytes:
    """Every rank trains, then waits in vain for one that fails."""
    compressor = Compressor(*knowledge())
    for rank in range(ranks):
        last = b"ValueError: seam\n" if rank == 3 else b"[rank%d]: collective operation timeout\n" % rank
        data = logs.steady(lines * BYTES_A_LINE, 1, rank) + last
        compressor.feed(LineBlock(Stream("stdout", f"gpu-{rank // 8:03d}", rank), data, received=NOW))
    return to_bytes(compressor.take())


async def measure(ranks: int, lines: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder)) as web:
            stored = await asyncio.to_thread(delta, ranks, lines)
            keys = [AttemptKey(f"large-{number}") for number in range(FIRST_LOOKS)]
            for key in keys:
                await web.store.logs.append([Append(key, stored, NOW, {}, False)])
            await store_log(web.store, AttemptKey("small"), LineBlock(Stream(), b"step 1\n"))
            root = RootCause(0, "ValueError: seam", 3, "gpu-000")
            record = await save(web.store, keys[-1].job, verdict(FailureType.VALUE_ERROR, root_cause=root))

            async def ask(path: str) -> tuple[float, int]:
                started = time.process_time()
                answer = await web.client.get(path)
                assert answer.status_code == 200, answer.text
                return 1000 * (time.process_time() - started), len(answer.content)

            await ask("/jobs/small/attempts/1/log")  # what the first page of a process costs besides
            first = [await ask(f"/jobs/{key.job}/attempts/1/log") for key in keys]
            page = f"/jobs/{keys[-1].job}/attempts/1/log"
            route = "/api/v1" + page
            shown = (await web.client.get(route + "?at=end&limit=200")).json()
            _tell(f"{shown['lines']} lines, {shown['total']} rows, {len(stored)} bytes stored")
            milliseconds = sorted(took for took, _ in first)
            _tell(f"a first look: median {statistics.median(milliseconds):.0f} ms, {first[0][1]} bytes")
            middle = (await web.client.get(f"{route}?after={shown['rows'][0]['id']}")).json()["rows"][0]["id"]
            for name, path in {
                "page": page,
                "page around a line": f"{page}?at={middle}",
                "page of a rank": f"{page}?ranks=3",
                "errors": f"{page}?level=error",
                "search, new each time": page + "?q=step%20{}",
                "search, every row matches": page + "?q=e&only=1",
                "regular expression, new each time": page + "?regex=1&q=step%20%5B0-9%5D%2B{}",
                "route": route,
                "diagnosis": f"/diagnoses/{record.id}",
            }.items():
                took = [(await ask(path.format(number)))[0] for number in range(ROUNDS)]
                p95 = statistics.quantiles(took, n=20)[-1]
                _tell(f"{name}: median {statistics.median(took):.0f} ms, 95th percentile {p95:.0f} ms")


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    ranks, lines = (int(given) for given in sys.argv[1:3]) if len(sys.argv) > 2 else (64, 2_500)
    asyncio.run(measure(ranks, lines))
