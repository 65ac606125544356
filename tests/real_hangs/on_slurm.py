"""A hang on a real Slurm: one node a rank, so that the node is known, too."""

from pathlib import Path

from tests.integration.slurm import cluster as slurm
from tests.real_hangs import runs
from tests.real_hangs.runs import HangCase, HangLabel

SCRIPT = """#!/bin/bash
srun --label bash -c 'echo $SLURMD_NODENAME > {folder}/node_$SLURM_PROCID; exec {command}'
"""


def run(case: HangCase, folder: Path) -> HangLabel:
    """folder: new, gets the evidence and the label. The job runs as who runs this: it reads the torch environment."""
    runs.prepare(case, folder)
    with slurm.running("hangs", case.ranks) as cluster:
        script = folder / "job.sh"
        script.write_text(SCRIPT.format(folder=folder, command=" ".join(runs.command(case, folder))))
        placed = (f"--nodes={case.ranks}", "--ntasks-per-node=1")
        cluster.run("sbatch", "--parsable", "-o", str(folder / "output.log"), *placed, str(script))
        return runs.collect(case, folder, lambda rank: (folder / f"node_{rank}").read_text().strip())
