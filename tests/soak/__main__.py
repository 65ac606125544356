"""Half an hour of steady load, and whether memory, files, threads or connections grew: a table and a verdict.

    python -m tests.soak [MINUTES] [--load SHARE] [--csv FILE]

The real service with default settings and SQLite. Ranks ship lines and their jobs fail, people look at pages, browsers
wait for news. The load is a share of what one core of the server can take: 0.5 is half. It is measured first, in
seconds of processor time, so that a busy machine gets as much load as a quiet one. Exit code 1: something grew, or an
answer was wrong.
"""

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.e2e.service import Service, service
from tests.soak.load import SENDERS, Load, running
from tests.soak.samples import SERIES, WARM_UP, Sample, sqlite_connections, take, verdicts

CALIBRATION_SECONDS = 20.0
SAMPLES = 360
SAMPLE_SECONDS = 5.0
"""At least, between two samples: reading them costs the service's time, too."""
ROWS = 15


def pause_at(share: float, server: Service) -> float:
    """Seconds between two requests of a rank at which the server needs ``share`` of a core."""
    before = server.cpu_seconds()
    with running(Load(server.url, 0.1, "calibration")) as load:
        time.sleep(CALIBRATION_SECONDS)
    time.sleep(CALIBRATION_SECONDS / 2)  # what follows an acknowledgement
    cost = (server.cpu_seconds() - before) / load.done["requests"]
    return SENDERS * cost / share


def soak(server: Service, pause: float, seconds: float) -> tuple[list[Sample], Load]:
    """Samples at equal distances, and a row for some of them."""
    connections = partial(sqlite_connections, server.folder / "test.db")
    samples: list[Sample] = []
    steps = max(ROWS, min(SAMPLES, int(seconds / SAMPLE_SECONDS)))
    with running(Load(server.url, pause)) as load:
        began = time.monotonic()
        for number in range(steps + 1):
            time.sleep(max(0.0, began + number * seconds / steps - time.monotonic()))
            samples.append(take(server, began, connections))
            if number % (steps // ROWS) == 0:
                say(row(samples[-1], load))
    return samples, load


def row(sample: Sample, load: Load) -> str:
    values = [f"{value:.0f}" for value in sample.values]
    done = [f"{load.done[what]:,}" for what in ("requests", "failures", "pages", "streams")]
    return f"| {sample.seconds / 60:.1f} | {' | '.join(values)} | {' | '.join(done)} |"


def write(file: Path, samples: Sequence[Sample]) -> None:
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["seconds", *(series.name for series in SERIES)])
        writer.writerows([f"{sample.seconds:.1f}", *sample.values] for sample in samples)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", nargs="?", type=float, default=30.0)
    parser.add_argument("--load", type=float, default=0.5, help="share of a core (0.5)")
    parser.add_argument("--csv", type=Path, help="where all samples are written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as server:
        server.start()
        pause = pause_at(options.load, server)
        say(f"{options.minutes:.0f} minutes at {options.load:.2f} of a core: {SENDERS / pause:.1f} requests/s\n")
        head = ["minute", *(series.name for series in SERIES), "requests", "failures", "pages", "streams"]
        say(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
        before = server.cpu_seconds()
        samples, load = soak(server, pause, 60 * options.minutes)
        used = (server.cpu_seconds() - before) / samples[-1].seconds
    if options.csv:
        write(options.csv, samples)
    say(f"\nThe service used {used:.2f} of a core; {load.done['asked to come again']} requests had to come again.")
    say(f"Over the last {1 - WARM_UP:.0%}:\n\n| what | median | growth | in a day | verdict |\n|{' --- |' * 5}")
    found = verdicts(samples)
    for verdict in found:
        words = (f"{verdict.typical:.0f}", f"{verdict.growth:+.1f}", f"{verdict.a_day:+.0f}")
        say(f"| {verdict.series.name} | {' | '.join(words)} | {'flat' if verdict.is_flat else 'GROWS'} |")
    for error in sorted(set(load.errors)):
        say(f"wrong answer: {error}")
    return 0 if all(verdict.is_flat for verdict in found) and not load.errors else 1


if __name__ == "__main__":
    raise SystemExit(main())
