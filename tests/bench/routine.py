"""What learned Filter Rules know of healthy logs, without a model: ``python -m tests.bench.routine [LOGS]``.

Each log is taken as the first run of its family: rules are written from the shapes of its routine, segment by segment,
until nothing more is learned. LOGS: how many of the smallest healthy logs (85).
"""

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from diagnoser import compress
from diagnoser.compress import Delta, learned_filters
from diagnoser.compress.learned_filters import Known
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.learning import filter_validation, filter_writer, segments
from diagnoser.learning.filter_writer import Shown
from tests import accuracy_bars
from tests.corpus import CORPUS

ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Learned:
    """lines: of the log. unknown: in quiet shapes that no shipped filter knows. known: of these by learned rules.

    before, after: bytes of the view. asked: segments that rules were wanted for.
    """

    lines: int
    unknown: int
    known: int
    before: int
    after: int
    asked: int


def learned(reader: LogAnalyzer, log: Path) -> Learned:
    with log.open("rb") as opened:
        delta = compress.from_bytes(reader.delta(opened)[0])
    rules: list[Known] = []
    asked = 0
    for _ in range(ROUNDS):
        found, count = written(reader, learned_filters.known(delta, rules), len(rules))
        rules, asked = rules + found, asked + count
        if not found:
            break
    sizes = [compress.digest(one).compression.bytes_out for one in (delta, learned_filters.known(delta, rules))]
    unknown = sum(stat.count for stat in delta.shapes.values() if learned_filters.is_quiet(stat))
    marked = learned_filters.known(delta, rules).shapes.values()
    known = sum(stat.count for stat in marked if stat.filtered.startswith(learned_filters.LEARNED))
    return Learned(delta.lines, unknown, known, sizes[0], sizes[1], asked)


def written(reader: LogAnalyzer, delta: Delta, number: int) -> tuple[list[Known], int]:
    """Rules for the segments of a log, and how many segments there were."""
    anchors = reader.knowledge.anchors
    cuts = segments.of(delta, lambda text: filter_validation.carries(anchors, text))
    found: list[Known] = []
    for cut in cuts:
        lines = [Shown(one.text, one.text, one.count) for one in cut.samples]
        patterns = filter_writer.usable(filter_writer.from_shapes([one.text for one in lines], "-"), lines)
        found += [Known(f"rule_{number + len(found)}", tuple(patterns))] if patterns else []
    return found, len(cuts)


def main() -> int:
    if not CORPUS.is_dir():
        print("healthy logs absent: nothing to measure")  # noqa: T201
        return 0
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 85
    logs = sorted((CORPUS / "normal").glob("*.log"), key=lambda log: log.stat().st_size)[:most]
    reader = accuracy_bars.load()
    rows = [learned(reader, log) for log in logs]
    ratios = [row.after / row.before for row in rows]
    print(  # noqa: T201
        f"{len(rows)} logs, {sum(row.lines for row in rows)} lines; {sum(row.unknown for row in rows)} in quiet shapes "
        f"that no filter knows, {sum(row.known for row in rows)} of them known by learned rules; view after / before: "
        f"median {statistics.median(ratios):.3f}, least {min(ratios):.3f}; segments asked about in one log: at most "
        f"{max(row.asked for row in rows)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
