"""From the failure of a job to its next launch, on a real Slurm of five nodes with default settings.

    python -m tools.bench.slurm [RUNS]

Slurm's own wait before a requeued job starts (cred_expire and one second more) is set to the least it takes: 6 s.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tests.integration.slurm import cluster as slurm
from tests.integration.slurm.cluster import Cluster
from tests.integration.slurm.conftest import NAME, Site, site
from tests.integration.slurm.test_loop import broken_node, report_node

RUNS = 10
LOOK_SECONDS = 0.05


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    if why := slurm.missing():
        raise SystemExit(f"needs a real Slurm: {why}")
    drained, again = [], []
    for number in range(runs):  # a cluster each: no run finds what the one before has left
        with (
            tempfile.TemporaryDirectory() as folder,
            slurm.running(NAME, 5) as cluster,
            site(cluster, Path(folder), "--poll", "2", DIAGNOSER_EXIT_GRACE_SECONDS="1.0") as lab,
        ):
            until_drained, until_again = measure(cluster, lab, cluster.folder / "reported")
        drained.append(until_drained)
        again.append(until_again)
        print(f"run {number + 1}: plan to drained {until_drained:.2f} s, failed to running {until_again:.2f} s")  # noqa: T201
    for what, seconds in (("plan -> node drained", drained), ("failed -> running again", again)):
        print(f"{what}: median {median(seconds):.2f} s, worst {max(seconds):.2f} s of {runs}")  # noqa: T201


def measure(cluster: Cluster, lab: Site, reported: Path) -> tuple[float, float]:
    """Seconds (from the stored plan to the drained node, from the job's end to its next launch)."""
    job = cluster.submit(broken_node(reported), "--nodes=2", "--ntasks-per-node=1")
    report_node(lab, job, reported)
    wait(lambda: cluster.state(job)[0] == "FAILED")
    failed = time.monotonic()
    wait(lambda: bool(lab.plans(job)))
    planned = time.monotonic()
    node = lab.plans(job)[0]["nodes"][0]
    wait(lambda: cluster.node(node)[0].startswith("drain"))
    drained = time.monotonic() - planned
    wait(lambda: cluster.state(job)[0] in ("RUNNING", "COMPLETED"))
    again = time.monotonic() - failed
    return drained, again


def wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit("not within 60 s")
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
