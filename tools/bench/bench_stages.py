"""Each stage from bytes to verdict, timed side by side by pytest-benchmark: for comparing two versions of the code.

pytest tools/bench/bench_stages.py --benchmark-autosave, then --benchmark-compare. The table of `make bench` is the
measure against plain Drain3; this tells which stage became slower. Nothing here asserts a time.
"""

import pytest
from drain3 import TemplateMiner
from pytest_benchmark.fixture import BenchmarkFixture

from diagnoser import compress
from diagnoser.config.loader import load_analyzer
from diagnoser.config.settings import Settings
from diagnoser.model import Facts
from tools.bench import logs, measure

READER = load_analyzer(Settings())
LOG = logs.steady(2_000_000, 64)
DELTA = measure.compress(LOG)
PACKED = compress.to_bytes(DELTA)
EVIDENCE = compress.digest(DELTA).evidence

pytestmark = pytest.mark.benchmark(min_rounds=3, warmup=True, warmup_iterations=1)


def test_plain_drain3_on_a_hundredth(benchmark: BenchmarkFixture) -> None:
    """The yardstick, on a hundredth of the lines."""
    lines = LOG.decode().split("\n")[::100]

    def mine() -> int:
        miner = TemplateMiner()
        return len([miner.add_log_message(line) for line in lines])

    assert benchmark(mine) == len(lines)


def test_compressor(benchmark: BenchmarkFixture) -> None:
    """Bytes -> delta."""
    assert benchmark(measure.compress, LOG).lines == DELTA.lines


def test_merge_of_sixteen(benchmark: BenchmarkFixture) -> None:
    """Stored deltas -> one delta."""
    merged = benchmark(lambda: compress.merge(map(compress.from_bytes, [PACKED] * 16)))
    assert merged.lines == 16 * DELTA.lines


def test_digest(benchmark: BenchmarkFixture) -> None:
    """Delta -> evidence."""
    assert benchmark(lambda: compress.digest(DELTA).evidence).lines


def test_rules(benchmark: BenchmarkFixture) -> None:
    """Evidence -> matches of all rules."""
    assert benchmark(READER.knowledge.engine.match, EVIDENCE) is not None


def test_diagnosis(benchmark: BenchmarkFixture) -> None:
    """Evidence -> verdict."""
    assert benchmark(READER.diagnose_with_node_logs, EVIDENCE, Facts()).compression == EVIDENCE.compression
