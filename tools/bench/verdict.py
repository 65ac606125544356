"""What one verdict costs in CPU-seconds: ``python -m tools.bench.verdict [MEGABYTES]``, for one rank and for 1,024.

The log is stored in commits of 4 MB. Six steps read it: context, analysis, confirmed failures, shadow rules,
baseline, model.
``handed down``: they share one AttemptLog, as the service does. ``decoded by each``: each decodes the deltas itself.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence

from diagnoser.compress import AttemptLog, baseline, to_bytes
from diagnoser.config.loader import load_analyzer
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import Facts, LineBlock, Stream
from tools.bench import logs

COMMIT = 4 << 20
FATAL = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB.\n"


def stored(analyzer: LogAnalyzer, megabytes: int, ranks: int) -> list[bytes]:
    """The deltas of a log whose last line is fatal."""
    deltas, number = [], 1
    for data in chunks(megabytes, ranks):
        compressor = analyzer.compressor()
        compressor.feed(LineBlock(Stream(), data, number))
        number += data.count(b"\n")
        deltas.append(to_bytes(compressor.take()))
    return deltas


def chunks(megabytes: int, ranks: int) -> Iterator[bytes]:
    block = logs.steady(COMMIT, ranks)
    for _ in range(max(1, (megabytes << 20) // len(block)) - 1):
        yield block
    yield block + FATAL


def steps(analyzer: LogAnalyzer) -> list[Callable[[AttemptLog], object]]:
    """What reads the log of a failed attempt, in this order."""
    return [
        lambda log: analyzer.analyze(log, Facts(), time.time()),
        lambda log: log.evidence,
        lambda log: log.evidence,
        lambda log: baseline.clean_run(log.delta, "run"),
        lambda log: log.digest.evidence,
    ]


def cpu_seconds(deltas: Sequence[bytes], readers: Sequence[Callable[[AttemptLog], object]], shared: bool) -> float:
    started = time.process_time()
    log = AttemptLog.from_deltas(deltas)
    for number, read in enumerate(readers):
        read(log if shared or not number else AttemptLog.from_deltas(deltas))
    return time.process_time() - started


def main() -> None:
    megabytes, analyzer = int(sys.argv[1]) if len(sys.argv) > 1 else 250, load_analyzer(Settings())
    for ranks in (1, 1024):
        deltas, readers = stored(analyzer, megabytes, ranks), steps(analyzer)
        for name, shared in (("handed down", True), ("decoded by each", False)):
            seconds = cpu_seconds(deltas, readers, shared)
            sys.stdout.write(f"{megabytes} MB, {ranks} ranks, {name}: {seconds:.2f} CPU-seconds\n")


if __name__ == "__main__":
    main()
