"""What a start costs: ``python -m tools.bench.start [TURNS] [--against CHECKOUT]``.

CPU-seconds of all processes of the service with default settings on a new SQLite database, until it is ready. With
another checkout both are started in turns: the speed of a machine changes from minute to minute.
"""

import argparse
import compileall
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.e2e.service import ROOT, Service
from tests.ports import free_port

MUST = 1.5


def cost(code: Path) -> float:
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder), free_port(), {}, code)
        service.start()
        try:
            return service.cpu_seconds()
        finally:
            service.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("turns", nargs="?", type=int, default=7)
    parser.add_argument("--against", type=Path, help="another checkout")
    options = parser.parse_args()
    checkouts = [ROOT, *([options.against.resolve()] if options.against else [])]
    for code in checkouts:
        compileall.compile_dir(code / "diagnoser", quiet=1)  # as whoever installs a package does
    turns = [[cost(code) for code in checkouts] for _ in range(options.turns)]
    for code, costs in zip(checkouts, zip(*turns, strict=True), strict=True):
        sys.stdout.write(f"{code}: median {median(costs):.2f} s, least {min(costs):.2f} s (must: {MUST} s)\n")


if __name__ == "__main__":
    main()
