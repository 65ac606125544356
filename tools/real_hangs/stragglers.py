"""Real stragglers: ``python -m tools.real_hangs.stragglers`` runs twelve jobs on a real Slurm (20 minutes on 2 cores).

From some step on one rank is nine times slower, while steps are printed. Says of each job what the service told.
"""

import json
import random
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests import reaper
from tests.environments import TORCH
from tests.integration.slurm import cluster as slurm
from tests.integration.slurm.cluster import until
from tests.integration.slurm.conftest import NAME, Site, site
from tests.receiver import Receiver, running
from tools.real_hangs.on_slurm import SCRIPT, STEP_SECONDS, end_job
from tools.real_hangs.runs import TRAINER

KINDS, SIZES = ("computes_slowly", "reads_slowly", "waits_slowly"), (4, 8)
RUNS = 2
"""Of each kind and size."""
TOLD_SECONDS = 150.0


def main() -> None:
    if why := TORCH.missing or slurm.missing():
        sys.exit(why)
    hook = Receiver()
    with (
        running(hook),
        slurm.running(NAME, max(SIZES)) as cluster,
        tempfile.TemporaryDirectory() as scratch,
    ):
        tools = cluster.folder / "tools"
        for folder in (tools, cluster.folder / "dumps"):
            folder.mkdir()
        (tools / "py-spy").symlink_to(TORCH.folder / "bin/py-spy")
        variables = {"PATH": f"{tools}:{cluster.environment['PATH']}"}
        with site(
            cluster,
            Path(scratch),
            "--collect-evidence",
            variables=variables,
            DIAGNOSER_SLACK_URL=hook.url,
            DIAGNOSER_ALLOW_PRIVATE_TARGETS="true",
        ) as lab:
            for number in range(RUNS * len(KINDS) * len(SIZES)):
                run(lab, hook, KINDS[number % 3], SIZES[number // 3 % 2], number)


def run(lab: Site, hook: Receiver, kind: str, ranks: int, seed: int) -> None:
    """One job, until its straggler is named."""
    rng, cluster = random.Random(seed), lab.cluster
    culprit, step_seconds = rng.randrange(ranks), rng.uniform(*STEP_SECONDS)
    script, dumps = cluster.folder / "job.sh", cluster.folder / "dumps"
    command = f"{TORCH.python} {TRAINER} . {kind} {ranks} {culprit} {seed} {step_seconds:.2f}"
    script.write_text(SCRIPT.format(dumps=dumps, command=command))
    output = f"{cluster.folder}/jobs/%j.log"
    job = cluster.run(
        "sbatch", "--parsable", "--hold", f"--nodes={ranks}", "--ntasks-per-node=1", "-o", output, str(script)
    )
    (dumps / job).mkdir()
    cluster.run("scontrol", "release", job)
    seen = len(hook.requests)

    def told() -> list[str]:
        bodies = (json.loads(body) for _, body in hook.requests[seen:])
        return [text for text in map(str, bodies) if "straggler" in text or "times as long" in text]

    held = dumps / job / "held"
    until(held.exists, "the culprit is slow", 240.0)
    begin = time.time()
    with suppress(AssertionError):
        until(told, "a straggler is named", TOLD_SECONDS)
    seconds = time.time() - begin
    node = (dumps / job / f"node_{culprit}").read_text().strip()
    named = "named" if f"rank {culprit} on {node} is a straggler" in "".join(told()) else f"not named {told()[:1]}"
    verdict = lab.get(f"/jobs/slurm-{NAME}-{job}")["attempts"][0]["diagnosis"] or {}
    outcome = verdict.get("outcome", "none")
    sys.stdout.write(f"{kind} {ranks} ranks, step {step_seconds:.1f} s: {named}, {seconds:.0f} s; verdict: {outcome}\n")
    sys.stdout.flush()
    end_job(cluster, job)


if __name__ == "__main__":
    reaper.watch()
    main()
