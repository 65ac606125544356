"""How long the list, a search, the facets and the news take with many diagnoses stored.

``python -m tools.bench.lists ROWS [DATABASE_URL]`` fills a database (a new SQLite file, or an empty one that is named)
through its tables and prints the median and the 95th percentile of each query in milliseconds. ``postgresql`` in place
of a URL starts a server of its own. A database that holds diagnoses already is measured as it is. ``--lines 2`` makes
bodies small, where the disk is (ten million of twelve lines are 40 GB); ``--only facets`` asks some queries only.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.adapters.sql.tables import diagnoses, incidents
from diagnoser.model import AttemptKey, Diagnosis, EvidenceLine, Job, RootCause, Suspect
from diagnoser.model.ids import first_id, id_of
from diagnoser.model.queries import DiagnosisFilter
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.recovery.incidents import new_incident
from tools.bench.bench_database import bench_database

START = 1_700_000_000.0
SECONDS = 3.0
"""Between two diagnoses: ten million are a year."""
SHAPES = 2_000
NODES, FAMILIES, TYPES = 1_280, 400, tuple(FailureType)
WORDS = (
    "timeout allreduce watchdog cuda illegal memory access checkpoint shard loader worker exited signal gradient nan"
)
LINES = 12
BATCH = 20_000
ROUNDS = 100


def shape(number: int, count: int = LINES) -> tuple[Diagnosis, Job]:
    """One of the diagnoses that are stored again and again, each time for another job and node. count: of its lines."""
    chance = random.Random(number)
    kind = TYPES[min(int(chance.expovariate(0.15)), len(TYPES) - 1)]
    common = chance.sample(WORDS.split(), 5)
    rare = f"kernel{chance.randrange(50_000):05d}"
    lines = [
        f"[rank{chance.randrange(512)}]: {kind.value} {' '.join(chance.sample(common, 3))} {rare} "
        f"0x{chance.randrange(1 << 40):x}"
        for _ in range(count)
    ]
    node = f"gpu-{chance.randrange(NODES):04d}"
    diagnosis = Diagnosis(
        outcome=chance.choices(list(Outcome), [90 if value is Outcome.FAILED else 3 for value in Outcome])[0],
        category=chance.choice(list(Category)),
        type=kind,
        confidence=0.9,
        decided_by=f"rule:{kind.value}_{chance.randrange(3)}",
        root_cause=RootCause(chance.randrange(100_000), lines[0], rank=3, node=node),
        evidence=tuple(EvidenceLine(100 + at, line, "a line that the cause explains") for at, line in enumerate(lines)),
        nodes=(Suspect(node, 0.9, "its GPU is gone"), Suspect(f"gpu-{chance.randrange(NODES):04d}", 0.2, "its peer")),
        mitigation="Cordon the node, reset or replace its GPU, and resubmit from the last checkpoint.",
    )
    labels = {"family": f"family-{chance.randrange(FAMILIES)}"}
    return diagnosis, Job("shape", cluster=f"cluster-{chance.randrange(8)}", labels=labels)


def templates(lines: int) -> list[dict[str, object]]:
    rows = []
    for number in range(SHAPES):
        diagnosis, job = shape(number, lines)
        record = DiagnosisRecord("", AttemptKey("", 1), 1, 0.0, True, diagnosis)
        row = codec.diagnosis_row(record, None, job)
        words = codec.words_row(record)["words"]
        rows.append(row | {"words": words, "nodes": codec.diagnosis_nodes(diagnosis)[0], "incident": f"{number:016x}"})
    return rows


async def fill(store: SqlStore, count: int, lines: int) -> None:
    """Each row has a job, an id and a word of its own. The indexes are made at the end."""
    async with store.db.writing() as connection:
        if store.db.dialect == "postgresql":
            await connection.execute(text("SET LOCAL session_replication_role = replica"))
            await connection.execute(text("SET LOCAL maintenance_work_mem = '1GB'"))
        await _fill_shapes(connection, lines)
        await connection.execute(incidents.insert(), _incidents(count))
        indexes = await _drop_indexes(connection, store.db.dialect)
        for start in range(0, count, BATCH):
            await _insert(connection, store.db.dialect, range(start, min(count, start + BATCH)))
            if start % (10 * BATCH) == 0:
                sys.stderr.write(f"{start:,} of {count:,}\n")
        for definition in indexes:
            await execute_slowly(connection, store.db.dialect, definition)
        await connection.execute(text("DROP TABLE shapes"))
        await connection.execute(text("DROP TABLE numbered"))


def _incidents(count: int) -> list[dict[str, object]]:
    """One of each shape, as if it had failed throughout."""
    rows = []
    for number in range(SHAPES):
        diagnosis, job = shape(number)
        last = START + (count - SHAPES + number) * SECONDS
        made = new_incident(id_of(last, number), last, diagnosis, job.cluster, job.labels["family"])
        found = made or new_incident(
            id_of(last, number), last, replace(diagnosis, category=Category.UNKNOWN), job.cluster, ""
        )
        assert found
        incident = replace(found, id=f"{number:016x}", first_seen=START)
        counts = {"failures": max(1, count // SHAPES), "jobs": max(1, count // SHAPES)}
        rows.append(codec.incident_row(incident) | counts)
    return rows


async def _fill_shapes(connection: AsyncConnection, lines: int) -> None:
    names = [column.name for column in diagnoses.columns] + ["words", "nodes", "incident"]
    await connection.execute(
        text(f"CREATE TEMP TABLE shapes (shape integer primary key, {', '.join(f'{name} text' for name in names)})")
    )
    await connection.execute(
        text("CREATE TEMP TABLE numbered (n bigint, made double precision, made_id text, which integer)")
    )
    values = ", ".join(f":{name}" for name in names)
    rows = [
        {"shape": at} | {name: None if row[name] is None else str(row[name]) for name in names}
        for at, row in enumerate(templates(lines))
    ]
    await connection.execute(text(f"INSERT INTO shapes VALUES (:shape, {values})"), rows)


async def _drop_indexes(connection: AsyncConnection, dialect: str) -> list[str]:
    if dialect == "postgresql":
        query = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'diagnos%' "
        query += "AND indexdef NOT LIKE 'CREATE UNIQUE%'"
    else:
        query = (
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name LIKE 'diagnos%' AND sql IS NOT NULL"
        )
    rows = (await connection.execute(text(query))).all()
    for name, _ in rows:
        await connection.execute(text(f"DROP INDEX {name}"))
    return [definition for _, definition in rows]


_FILLS = (
    """INSERT INTO jobs (id, body) SELECT 'job-' || n, '{"id":"job-' || n || '"}' FROM numbered""",
    """INSERT INTO attempts (job, number, opened, last_line, ended, fatal_revision, revision, diagnosed, dirty, deltas,
    token, lease, tries) SELECT 'job-' || n, 1, made, made, made, 0, 1, 1, made, 0, '', 0, 0 FROM numbered""",
    """INSERT INTO diagnoses (id, job, attempt, revision, created, current, outcome, category, type, search, body,
    cluster, family, decided_by)
    SELECT made_id, 'job-' || n, 1, 1, made, true, outcome, category, type, '', body, cluster, family, decided_by
    FROM numbered JOIN shapes ON which = shape""",
    """INSERT INTO diagnosis_words (diagnosis, words) SELECT made_id, words || ' job ' || n
    FROM numbered JOIN shapes ON which = shape""",
    "INSERT INTO diagnosis_nodes (node, diagnosis) SELECT nodes, made_id FROM numbered JOIN shapes ON which = shape",
    """INSERT INTO diagnosis_nodes (node, diagnosis) SELECT 'gpu-' || (n % 1280), made_id FROM numbered
    WHERE true ON CONFLICT DO NOTHING""",
    """INSERT INTO incident_attempts (job, attempt, incident, diagnosis)
    SELECT 'job-' || n, 1, incident, made_id FROM numbered JOIN shapes ON which = shape""",
)


async def _insert(connection: AsyncConnection, dialect: str, numbers: range) -> None:
    chance = random.Random(numbers.start)
    rows = [
        (
            number,
            START + number * SECONDS,
            id_of(START + number * SECONDS, chance.getrandbits(80)),
            chance.randrange(SHAPES),
        )
        for number in numbers
    ]
    await connection.execute(text("DELETE FROM numbered"))
    if dialect == "postgresql":
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver
        await driver.copy_records_to_table("numbered", records=rows)
    else:
        await connection.exec_driver_sql("INSERT INTO numbered VALUES (?, ?, ?, ?)", rows)
    for statement in _FILLS:
        await execute_slowly(connection, dialect, statement)


async def execute_slowly(connection: AsyncConnection, dialect: str, statement: str) -> None:
    """The service's own bound on a statement is too short for these."""
    if dialect == "postgresql":
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver
        await driver.execute(statement, timeout=3600)
    else:
        await connection.exec_driver_sql(statement)


