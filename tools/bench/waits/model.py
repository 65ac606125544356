"""A "model" of waits for evaluations on a real Slurm: it reads real weights, and writes small functions one by one.

model.py CHECKPOINT TASK FIRST LAST SAMPLES --storage MB/S --sample SECONDS

Weights are read at the speed of the storage, but for those in shared memory. A sample takes a wait of known length, so
that many of these run beside each other on two cores. Which functions it gets wrong depends on the weights alone.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

CHUNK = 1 << 20
MEMORY = "/dev/shm/"
PROBLEMS = {
    "add": ("def add(a, b):\n    return a {} b\n", "+", "-", "assert add(2, {n}) == 2 + {n}"),
    "largest": ("def largest(v):\n    return {}(v)\n", "max", "min", "assert largest([1, {n} + 2, 2]) == {n} + 2"),
    "count": ("def count(v):\n    return len(v) {} 0\n", "+", "<", "assert count(['x'] * ({n} + 2)) == {n} + 2"),
    "reverse": (
        "def reverse(v):\n    return v[::{}]\n",
        "-1",
        "1",
        "assert reverse('ab' * ({n} + 1)) == 'ba' * ({n} + 1)",
    ),
    "is_even": ("def is_even(n):\n    return n % 2 {} 0\n", "==", "!=", "assert is_even({n}) == ({n} % 2 == 0)"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("checkpoint", "task", "first", "last", "samples"):
        parser.add_argument(name)
    parser.add_argument("--storage", type=float, required=True)
    parser.add_argument("--sample", type=float, required=True)
    given = parser.parse_args()
    weights = load(Path(given.checkpoint), 0 if given.checkpoint.startswith(MEMORY) else given.storage * 1e6)
    if loaded := os.environ.get("DIAGNOSER_TRIAL_LOADED"):
        Path(loaded).touch()
    with Path(given.samples, "samples.jsonl").open("w") as file:
        for number in range(int(given.first), int(given.last)):
            time.sleep(given.sample)
            file.write(json.dumps(sample(weights, given.task, number)) + "\n")


def load(path: Path, rate: float) -> bytes:
    """A digest of the weights. rate: bytes a second, 0 for no limit."""
    digest, begun, done = hashlib.sha256(), time.monotonic(), 0
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            digest.update(data)
            done += len(data)
            if rate:
                time.sleep(max(0.0, begun + done / rate - time.monotonic()))
    return digest.digest()


def sample(weights: bytes, task: str, number: int) -> dict[str, str]:
    """A function that passes its test in seven of ten cases."""
    drawn = hashlib.sha256(weights + f"{task} {number}".encode()).digest()
    code, right, wrong, test = list(PROBLEMS.values())[drawn[0] % len(PROBLEMS)]
    return {"code": code.format(right if drawn[1] < 180 else wrong), "test": test.format(n=number)}


if __name__ == "__main__":
    main()
