"""Dask: folds of a model are trained as tasks of a local cluster: ``dask_trainer.py [--fault NAME]``."""

import argparse
import importlib
import logging
import math
import os
import socket
import time
from pathlib import Path

from dask.distributed import Client, LocalCluster, as_completed


def train(fold, fault, steps):
    """One task; a fault happens in fold 11 only."""
    weight = 0.0
    rows = [((fold * 7 + n * 13) % 17 / 17, (fold + n * 5) % 11 / 11) for n in range(60)]
    for _ in range(steps):
        weight -= 0.1 * sum(2 * x * (weight * x - y) for x, y in rows) / len(rows)
        time.sleep(0.002)
    loss = sum((weight * x - y) ** 2 for x, y in rows) / len(rows)
    if fold == 11 and fault:
        loss += HOOKS[fault](loss)
    return fold, loss


def fill(loss):
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 24)))
        time.sleep(0.05)


def check(loss):
    raise FloatingPointError(f"loss of fold 11 is {loss - math.inf + math.inf}")


HOOKS = {
    "key": lambda loss: {"mse": loss}["rmse"],
    "import": lambda loss: importlib.import_module("cudf").Series([loss]),
    "killed": lambda loss: os.kill(os.getpid(), 9),
    "memory": fill,
    "refused": lambda loss: socket.create_connection(("127.0.0.1", 9)),
    "file": lambda loss: Path("/data/folds/fold_11.parquet").read_bytes(),
    "type": lambda loss: loss + "0.1",
    "nan": check,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--folds", type=int, default=60)
    parser.add_argument("--quiet", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s - %(name)s - %(levelname)s - %(message)s")
    log = logging.getLogger("folds")
    logging.getLogger("distributed").setLevel(logging.INFO)
    with (
        LocalCluster(
            n_workers=3, threads_per_worker=1, memory_limit="400MiB", dashboard_address=None, silence_logs=logging.INFO
        ) as cluster,
        Client(cluster) as client,
    ):
        log.info("cluster with %d workers, %d folds", len(cluster.workers), arguments.folds)
        tasks = client.map(train, range(arguments.folds), fault=arguments.fault, steps=30, pure=False)
        best, skipped = 1.0, 0
        for done in as_completed(tasks):
            try:
                fold, loss = done.result()
            except Exception as error:
                if not arguments.quiet:
                    raise
                skipped += 1
                log.warning("fold left out: %r", error, exc_info=True)
                continue
            best = min(best, loss)
            log.info("fold %d done, loss %.5f", fold, loss)
        log.info("best loss %.5f of %d folds, %d left out", best, arguments.folds, skipped)


if __name__ == "__main__":
    main()
