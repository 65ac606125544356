"""The short form of `python -m tests.soak`: what is counted, not what is measured."""

import math
import random
from pathlib import Path

import pytest

from tests.e2e.service import Service, service, until
from tests.soak.load import Load, running
from tests.soak.samples import SERIES, Sample, open_files, slope, sqlite_connections, threads, verdicts

ROUNDS = 2
WORK = {"requests": 50, "failures": 4, "pages": 16, "streams": 16}
"""Of a round, at least. Each page and stream has connections of its own."""
SPARE = 8
"""Files and threads by which rounds may differ. One that is lost each time is more."""
CONNECTIONS = 32
"""To the database, at most. Both processes keep ten in their pools, as many requests meet; SQLite keeps handles of
closed ones for the next. One that is lost with each page, which takes three requests, is more."""


def counts(running: Service) -> tuple[int, int, int]:
    """Open files without those of the database, threads, connections to the database."""
    assert running.process is not None
    pids, database = [running.process.pid, *running.parts()], running.folder / "test.db"
    files = [file for file in open_files(pids) if not str(file).startswith(str(database))]
    return len(files), threads(pids), sqlite_connections(database, pids)


def test_a_round_of_work_leaves_nothing_open(tmp_path: Path) -> None:
    """Shippers, failures, pages and live streams that break off: with each round as many files, threads and database
    connections of all processes are left as before it."""
    with service(tmp_path) as server:
        server.start()
        left: tuple[int, ...] = ()
        for number in range(ROUNDS):
            load = Load(server.url, 0.05, f"round-{number}", requests=8, listened=0.0, reading=1.0, enough=WORK)
            with running(load):
                until(lambda load=load: load.has_enough(*WORK), "the work")
            assert load.errors == []
            if left:
                most = (left[0] + SPARE, left[1] + SPARE, CONNECTIONS)
                until(lambda most=most: all(map(int.__le__, counts(server), most)), f"no more than {most} are open")
            left = counts(server)


def test_a_leak_is_a_slope_and_noise_is_none() -> None:
    """The verdict of half an hour: warm-up and outliers do not count, a megabyte a minute does."""
    chance = random.Random(3)

    def samples(leak: float) -> list[Sample]:
        noise = [chance.gauss(0.0, 3.0) + 200.0 * (chance.random() < 0.02) for _ in range(361)]
        warm = [60.0 * (1.0 - math.exp(-at / 30.0)) for at in range(361)]
        memory = [300.0 + warm[at] + noise[at] + leak * at / 12.0 for at in range(361)]
        return [Sample(5.0 * at, (memory[at], memory[at], 60.0, 30.0, 12.0)) for at in range(361)]

    assert [verdict.is_flat for verdict in verdicts(samples(0.0))] == [True] * len(SERIES)
    leaking = verdicts(samples(1.0))
    assert [verdict.is_flat for verdict in leaking] == [False, False, True, True, True]
    assert leaking[0].growth == pytest.approx(20.0, rel=0.2)


def test_the_slope_is_that_of_most_points() -> None:
    """Exact on a line, and the same with a wild point."""
    line = [(float(at), 2.0 * at) for at in range(9)]
    assert slope(line) == slope([*line, (9.5, 1e6)]) == 2.0