def queries(store: SqlStore, count: int) -> dict[str, Callable[[random.Random], Awaitable[object]]]:
    last = START + count * SECONDS
    page, everything = 51, DiagnosisFilter()

    def ago(chance: random.Random) -> str:
        return first_id(START + chance.random() * count * SECONDS)

    def any_filter(chance: random.Random) -> DiagnosisFilter:
        diagnosis, job = shape(chance.randrange(SHAPES))
        values: dict[str, str] = {
            "category": diagnosis.category.value,
            "type": diagnosis.type.value,
            "outcome": diagnosis.outcome.value,
            "decided_by": diagnosis.decided_by,
            "node": diagnosis.nodes[1].node,
            "cluster": job.cluster,
            "family": job.labels["family"],
        }
        chosen = chance.sample(sorted(values), chance.randint(1, 2))
        return replace(everything, **{name: values[name] for name in chosen})  # type: ignore[arg-type]

    def rare(chance: random.Random) -> str:
        root = shape(chance.randrange(SHAPES))[0].root_cause
        assert root
        return next(word for word in root.text.split() if word.startswith("kernel"))

    common = WORDS.split()
    return {
        "list, newest page": lambda chance: store.diagnoses.page(everything, "", page),
        "list, a page anywhere": lambda chance: store.diagnoses.page(everything, ago(chance), page),
        "list, one or two filters": lambda chance: store.diagnoses.page(any_filter(chance), "", page),
        "list, one or two filters, a page anywhere": lambda chance: store.diagnoses.page(
            any_filter(chance), ago(chance), page
        ),
        "list, the last hour": lambda chance: store.diagnoses.page(replace(everything, since=last - 3600), "", page),
        "search, two common words": lambda chance: store.diagnoses.page(
            replace(everything, text=" ".join(chance.sample(common, 2))), "", page
        ),
        "search, a rare word": lambda chance: store.diagnoses.page(replace(everything, text=rare(chance)), "", page),
        "search, a common and a rare word": lambda chance: store.diagnoses.page(
            replace(everything, text=f"{chance.choice(common)} {rare(chance)}"), "", page
        ),
        "search, a job": lambda chance: store.diagnoses.page(
            replace(everything, text=f"job-{chance.randrange(count)}"), "", page
        ),
        "search, no such word": lambda chance: store.diagnoses.page(replace(everything, text="zzyzx"), "", page),
        "facets": lambda chance: store.diagnoses.facets(everything),
        "facets, one or two filters": lambda chance: store.diagnoses.facets(any_filter(chance)),
        "facets of a search": lambda chance: store.diagnoses.facets(replace(everything, text=chance.choice(common))),
        "news since an id": lambda chance: store.diagnoses.news(first_id(last - 60.0), 500),
    }


