"""Each function measures one row of the table. Times are of one process on one core (``time.process_time``)."""

import itertools
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from drain3 import TemplateMiner
from drain3.masking import MaskingInstruction
from drain3.template_miner_config import TemplateMinerConfig

from diagnoser.compress import Compressor, Delta, Digest, FilterSet, Prefilter, digest
from diagnoser.compress.render import tokens
from diagnoser.compress.template_cache import shapes
from diagnoser.compress.templates import MASKS
from diagnoser.model import LineBlock, Stream
from tests import accuracy_bars
from tools.bench import logs

ROOT = Path(__file__).resolve().parents[2]
_PLAIN_SECONDS = 1.0
"""Plain Drain3 reads a log for so long; its rate hardly changes after that."""


def knowledge() -> tuple[Prefilter, FilterSet]:
    """The gate and filters that the service compresses with."""
    analyzer = accuracy_bars.load()
    return analyzer.gate, analyzer.filters


def compress(data: bytes) -> Delta:
    compressor = Compressor(*knowledge())
    compressor.feed(LineBlock(Stream(), data))
    return compressor.take()


def view(data: bytes) -> Digest:
    return digest(compress(data))


@dataclass(frozen=True)
class Speed:
    """Lines a second of one log. first: no shape was seen before. known: the process has seen them, as in a service or
    in a log that goes on. read: with the digest, templates and all, made once at the end (shapes known). whole: the
    same with no shape seen before.
    """

    name: str
    lines: int
    plain: float
    first: float
    known: float
    read: float
    whole: float


def speed(name: str, data: bytes) -> Speed:
    count = data.count(b"\n") + 1
    plain = _plain(data)
    cache_of_shapes = shapes(*knowledge())
    cache_of_shapes.known.clear()
    first = _seconds(lambda: compress(data))
    known = min(_seconds(lambda: compress(data)) for _ in range(3))
    read = _seconds(lambda: digest(compress(data)).evidence)
    cache_of_shapes.known.clear()
    whole = _seconds(lambda: digest(compress(data)).evidence)
    return Speed(name, count, plain, count / first, count / known, count / read, count / whole)


def small_blocks(data: bytes, streams: int = 1000, lines: int = 10) -> float:
    """Microseconds a block of so many lines from each of many streams costs, fed and taken, shapes known."""
    text = data.split(b"\n")
    text *= streams * lines // len(text) + 1
    blocks = [
        LineBlock(Stream("stdout", f"n{rank // 8}", rank), b"\n".join(text[rank * lines : (rank + 1) * lines]) + b"\n")
        for rank in range(streams)
    ]
    costs = []
    for _ in range(3):
        compressor = Compressor(*knowledge())
        costs.append(_seconds(lambda fed=compressor: (*map(fed.feed, blocks), fed.take())))
    return 1e6 * min(costs) / streams


def _seconds(work: object) -> float:
    assert callable(work)
    start = time.process_time()
    work()
    return max(time.process_time() - start, 1e-9)


def rule_share(data: bytes) -> float:
    """Time that the whole rule set takes on the lines that are kept of a log, over that of compressing the log."""
    engine, evidence = accuracy_bars.load().knowledge.engine, view(data).evidence
    return min(_seconds(lambda: engine.match(evidence)) for _ in range(3)) / _seconds(lambda: compress(data))


def _plain(data: bytes) -> float:
    """Lines a second of Drain3 as it comes, with our masks as its masking instructions."""
    config = TemplateMinerConfig()
    config.masking_instructions = [MaskingInstruction(pattern.pattern, name.strip("<>")) for pattern, name in MASKS]
    miner = TemplateMiner(config=config)
    lines = data.decode("utf-8", "replace").split("\n")
    start = time.process_time()
    for index, line in enumerate(lines):
        miner.add_log_message(line)
        if time.process_time() - start > _PLAIN_SECONDS:
            return (index + 1) / (time.process_time() - start)
    return len(lines) / (time.process_time() - start)


