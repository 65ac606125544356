"""Kills the service again and again while shippers send, on SQLite and on PostgreSQL, and checks what is stored.

python -m tests.chaos [KILLS]
"""

import random
import sys
import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path

from tests.chaos.rounds import Shipper, check, kill_again_and_again, shipping, wait_for_progress
from tests.contract import postgres
from tests.e2e.service import service

KILLS = 200
ROUND = 20
"""Kills between two checks."""


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    programs = postgres.programs()
    chaos(kills, "SQLite, one process", None)
    if programs is None:
        _say(postgres.MISSING)
    else:
        chaos(kills, "PostgreSQL, two replicas", programs)


def chaos(kills: int, what: str, programs: Path | None) -> None:
    """Raises AssertionError when a line is lost or doubled."""
    chance = random.Random(23)
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = stack.enter_context(postgres.server(programs) if programs else nullcontext())
        url = f"{address}/postgres" if address else f"sqlite:///{root}/test.db"
        services = []
        for number in range(2 if programs else 1):
            folder = root / f"replica-{number}"
            folder.mkdir()
            services.append(stack.enter_context(service(folder, DIAGNOSER_DATABASE_URL=url)))
            services[-1].start()
        shippers = [Shipper(rank, [each.url for each in services], random.Random(rank)) for rank in range(4)]
        for done in range(0, kills, ROUND):
            with shipping(shippers):
                kill_again_and_again(services, shippers, min(ROUND, kills - done), chance)
                wait_for_progress(shippers)
            lines = check(url, shippers)
            _say(f"{what}: {min(done + ROUND, kills)} kills, {lines:,} lines, none lost, none twice")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