async def measure(store: SqlStore, count: int, only: str) -> None:
    sys.stdout.write("| query | p50 | p95 | CPU, p50 | CPU, p95 |\n| --- | --- | --- | --- | --- |\n")
    for name, ask in queries(store, count).items():
        if only not in name:
            continue
        chance = random.Random(7)
        walls, cpus = [], []
        for _ in range(ROUNDS):
            wall, cpu = time.perf_counter(), await spent_cpu(store)
            await ask(chance)
            walls.append(1000 * (time.perf_counter() - wall))
            cpus.append(1000 * (await spent_cpu(store) - cpu))
        cells = [sorted(times)[int(ROUNDS * share)] for times in (walls, cpus) for share in (0.5, 0.95)]
        sys.stdout.write(f"| {name} | {' | '.join(f'{cell:.1f}' for cell in cells)} |\n")
        sys.stdout.flush()


async def spent_cpu(store: SqlStore) -> float:
    """Seconds of this process and of the servers that work for it: on a busy machine steadier than the wall clock."""
    spent = time.process_time()
    if store.db.dialect == "postgresql":
        async with store.db.reading() as connection:
            mine = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            for pid in (await connection.execute(text(mine))).scalars():
                spent += _spent_by(pid)
    return spent


def _spent_by(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


async def run(url: str, count: int, lines: int, only: str) -> None:
    store = await open_store(url)
    async with store.db.reading() as connection:
        stored = (await connection.execute(select(func.count()).select_from(diagnoses))).scalar_one()
    if not stored:
        start = time.perf_counter()
        await fill(store, count, lines)
        async with store.db.writing() as connection:
            await execute_slowly(connection, store.db.dialect, "ANALYZE")
        sys.stderr.write(f"{count:,} diagnoses stored in {time.perf_counter() - start:.0f} s\n")
    await measure(store, stored or count, only)
    sizes = {
        "postgresql": "SELECT pg_database_size(current_database())",
        "sqlite": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
    }
    async with store.db.reading() as connection:
        used = (await connection.execute(text(sizes[store.db.dialect]))).scalar_one()
    sys.stdout.write(
        f"\n{stored or count:,} diagnoses, {used / (1 << 30):.1f} GB, {store.db.dialect}, {os.cpu_count()} cores\n"
    )
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int)
    parser.add_argument("database", nargs="?", default="")
    parser.add_argument("--lines", type=int, default=LINES, help="lines of evidence of each diagnosis")
    parser.add_argument("--only", default="", help="queries with this in their name")
    options = parser.parse_args()
    target: str = options.database
    with bench_database(target) as database:
        asyncio.run(run(database, options.rows, options.lines, options.only))


if __name__ == "__main__":
    main()
