"""What filters for the routine of job families save: ``python -m tools.bench.routine``.

Six families run 20 times each (``tools/real_runs/trainers/imitations``, 400 steps), and the healthy logs of the corpus,
each as a family of its own. Filters are made of the shapes that the first three runs print and held against the others:
bytes of the stored delta, of the whole view, and of a view of 8,000 tokens; CPU of folding, by the line. Then all of
those filters against every labelled line of the corpus.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from diagnoser import compress
from diagnoser.compress import Delta, routine, template_cache
from diagnoser.compress.routine import RoutineFilter
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.learning import filter_writer
from diagnoser.learning.log_agent import touched_by
from tests import accuracy_bars
from tests.corpus import CORPUS
from tools.bench.baseline import read

FAMILIES = ("megatron", "nemo", "verl", "openrlhf", "torchtitan", "maxtext")
RUNS, LEARNED_FROM = 20, 3
_IMITATE = Path(__file__).parents[1] / "real_runs" / "trainers" / "imitations" / "imitate.py"
_TOKENS = 8000
_LARGEST = 20 << 20
_LABELLED = ("dev", "dev-full", "injected-dev", "real-dev")


class Saved(NamedTuple):
    """Shares of stored bytes, of the whole view and of the rendered one; microseconds of folding by the line."""

    stored: float
    view: float
    rendered: float
    cost: float


def runs(family: str) -> list[bytes]:
    logs = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(RUNS):
            (Path(folder) / "config.yaml").write_text(f"seed: {seed}\n")
            command = [sys.executable, str(_IMITATE), family, "--fault", "ok", "--steps", "400"]
            logs.append(subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout)
    return logs


def learned(analyzer: LogAnalyzer, deltas: Sequence[Delta]) -> RoutineFilter:
    """What the shapes make of routine that all of these runs print."""
    cache = template_cache.shapes(analyzer.gate, analyzer.filters)
    shapes = []
    for shape, stat in routine.routine_shapes(deltas[0], cache):
        if all(shape in delta.shapes for delta in deltas):
            shapes.append(stat)
    return RoutineFilter("bench", tuple(filter_writer.usable(map(filter_writer.from_shape, shapes), shapes)))


def saved(analyzer: LogAnalyzer, delta: Delta, known: RoutineFilter) -> Saved:
    cache = template_cache.shapes(analyzer.gate, analyzer.filters)
    began = time.process_time()
    folded = routine.fold(delta, (known,), cache)
    cost = (time.process_time() - began) / max(delta.lines, 1)
    shares = [1 - after / before for before, after in zip(_sizes(delta), _sizes(folded), strict=True)]
    return Saved(shares[0], shares[1], shares[2], 1e6 * cost)


def _sizes(delta: Delta) -> tuple[int, int, int]:
    digest = compress.digest(delta)
    return len(compress.to_bytes(delta)), digest.compression.bytes_out, len(digest.render(_TOKENS).encode())


def labelled_lines() -> list[str]:
    lines = []
    for folder in _LABELLED:
        for text in (CORPUS / folder / "labels.jsonl").read_text("utf-8").splitlines():
            label = json.loads(text)
            log = (CORPUS / folder / f"{label['id']}.log").read_bytes().split(b"\n")
            for number in (*label["root_lines"], *label["symptom_lines"]):
                lines.append(log[number - 1].decode("utf-8", "replace"))
    return lines


def _tell(name: str, rows: Sequence[Saved]) -> None:
    stored, view, rendered, cost = (median(column) for column in zip(*rows, strict=True))
    print(f"{name}: stored {stored:.0%}, whole view {view:.0%}, view of 8k tokens {rendered:.0%}, {cost:.2f} us a line")  # noqa: T201


def main() -> int:
    analyzer, filters = accuracy_bars.load(), list[RoutineFilter]()
    for family in FAMILIES:
        deltas = [read(analyzer, log) for log in runs(family)]
        known = learned(analyzer, deltas[:LEARNED_FROM])
        filters.append(known)
        _tell(family, [saved(analyzer, delta, known) for delta in deltas[LEARNED_FROM:]])
    if not CORPUS.is_dir():
        return 0
    rows = []
    for log in sorted((CORPUS / "normal").glob("*.log")):
        delta = read(analyzer, log.read_bytes()[:_LARGEST])
        known = learned(analyzer, [delta])
        filters.append(known)
        rows.append(saved(analyzer, delta, known))
    _tell(f"{len(rows)} healthy logs, by filters of their own shapes", rows)
    lines = labelled_lines()
    hidden = [line for known in filters if (line := touched_by(known, lines))]
    print(f"{len(hidden)} of {len(filters)} families' filters would hide one of {len(lines)} labelled lines: {hidden}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
