"""Real hangs: ``python -m tests.real_hangs DIR`` makes 30 runs over ten kinds (30 minutes on 2 cores) and scores them.

Runs that are in DIR already are scored only. Needs `make torch`; a cut network needs root, and some runs Slurm.
"""

import argparse
import shutil
import sys
from pathlib import Path

from tests.environments import TORCH
from tests.integration.slurm import cluster as slurm
from tests.real_hangs import on_slurm, runs
from tests.real_hangs.runs import LABEL, HangKind
from tests.real_hangs.score import scores, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", action="append", choices=[str(kind) for kind in HangKind], help="only these")
    parser.add_argument("--ranks", type=int, action="append", choices=runs.SIZES, help="only with so many ranks")
    chosen = parser.parse_args()
    if TORCH.missing:
        sys.exit(TORCH.missing)
    kinds, sizes = chosen.kind or list(HangKind), chosen.ranks or runs.SIZES
    for case in runs.cases():
        folder = chosen.folder.resolve() / case.name
        if case.kind not in kinds or case.ranks not in sizes or (folder / LABEL).exists():
            continue
        shutil.rmtree(folder, ignore_errors=True)
        if why := (slurm.missing() if case.on_slurm else runs.missing(case)):
            sys.stderr.write(f"{case.name}: {why}\n")
            continue
        label = (on_slurm.run if case.on_slurm else runs.run)(case, folder)
        sys.stderr.write(f"{case.name}: {'shown' if label.shown else 'not shown'}\n")
    sys.stdout.write(table(scores(chosen.folder)) + "\n")


if __name__ == "__main__":
    main()
