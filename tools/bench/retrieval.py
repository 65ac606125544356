"""How long a search among 100,000 confirmed failures takes, on one core: ``python -m tools.bench.retrieval``.

Set OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1 to hold the product to one core.
"""

import statistics
import sys
import time

import numpy as np

from diagnoser.model import AttemptKey, ConfirmedFailure, FeedbackVerdict, Signature
from diagnoser.model.taxonomy import FailureType
from diagnoser.retrieval import hashing, signature
from diagnoser.retrieval.index import Index

COUNT, ROUNDS = 100_000, 50


def main() -> None:
    index, chance = Index(), np.random.default_rng(1)
    for number in range(COUNT):
        sign = Signature(f"incident {number}")
        one = ConfirmedFailure(
            f"{number:08d}",
            AttemptKey(f"job-{number}"),
            0.0,
            0.0,
            FailureType.KEY_ERROR,
            FeedbackVerdict.CONFIRMED,
            "somebody",
            sign,
        )
        index.put(one, chance.standard_normal(hashing.DIMENSIONS).astype(np.float32))
    sign = Signature("\n".join(f"feeder {word}: shard catalogue differs from the manifest" for word in "abcdefgh"))
    embed, search = [], []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        vector = signature.vector(sign)
        middle = time.perf_counter()
        index.nearest(vector, 8)
        embed.append(middle - begun)
        search.append(time.perf_counter() - middle)
    for name, seconds in (("embed", embed), ("search", search)):
        middle, worst = statistics.median(seconds) * 1000, max(seconds) * 1000
        sys.stdout.write(f"{name}: median {middle:.1f} ms, worst {worst:.1f} ms of {ROUNDS}\n")


if __name__ == "__main__":
    main()
