"""Starts a trainer's processes as workers of a pool: ``pool_launcher.py multiprocessing|joblib TRAINER ...``."""

import concurrent.futures
import multiprocessing
import os
import runpy
import sys


def work(rank, program, arguments):
    os.environ["PROCESS_ID"] = str(rank)
    sys.argv = [program, *arguments]
    sys.path.insert(0, os.path.dirname(program))
    runpy.run_path(program, run_name="__main__")
    return rank


def main():
    kind, program, *arguments = sys.argv[1:]
    ranks = int(os.environ["NUM_PROCESSES"])
    if kind == "joblib":
        from joblib import Parallel, delayed

        done = Parallel(n_jobs=ranks, verbose=10)(delayed(work)(rank, program, arguments) for rank in range(ranks))
    else:
        with concurrent.futures.ProcessPoolExecutor(ranks, multiprocessing.get_context("spawn")) as pool:
            started = [pool.submit(work, rank, program, arguments) for rank in range(ranks)]
            done = [future.result() for future in started]
    print(f"{len(done)} of {ranks} workers returned")


if __name__ == "__main__":
    main()
