"""How long a stop takes, and when the work of a killed service goes on: ``python -m tools.bench.handover [ROUNDS]``.

The service with default settings, on SQLite and on PostgreSQL, while jobs fail without a pause and a webhook gets no
answer. In turns it is stopped (SIGTERM) and killed (SIGKILL to its parent), and started again at once.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from sqlalchemy import text

from diagnoser.adapters.sql.database import create_engine
from tests.chaos.handover import busy, leases, settings, stuck_receiver
from tests.chaos.handover import kill as kill_all
from tests.contract import postgres
from tests.e2e.service import service, until

BOUNDS = {
    "stop": 5.0,
    "kill -9 -> ready again": 10.0,
    "kill -9 -> its claims are diagnosed": 10.0,
    "kill -9 -> its webhook is sent again": 10.0,
}


def open_jobs(url: str, jobs: Sequence[str]) -> bool:
    """Whether one of them has no diagnosis yet."""

    async def count() -> int:
        engine = create_engine(url)
        try:
            async with engine.connect() as connection:
                rows = await connection.execute(text("SELECT job FROM attempts WHERE diagnosed = 0"))
                return len({row.job for row in rows} & set(jobs))
        finally:
            await engine.dispose()

    return asyncio.run(count()) > 0


def stop(folder: Path, url: str, seconds: dict[str, list[float]]) -> None:
    with (
        stuck_receiver() as hook,
        service(folder, **settings(hook), DIAGNOSER_DATABASE_URL=url) as running,
        busy(running, url, hook),
    ):
        begun = time.monotonic()
        running.stop()
        seconds["stop"].append(time.monotonic() - begun)


def kill(folder: Path, url: str, seconds: dict[str, list[float]]) -> None:
    with stuck_receiver() as hook, service(folder, **settings(hook), DIAGNOSER_DATABASE_URL=url) as running:
        with busy(running, url, hook):
            begun = time.monotonic()
            kill_all(running)  # a part that still ends would take the receiver's answer
        held, sent = list(leases(url)), hook.ids[-1]
        hook.released.set()
        running.start()
        seconds["kill -9 -> ready again"].append(time.monotonic() - begun)
        until(lambda: not open_jobs(url, held), "what was claimed is diagnosed")
        seconds["kill -9 -> its claims are diagnosed"].append(time.monotonic() - begun)
        until(lambda: hook.ids.count(sent) > 1, "the webhook is sent again")
        seconds["kill -9 -> its webhook is sent again"].append(time.monotonic() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    rounds = parser.parse_args().rounds
    programs = postgres.programs()
    for name in ("SQLite", "PostgreSQL"):
        if name == "PostgreSQL" and programs is None:
            sys.stdout.write(f"{postgres.MISSING}\n")
            continue
        seconds: dict[str, list[float]] = defaultdict(list)
        for _ in range(rounds):
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                url = f"sqlite:///{folder}/test.db"
                if name == "PostgreSQL" and programs is not None:
                    url = f"{stack.enter_context(postgres.server(programs))}/postgres"
                stop(folder, url, seconds)
                kill(folder, url, seconds)
        for what, taken in seconds.items():
            row = (name, what, f"{BOUNDS[what]:.0f} s", f"{median(taken):.1f} s", f"{max(taken):.1f} s")
            sys.stdout.write(f"| {' | '.join(row)} |\n")


if __name__ == "__main__":
    main()
