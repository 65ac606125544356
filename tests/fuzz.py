"""Fuzz targets for the line reader and the compressor behind it, evidence of hangs and requests: nothing may break.

``python -m tests.fuzz SECONDS [SEED]`` mutates seeds in the form of real messages and files. ``one_input`` has the
shape that coverage-guided fuzzers call.
"""

import random
import sys
import time

from diagnoser.compress import Compressor, CompressorLimits, digest, from_bytes, merge, to_bytes
from diagnoser.compress.blocks import whole_lines
from diagnoser.compress.line_masking import blurred
from diagnoser.compress.lines import LONGEST, body_of, clean
from diagnoser.model import LineBlock, Stream
from tests import hostile_evidence, hostile_requests

SEEDS = (
    b"12: [rank12]: RuntimeError: lost\n",
    b'[default3]:  File "a.py", line 9, in f\n',
    b"Traceback (most recent call last):\n",
    b"\r  5%|\xe2\x96\x88   | 1/20 [00:01<00:20,  1.0s/it]",
    b"\x1b[31mERROR\x1b[0m x\r\n",
    b"node-1:7:9 [3] NCCL WARN y\n",
    b"(f pid=7, ip=10.0.0.1) z\n",
    b"2026-01-02T03:04:05.123456789Z stdout F w\n",
    b"9999-99-99 99:99:99 step: 99999999999999999999 loss: 1e999\n",
    b"1970-01-01 00:00:00 back\n",
    b"frame #0: f() + 0x1 (0x7f in x.so)\n",
    b"    @     0x7f3300112233  g()\n",
    b"Caused by: a.b.CError: d\n",
    b"\0\0\xff\xfe\xe2\x96",
    b"\n",
    b"\r",
    b"\x1b[",
    b"%|",
    b"it/s]",
    b"9" * 70,
    b" " * 70,
)


def one_input(data: bytes) -> None:
    """Raises AssertionError where a promise does not hold."""
    lines = clean(data).lines
    whole = data[:-1] if data.endswith(b"\n") else data
    assert len(lines) == whole.count(b"\n") + 1
    assert all(len(line) <= LONGEST and b"\n" not in line and b"\0" not in line for line in lines)
    assert blurred(b"\n".join(lines)).split(b"\n") == [blurred(line) for line in lines]
    for line in lines:
        assert line.endswith(body_of(line)[1])
    _compressed(data, len(lines) if data else 0)


def _compressed(data: bytes, count: int) -> None:
    parts, number = [], 1
    for block, missing in whole_lines([data[at : at + 512] for at in range(0, len(data), 512)], most=4096):
        compressor = Compressor()
        compressor.feed(LineBlock(Stream(), block, number, missing=missing))
        number += block.count(b"\n") + (not block.endswith(b"\n"))
        parts.append(to_bytes(compressor.take()))
    assert number - 1 == count
    merged = merge(map(from_bytes, parts))
    assert (merged.lines, merged.bytes) == (count, len(data))
    assert len(merged.shapes) <= CompressorLimits().shapes
    view = digest(merged)
    evidence = view.evidence
    assert [line.number for line in evidence.lines if line.stream != Stream()] == []
    joined = [index for trace in evidence.tracebacks for index in trace.lines]
    assert all(0 <= index < len(evidence.lines) for index in joined)
    assert len(view.render(500)) < 6000


def mutated(rng: random.Random) -> bytes:
    """Seeds joined, cut, repeated and flipped."""
    parts = [rng.choice(SEEDS) for _ in range(rng.randint(1, 40))]
    data = bytearray(b"".join(part * (rng.randint(1, 60) if rng.random() < 0.1 else 1) for part in parts))
    for _ in range(rng.randint(0, 12)):
        at = rng.randrange(len(data))
        if rng.random() < 0.5:
            data[at] = rng.randrange(256)
        else:
            del data[at : at + rng.randint(1, 9)]
            data = data or bytearray(b"x")
    return bytes(data)


def main() -> None:
    seconds, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 10**9
    rng, end, count = random.Random(seed), time.monotonic() + seconds, 0
    targets = (
        (mutated, one_input),
        (hostile_evidence.mutated, hostile_evidence.one_input),
        (hostile_requests.mutated, hostile_requests.one_input),
    )
    while time.monotonic() < end:
        mutate, use = targets[count % len(targets)]
        data = mutate(rng)
        try:
            use(data)
        except Exception:
            sys.stderr.write(f"seed {seed}, input {count}: {data!r}\n")
            raise
        count += 1
    sys.stdout.write(f"{count} inputs, seed {seed}: nothing broke\n")


if __name__ == "__main__":
    main()
