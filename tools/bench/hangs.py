"""``python -m tools.bench.hangs [DIR]``: CPU-seconds from the dumps of 1,024 ranks to the suspects.

DIR: dumps of real ranks, taken again and again; without it they are made in torch's own form.
"""

import sys
import time
from pathlib import Path

from diagnoser.hang import report
from tests.hang_dumps import dump, entry, written

RANKS, ENTRIES, TIMES = 1024, 18, 5


def files(folder: Path | None) -> list[tuple[str, bytes]]:
    if folder:
        real = [path.read_bytes() for path in sorted(folder.glob("_dump_*"))]
        return [(f"_dump_{rank}", real[rank % len(real)]) for rank in range(RANKS)]
    groups = {"0": range(RANKS)} | {str(1 + number): range(8 * number, 8 * number + 8) for number in range(RANKS // 8)}
    made = []
    for rank in range(RANKS):
        own = {name: ranks for name, ranks in groups.items() if rank in ranks}
        known = sorted(own)
        done = [entry(known[at % 2], at, order=at, done=True, thread_id=str(rank)) for at in range(ENTRIES)]
        open_ = [entry("0", ENTRIES, order=ENTRIES)] if rank != 7 else []
        made.append((f"_dump_{rank}", written(dump(own, [*done, *open_]))))
    return made


def main() -> None:
    given = files(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    size = sum(len(data) for _, data in given)
    reading, judging = [], []
    for _ in range(TIMES):
        begun = time.process_time()
        evidence = report.read(given)
        read = time.process_time()
        report.analyze(evidence)
        reading.append(read - begun)
        judging.append(time.process_time() - read)
    seconds = min(map(sum, zip(reading, judging, strict=True)))
    sys.stdout.write(
        f"{len(given)} dumps of {size / 1e6:.1f} MB: {seconds:.2f} CPU-s, best of {TIMES} "
        f"(reading {min(reading):.2f}, who waits for whom {min(judging):.2f})\n"
    )


if __name__ == "__main__":
    main()
