"""How long the report of impact takes with many failures stored.

``python -m tools.bench.impact [FAILURES] [DATABASE_URL]`` fills a database (a new SQLite file, an empty one that is
named, or with ``postgresql`` in place of a URL one of a server of its own) with jobs that fail five times and then run,
each failure with its verdict, plan, incident, checkpoints and start. Prints the seconds of the query and of the
figures: on the wall, and of processor time of this process and of the servers that work for it. A database that is
filled already is measured as it is.
"""

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from operator import itemgetter
from typing import Any

from sqlalchemy import Table, func, select

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.adapters.sql.tables import attempts, diagnoses, events, incident_attempts, incidents, jobs, plans
from diagnoser.diagnosis.collection_pause import collection_paused
from diagnoser.impact.report import ATTEMPTS, build_report
from diagnoser.model import (
    AttemptKey,
    CheckpointPhase,
    Event,
    EventKind,
    Job,
    Mode,
    Plan,
    PlanChange,
    PlanState,
    Provenance,
    Step,
)
from diagnoser.model.ids import id_of
from diagnoser.model.taxonomy import Action, Category, Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.recovery.incidents import new_incident
from tools.bench.bench_database import bench_database
from tools.bench.lists import START, execute_slowly, shape, spent_cpu

FAILURES, OF_JOB, CHECKPOINTS, ROUNDS = 100_000, 5, 3, 5
SHAPES, DAYS = 500, 20
RAN, DOWN = 3_600.0, 600.0
"""Seconds that a launch runs, and until the next one."""
BATCH = 3_000
"""Launches of one call of the driver."""
TABLES = (attempts, events, diagnoses, plans, incident_attempts)
_shape = cache(shape)


def job_of(number: int) -> tuple[Job, float]:
    """A job with the time of its first launch."""
    chance = random.Random(number)
    labels = {"gpus": str(2 ** chance.randrange(13)), "family": f"family-{number % 400}"}
    cluster, user = f"cluster-{number % 8}", f"user-{number % 200}"
    job = Job(f"job-{number:06}", cluster, labels=labels, tenant=user, registered=True)
    return job, START + chance.random() * DAYS * 86_400


def rows_of(job: Job, launch: int, opened: float) -> Iterator[tuple[Table, dict[str, Any]]]:
    """The rows of one launch."""
    key, ended = AttemptKey(job.id, launch), opened + RAN
    ran = {"opened": opened, "last_line": ended, "ended": ended}
    reported = {"submitted": opened - 60, "started": opened, "saved": opened + 600 * (CHECKPOINTS - 1)}
    yield attempts, {"job": key.job, "number": launch} | ran | reported
    start = Event(EventKind.STARTED, opened, provenance=Provenance.SCHEDULER, submitted=opened - 60)
    yield events, codec.event_row(key, start)
    for step in range(CHECKPOINTS):
        path, time = f"/ckpt/{step}", opened + 600 * step
        saved = Event(EventKind.CHECKPOINT, time, step=step, path=path, phase=CheckpointPhase.DURABLE)
        yield events, codec.event_row(key, saved)
    if launch <= OF_JOB:
        yield from _failure(key, job, ended, random.Random(opened))


def _failure(key: AttemptKey, job: Job, ended: float, chance: random.Random) -> Iterator[tuple[Table, dict[str, Any]]]:
    which, made = chance.randrange(SHAPES), ended + 60
    diagnosis = replace(_shape(which)[0], outcome=Outcome.FAILED)
    record = DiagnosisRecord(id_of(made, chance.getrandbits(80)), key, 1, made, True, diagnosis)
    state = chance.choice(list(PlanState))
    changes = tuple(
        PlanChange(made, moved, "diagnoser", "the policy lets it")
        for moved in (PlanState.WAITING, PlanState.SENT, state)
    )
    steps = tuple(Step(f"scontrol update nodename=gpu-{at}", 0, "done " * 20, made) for at in range(6))
    plan = Plan(
        record.id, f"key-{record.id}", *(key.job, key.number), Action.CORDON_AND_RESUBMIT, ("gpu-1",), Mode.ACT, state,
        "reached", made, made + 86_400, cluster=job.cluster, history=changes, steps=steps, suspects=("gpu-1",),
    )  # fmt: skip
    yield diagnoses, codec.diagnosis_row(record, plan, job)
    yield plans, codec.plan_row(plan)
    of_incident = {"incident": f"{which:016x}", "diagnosis": record.id}
    yield incident_attempts, {"job": key.job, "attempt": key.number} | of_incident


def _incidents() -> Iterator[dict[str, Any]]:
    for number in range(SHAPES):
        diagnosis, job = _shape(number)
        blamed = replace(diagnosis, category=Category.UNKNOWN)
        made = new_incident("", START, blamed, job.cluster, "")
        assert made
        yield codec.incident_row(replace(made, id=f"{number:016x}"))


async def fill(store: SqlStore, failures: int) -> None:
    async with store.db.writing() as connection:
        await connection.execute(incidents.insert(), list(_incidents()))
    made = [job_of(number) for number in range(failures // OF_JOB)]
    async with store.db.writing() as connection:
        await connection.execute(jobs.insert(), [{"id": job.id, "body": codec.job_text(job)} for job, _ in made])
    numbers = range(1, OF_JOB + 2)
    launches = [(opened + number * (RAN + DOWN), number, job) for job, opened in made for number in numbers]
    launches.sort(key=itemgetter(0))  # as they come: those of many jobs in turn
    for start in range(0, len(launches), BATCH):
        rows: dict[str, list[dict[str, Any]]] = {table.name: [] for table in TABLES}
        for opened, number, job in launches[start : start + BATCH]:
            for table, row in rows_of(job, number, opened):
                rows[table.name].append(row)
        async with store.db.writing() as connection:
            for table in TABLES:
                if rows[table.name]:
                    await connection.execute(table.insert(), rows[table.name])
    async with store.db.writing() as connection:
        await execute_slowly(connection, store.db.dialect, "ANALYZE")


async def measure(store: SqlStore) -> None:
    since, now = START - 86_400, START + 30 * 86_400
    sys.stdout.write("| | query | figures | CPU of both |\n| --- | --- | --- | --- |\n")
    for _ in range(ROUNDS):
        begun, cpu = time.perf_counter(), await spent_cpu(store)
        with collection_paused():  # as the command and the page do
            counted = await store.impact.attempts(since, ATTEMPTS)
            read = time.perf_counter()
            report = build_report(counted, since, now)
        done = time.perf_counter()
        spent = await spent_cpu(store) - cpu
        size = f"{report.recovery.failures:,} failures, {report.attempts:,} attempts"
        sys.stdout.write(f"| {size} | {read - begun:.2f} | {done - read:.2f} | {spent:.2f} |\n")


async def run(url: str, failures: int) -> None:
    store = await open_store(url)
    async with store.db.reading() as connection:
        stored = (await connection.execute(select(func.count()).select_from(diagnoses))).scalar_one()
    if not stored:
        await fill(store, failures)
    await measure(store)
    await store.close()


def main() -> None:
    failures = int(sys.argv[1]) if len(sys.argv) > 1 else FAILURES
    target = sys.argv[2] if len(sys.argv) > 2 else ""
    with bench_database(target) as database:
        asyncio.run(run(database, failures))


if __name__ == "__main__":
    main()
