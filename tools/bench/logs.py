"""The logs that are measured: the healthy ones beside the checkout when they are there, generated ones otherwise."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tests.corpus import CORPUS

SETS = ("dev", "dev-full", "injected-dev")


def healthy() -> dict[str, bytes]:
    """Name -> log of runs that mostly completed."""
    found = {path.stem: path.read_bytes() for path in sorted((CORPUS / "normal").glob("*.log"))}
    return found or {f"generated-{seed}": steady(4_000_000, 8, seed) for seed in range(6)}


def completed() -> set[str]:
    """Names of those that are known to have completed."""
    index = CORPUS / "normal" / "index.jsonl"
    if not index.is_file():
        return set(healthy())
    rows = [json.loads(line) for line in index.read_text().splitlines()]
    return {Path(row.get("file", row.get("id", ""))).stem for row in rows if row.get("outcome") == "completed"}


def labelled(name: str) -> Iterator[tuple[dict[str, object], bytes]]:
    """(label, log) of a set of failures; nothing when the set is absent."""
    labels = CORPUS / name / "labels.jsonl"
    for line in labels.read_text().splitlines() if labels.is_file() else ():
        label = json.loads(line)
        yield label, (CORPUS / name / f"{label['id']}.log").read_bytes()


def steady(size: int, ranks: int, seed: int = 1) -> bytes:
    """A training run that goes on and on: start-up, then iterations of ``ranks`` labelled ranks."""
    rng = random.Random(seed)
    lines = [b"%d: initializing torch distributed, local rank %d\n" % (rank, rank % 8) for rank in range(ranks)]
    left, step = size - sum(map(len, lines)), 0
    while left > 0:
        step += 1
        for rank in range(ranks):
            line = _line(rng, step, rank, ranks)
            lines.append(line)
            left -= len(line)
    return b"".join(lines)


def _line(rng: random.Random, step: int, rank: int, ranks: int) -> bytes:
    stamp = b"2026-03-0%d %02d:%02d:%02d" % (1 + step // 86400 % 9, step // 3600 % 24, step // 60 % 60, step % 60)
    if rank == ranks - 1:
        return (
            b"%d:  [%s] iteration %8d/ 9000000 | consumed samples: %12d | elapsed time per iteration (ms): %.1f | "
            b"learning rate: %.6E | global batch size: %5d | lm loss: %.6E | loss scale: 1.0 | grad norm: %.3f |\n"
        ) % (rank, stamp, step, step * 512, rng.gauss(900, 30), 1e-4, 512, 2 + rng.random() / 9, rng.random())
    return b"%d: %s,%03d INFO trainer: step %d fetched batch of %d samples in %.4f s (queue %d)\n" % (
        *(rank, stamp, rng.randrange(1000), step, 64, rng.random() / 50, rng.randrange(9)),
    )


def labelled_ranks(data: bytes, ranks: int, seed: int = 5) -> bytes:
    """The lines of a log, each said by one of ``ranks`` ranks."""
    rng = random.Random(seed)
    return b"".join(b"%d: %s\n" % (rng.randrange(ranks), line) for line in data.split(b"\n")[:-1])
