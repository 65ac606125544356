"""What `client.pyz run` costs the command that it runs: `python -m tools.bench.client [LINES [ROUNDS]]`.

A program prints a million lines to a file in memory, alone and below the client, in turns; the service is a real one.
Reported are ratios within one run, and the CPU-seconds that the client adds, by the kernel's own count.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from diagnoser.web.api.client_archive import built
from tests.e2e.service import service

ROUNDS = 7
MUST_ADD, MUST_CPU = 0.05, 1.0
PRINT = """
import resource, sys, time
begun = time.perf_counter()
for number in range({lines}):
    loss = 1.0 / (1 + number % 977)
    print(f"[2026-11-22 10:{{number // 60000 % 60:02}}:{{number // 1000 % 60:02}}] iteration {{number:8d}}/ 1000000 | "
          f"lm loss: {{loss:.6E}} | grad norm: 0.918 | tokens/s: 41112")
sys.stdout.flush()
used = resource.getrusage(resource.RUSAGE_SELF)
with open("{report}", "w") as report:
    print(time.perf_counter() - begun, used.ru_utime + used.ru_stime, file=report)
"""


def main() -> None:
    lines, rounds = [*map(int, sys.argv[1:]), *(1_000_000, ROUNDS)[len(sys.argv) - 1 :]]
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a disk would be measured instead of the client
    with tempfile.TemporaryDirectory(prefix="diagnoser-bench-", dir=memory) as name, service(Path(name)) as running:
        running.start()
        folder = Path(name)
        (folder / "client.pyz").write_bytes(built(running.url).data)
        for served in (True, False):
            for unbuffered in (False, True):
                figures = measured(folder, lines, rounds, served=served, unbuffered=unbuffered)
                sys.stdout.write(json.dumps(figures) + "\n")
                sys.stdout.flush()
            if served:
                running.kill()


def measured(folder: Path, lines: int, rounds: int, *, served: bool, unbuffered: bool = False) -> dict[str, object]:
    """Medians of the rounds. added: share of time that the command takes longer, from its first line to its last;
    added_least: by the fastest of each, which a busy machine disturbs least."""
    program = folder / "print.py"
    program.write_text(PRINT.format(lines=lines, report=folder / "report"))
    command = [sys.executable, *(["-u"] if unbuffered else []), str(program)]
    alone, below, cpu, own_alone, own_below = (list[float]() for _ in range(5))
    for _ in range(rounds):
        seconds, _, own = _timed(command, folder)
        alone.append(seconds)
        own_alone.append(own)
        shipped = [sys.executable, "-I", str(folder / "client.pyz"), "run", "--wait", "0", "--", *command]
        seconds, used, own = _timed(shipped, folder)
        below.append(seconds)
        cpu.append(used)
        own_below.append(own)
    ratios = [with_client / without for with_client, without in zip(below, alone, strict=True)]
    added, used = statistics.median(ratios) - 1, statistics.median(cpu) * 1_000_000 / lines
    return {
        "service": "up" if served else "away",
        "writes": "each line" if unbuffered else "buffered",
        "lines": lines,
        "alone_s": round(statistics.median(alone), 3),
        "below_s": round(statistics.median(below), 3),
        "added": round(added, 4),
        "added_least": round(min(below) / min(alone) - 1, 4),
        "command_cpu_added": round(statistics.median(own_below) / statistics.median(own_alone) - 1, 4),
        "client_cpu_s_per_million": round(used, 3),
        "reached": added <= MUST_ADD and used <= MUST_CPU,
    }


def _timed(command: list[str], folder: Path) -> tuple[float, float, float]:
    """(seconds of the program by its own clock, CPU-seconds of everything that is not the program, of the program)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (folder / "out").open("wb") as out:
        subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL, check=True, env=_plain())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, own = map(float, (folder / "report").read_text().split())
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime - own, own


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("DIAGNOSER_", "SLURM", "PYTHON"))}


if __name__ == "__main__":
    main()
