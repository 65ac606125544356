"""How long the server takes for each page with many diagnoses stored.

``python -m tools.bench.pages ROWS [DATABASE_URL]`` fills a database as ``tools.bench.lists`` does (or takes one that it
filled), asks the application in this process for each page, and prints milliseconds: on the wall, and of processor time
of this process and of the servers that work for it, which is steadier on a busy machine. The first answer of a process
stands apart. ``--only /jobs`` asks for some pages only.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import httpx
from sqlalchemy import func, select

from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.adapters.sql.tables import diagnoses
from diagnoser.web.server import create
from tests.serving import services
from tools.bench.bench_database import bench_database
from tools.bench.lists import LINES, NODES, SECONDS, SHAPES, START, WORDS, execute_slowly, fill, shape, spent_cpu

Address = Callable[[random.Random], str]


async def addresses(store: SqlStore, count: int) -> dict[str, Address]:
    """Name of a page -> its address, another one each time where it has many."""
    async with store.db.reading() as connection:
        newest = select(diagnoses.c.id).order_by(diagnoses.c.id.desc()).limit(2_000)
        ids = list((await connection.execute(newest)).scalars())
    words = WORDS.split()

    def rare(chance: random.Random) -> str:
        root = shape(chance.randrange(SHAPES))[0].root_cause
        assert root
        return next(word for word in root.text.split() if word.startswith("kernel"))

    return {
        "Now": lambda _: "/",
        "Now, resolved": lambda _: "/?state=resolved",
        "Jobs": lambda _: "/jobs",
        "Jobs, failed": lambda _: "/jobs?state=failed",
        "Diagnoses": lambda _: "/diagnoses",
        "Diagnoses, a category in a week": lambda _: "/diagnoses?category=infrastructure&within=7d",
        "Diagnoses, two words": lambda chance: f"/diagnoses?q={'+'.join(chance.sample(words, 2))}",
        "Diagnoses, a rare word": lambda chance: f"/diagnoses?q={rare(chance)}",
        "Diagnoses, a node": lambda chance: f"/diagnoses?node=gpu-{chance.randrange(NODES):04d}",
        "Diagnoses, by cause": lambda chance: f"/diagnoses?sort=type&cursor={chance.choice(ids)}",
        "Diagnoses, by confidence": lambda chance: f"/diagnoses?sort=-confidence&cursor={chance.choice(ids)}",
        "Diagnoses, by job": lambda chance: f"/diagnoses?sort=job&cursor={chance.choice(ids)}",
        "Diagnoses, a category by cause": lambda _: "/diagnoses?category=infrastructure&sort=type",
        "Diagnoses, a family by category": lambda chance: "/diagnoses?family=family-1&sort=category",
        "Now, by failures": lambda _: "/?sort=-failures",
        "Now, resolved by category": lambda _: "/?state=resolved&sort=category",
        "Jobs, by name": lambda _: "/jobs?sort=job",
        "Jobs, failed by name": lambda _: "/jobs?state=failed&sort=job",
        "Diagnosis": lambda chance: f"/diagnoses/{chance.choice(ids)}",
        "Incident": lambda chance: f"/incidents/{chance.randrange(SHAPES):016x}",
        "Job": lambda chance: f"/jobs/job-{chance.randrange(count)}",
        "Node": lambda chance: f"/nodes/gpu-{chance.randrange(NODES)}",
        "Nodes": lambda _: "/nodes",
        "Recovery": lambda _: "/recovery",
        "Rules": lambda _: "/rules",
        "Accuracy": lambda _: "/accuracy",
        "Search, a job": lambda chance: f"/search?q=job-{chance.randrange(count)}",
        "Search, a beginning": lambda chance: f"/search?q=job-{chance.randrange(10)}",
        "Search, a node": lambda chance: f"/search?q=gpu-{chance.randrange(NODES):04d}",
        "Search, two words": lambda chance: f"/search?q={'+'.join(chance.sample(words, 2))}",
        "Search, a rare word": lambda chance: f"/search?q={rare(chance)}",
        "Search, no such word": lambda chance: f"/search?q=zzyzx{chance.randrange(1000)}",
    }


async def measure(store: SqlStore, count: int, only: str, rounds: int) -> None:
    last = START + count * SECONDS
    given = await services(store, AsyncExitStack(), clock=lambda: last)
    transport = httpx.ASGITransport(app=create(given))
    sys.stdout.write("| page | first | p50 | p95 | CPU, p50 | CPU, p95 |\n| --- | --- | --- | --- | --- | --- |\n")
    async with httpx.AsyncClient(transport=transport, base_url="http://diagnoser.test") as client:
        for name, address in (await addresses(store, count)).items():
            if only not in address(random.Random(1)):
                continue
            chance = random.Random(7)
            walls, cpus = [], []
            for _ in range(rounds + 1):
                wall, cpu = time.perf_counter(), await spent_cpu(store)
                answer = await client.get(address(chance))
                walls.append(1000 * (time.perf_counter() - wall))
                cpus.append(1000 * (await spent_cpu(store) - cpu))
                assert answer.status_code == 200, answer.text
            cells = [walls[0]]
            cells += [sorted(times[1:])[int(rounds * share)] for times in (walls, cpus) for share in (0.5, 0.95)]
            sys.stdout.write(f"| {name} | {' | '.join(f'{cell:.0f}' for cell in cells)} |\n")
            sys.stdout.flush()


async def run(url: str, count: int, lines: int, only: str, rounds: int) -> None:
    store = await open_store(url)
    async with store.db.reading() as connection:
        stored = (await connection.execute(select(func.count()).select_from(diagnoses))).scalar_one()
    if not stored:
        await fill(store, count, lines)
        async with store.db.writing() as connection:
            await execute_slowly(connection, store.db.dialect, "ANALYZE")
    await measure(store, stored or count, only, rounds)
    sys.stdout.write(f"\n{stored or count:,} diagnoses, {store.db.dialect}\n")
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int)
    parser.add_argument("database", nargs="?", default="")
    parser.add_argument("--lines", type=int, default=LINES, help="lines of evidence of each diagnosis")
    parser.add_argument("--only", default="", help="pages with this in their address")
    parser.add_argument("--rounds", type=int, default=60, help="how often each page is asked for")
    options = parser.parse_args()
    target: str = options.database
    with bench_database(target) as database:
        asyncio.run(run(database, options.rows, options.lines, options.only, options.rounds))


if __name__ == "__main__":
    main()
