"""The database that a benchmark measures: one that is there, a PostgreSQL of its own, or a file."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.contract import postgres


@contextmanager
def bench_database(target: str) -> Iterator[str]:
    """Yield its URL; what is started or written for it is gone afterwards. target: a URL, ``postgresql``, or "" for
    SQLite."""
    if target == "postgresql":
        programs = postgres.programs()
        if programs is None:
            raise SystemExit(postgres.MISSING)
        with postgres.server(programs) as url:
            yield f"{url}/postgres"
    elif target:
        yield target
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{Path(folder) / 'bench.db'}"
