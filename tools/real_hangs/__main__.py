"""Real hangs: ``python -m tools.real_hangs DIR`` makes 30 runs over ten kinds (30 minutes on 2 cores) and scores them.

With --slurm they run on a real Slurm of 16 nodes, started on this machine, with a service and its agent: what these say
and do is scored, too. Runs that are in DIR already are scored only. Needs `make torch`; a cut network needs root.
"""

import argparse
import shutil
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tests import reaper
from tests.environments import TORCH
from tests.integration.slurm import cluster as slurm
from tools.real_hangs import on_slurm, runs, under_client
from tools.real_hangs.runs import LABEL, HangKind, Launcher
from tools.real_hangs.score import scores, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", action="append", choices=[str(kind) for kind in HangKind], help="only these")
    parser.add_argument("--ranks", type=int, action="append", choices=runs.SIZES, help="only with so many ranks")
    parser.add_argument("--slurm", action="store_true", help="as jobs of a real Slurm, watched by a real service")
    parser.add_argument("--client", action="store_true", help="below `client.pyz run`, without an agent")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    if why := TORCH.missing or (slurm.missing() if chosen.slurm else ""):
        sys.exit(why)
    kinds, sizes = chosen.kind or list(HangKind), chosen.ranks or runs.SIZES
    folders = {case: chosen.folder.resolve() / case.name for case in runs.cases()}
    due = [
        case
        for case, folder in folders.items()
        if case.kind in kinds and case.ranks in sizes and not (folder / LABEL).exists()
    ]
    launcher: AbstractContextManager[Launcher] = nullcontext(runs.run)
    if chosen.slurm and due:
        launcher = on_slurm.launcher()
    elif chosen.client and due:
        launcher = under_client.launcher()
    with launcher as launch:
        for case in due:
            shutil.rmtree(folders[case], ignore_errors=True)
            if why := runs.missing(case):
                sys.stderr.write(f"{case.name}: {why}\n")
                continue
            try:
                label = launch(case, folders[case])
            except AssertionError as error:
                sys.stderr.write(f"{case.name}: {error}\n")
                continue
            sys.stderr.write(f"{case.name}: {'shown' if label.shown else 'not shown'}\n")
    sys.stdout.write(table(scores(chosen.folder)) + "\n")


if __name__ == "__main__":
    reaper.watch()
    main()