def steady_ratios(size: int) -> list[float]:
    """bytes out / bytes in of logs that go on for ``size`` bytes: generated ones, and large healthy ones repeated."""
    made = [logs.steady(size, ranks) for ranks in (1, 8, 64)]
    large = [data for data in logs.healthy().values() if len(data) >= 3_000_000]
    made += [data * (size // len(data) + 1) for data in large[:4]]
    return [ratio(data) for data in made]


def ratio(data: bytes) -> float:
    made = view(data).compression
    return made.bytes_out / made.bytes_in


def crash_ratios() -> list[float]:
    whole = [data for _, data in logs.labelled("dev-full") if 50_000 <= len(data) <= 1_000_000]
    return [ratio(data) for data in whole]


def kept_shares() -> list[float]:
    done = logs.completed()
    large = [data for name, data in logs.healthy().items() if name in done and len(data) >= 1_000_000]
    return [view(data).compression.lines_out / (data.count(b"\n") + 1) for data in large]


def missed(names: Iterable[str], healthy: list[bytes], seed: int = 11, every: int = 1) -> tuple[list[str], int]:
    """(ids whose root line was not kept, cases). With ``healthy`` logs each case is put at a random line of one.

    every: of the cases of a set, the first and every so many after it.
    """
    rng, lost, cases = random.Random(seed), [], 0
    for name in names:
        for label, data in itertools.islice(logs.labelled(name), 0, None, every):
            roots = label["root_lines"]
            assert isinstance(roots, list)
            if not roots:
                continue
            cases += 1
            host, before = splice(data, rng.choice(healthy), rng) if healthy else (data, 0)
            numbers = {line.number - before for line in view(host).lines}
            if not numbers & set(roots):
                lost.append(str(label["id"]))
    return lost, cases


def splice(case: bytes, host: bytes, rng: random.Random) -> tuple[bytes, int]:
    """The case put between two lines of a healthy log, and the number of lines before it."""
    lines = host.split(b"\n")[:-1]
    at = rng.randrange(len(lines) + 1)
    body = case if case.endswith(b"\n") else case + b"\n"
    return b"".join(line + b"\n" for line in lines[:at]) + body + b"".join(x + b"\n" for x in lines[at:]), at


def widest_view(budget: int) -> int:
    """Tokens of the largest view of any healthy log, failure or all failures at once."""
    everything = b"".join(data for name in logs.SETS for _, data in logs.labelled(name))
    inputs = [*logs.healthy().values(), *(data for _, data in logs.labelled("dev-full")), everything]
    return max(tokens(view(data).render(budget)) for data in inputs if data)


def rank_growth(size: int) -> float:
    """Cost of a line with 1,024 interleaved ranks over that with 8: median of the largest logs without labels."""
    free = [data for data in logs.healthy().values() if not re.search(rb"(?m)^(?: *\d+: |\[rank)", data[:100_000])]
    growths = []
    for data in sorted(free or [logs.steady(size, 1)], key=len)[-5:]:
        base = data[:size]
        costs = [_cost(logs.labelled_ranks(base[: base.rfind(b"\n") + 1], ranks)) for ranks in (8, 1024)]
        growths.append(costs[1] / costs[0])
    return median(growths)


def size_growth(size: int) -> float:
    """Cost of a line in a log of four times the size over that in one of ``size`` bytes."""
    return _cost(logs.steady(4 * size, 8)) / _cost(logs.steady(size, 8))


def _cost(data: bytes) -> float:
    compress(data)
    return median(_seconds(lambda: compress(data)) for _ in range(3)) / data.count(b"\n")


def memory(megabytes: int) -> float:
    """MB that a process grows by while it compresses a stream of 64 ranks."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench.measure", str(megabytes)], cwd=ROOT, capture_output=True, check=True
    )
    return float(done.stdout)


def _grow(megabytes: int) -> float:
    compressor = Compressor(*knowledge())
    block = logs.steady(1_000_000, 64)
    compressor.feed(LineBlock(Stream(), block[:1000]))
    compressor.take()
    idle = _status("VmRSS")
    number, count = 1, block.count(b"\n")
    for _ in range(megabytes):
        compressor.feed(LineBlock(Stream(), block, number))
        number += count
    assert digest(compressor.take()).evidence.lines
    return _status("VmHWM") - idle


def _status(key: str) -> float:
    """MB. The peak of ``getrusage`` would count what the parent held when it forked."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))


if __name__ == "__main__":
    sys.stdout.write(f"{_grow(int(sys.argv[1])):.1f}\n")
