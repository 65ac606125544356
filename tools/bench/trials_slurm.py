"""An evaluation on a real Slurm in the paper's proportions: a job a data set against `evaluations run --slurm`.

    python -m tools.bench.trials_slurm [SECONDS]

63 data sets (``tools.bench.trials.mix``) on one node and on four, of eight slots each, side by side. Jobs, servers,
clients, metrics and the coordinator are real processes. What they would compute is a wait: two cores cannot start 32
engines at once, and would be what is measured. SECONDS is what the start of an engine takes (20), the rest goes with
it. A coupled job starts its engine, infers and scores while it holds its slot; the longest is submitted first. The
lower bound knows all times and no Slurm: it is what no schedule beats.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from diagnoser.evaluations.runtime_estimates import RuntimeEstimates
from diagnoser.evaluations.schedule import in_line, schedule
from diagnoser.model.evaluations import Node, Suite
from tests.integration.slurm import cluster as slurm
from tests.integration.slurm.cluster import Cluster, until
from tools.bench.trials import GPUS, LOAD, SCORERS, mix

ROOT = Path(__file__).parents[2]
ENGINE = (sys.executable, "-I", "-S", str(Path(__file__).with_name("waiting_engine.py")))
SIZES = (1, 4)
MIX = 1
"""Of those of ``tools.bench.trials``, whose bound is about the median of 15."""
CORES = 32
"""Of a node: a coupled job has an eighth of them, as it has of the GPUs."""
SILENT = 300
"""Seconds: on a machine with few cores a node may be slow to answer, and is not dead."""
CLIENT = 0.5
"""Seconds of a process that asks a server, for the bound."""
WARM_UP = 10
"""Samples of a task, of a run that measures what the start of a server takes: later ones know it."""


@dataclass(frozen=True, slots=True)
class Site:
    """A part of the cluster, which is a partition. names: of its nodes."""

    cluster: Cluster
    names: Sequence[str]
    folder: Path

    @property
    def partition(self) -> str:
        return f"nodes{len(self.names)}"


def main() -> None:
    start = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    if why := slurm.missing():
        raise SystemExit(f"needs a real Slurm: {why}")
    parts, first = [], 1
    for size in SIZES:
        parts.append([f"gpu-{number:02}" for number in range(first, first + size)])
        first += size
    partitions = [f"PartitionName=nodes{len(names)} Nodes={','.join(names)} State=UP" for names in parts]
    with (
        tempfile.TemporaryDirectory() as made,
        slurm.running("trials-bench", sum(SIZES), SILENT, cpus=CORES, settings=partitions) as cluster,
        ThreadPoolExecutor(len(SIZES)) as pool,
    ):
        sites = [Site(cluster, names, Path(made) / str(len(names))) for names in parts]
        for line in pool.map(lambda site: compare(site, start), sites):
            print(line, flush=True)  # noqa: T201


def compare(site: Site, start: float) -> str:
    site.folder.mkdir()
    (site.folder / "step-1000").write_text("weights")
    suite, known = scaled_mix(start)
    suite = replace(suite, checkpoints=(str(site.folder / "step-1000"),), scorers=SCORERS * len(site.names))
    nodes = [Node(name, GPUS) for name in site.names]
    bound = schedule(suite, known, nodes).lower_bound
    usual, expected = coupled_jobs(site, suite, known)
    warm_up = [replace(task, samples=WARM_UP) for task in suite.tasks[:2]]
    coordinated(site, replace(suite, name="warm-up", tasks=tuple(warm_up)), known)
    done = coordinated(site, suite, known)
    if {trial["task"]: trial["scores"] for trial in done["trials"]} != expected:
        raise SystemExit("the scores differ")
    held = sum(job_seconds(suite, known).values())
    return (
        f"{len(nodes)} nodes: a job a data set {usual:.0f} s ({in_line(suite, known, nodes):.0f} s without Slurm), "
        f"coordinator {done['seconds']:.0f} s (lower bound {bound:.0f} s): {usual / done['seconds']:.2f} x "
        f"(at most {usual / bound:.2f} x); GPU time {done['gpu_seconds'] / held:.2f} x; the same scores"
    )


def scaled_mix(start: float) -> tuple[Suite, RuntimeEstimates]:
    """The paper's proportions, with a start that a slot pays once a server, and a coupled job pays, too."""
    suite, known, _ = mix(MIX)
    scale = start / LOAD
    samples = {task: seconds * scale for task, seconds in known.samples.items()}
    scores = {task: seconds * scale for task, seconds in known.scores.items()}
    return suite, RuntimeEstimates(samples, scores, start, CLIENT)


def job_seconds(suite: Suite, known: RuntimeEstimates) -> dict[str, float]:
    """What each data set takes as a coupled job, by its name."""
    jobs = {}
    for task in suite.tasks:
        jobs[task.name] = known.load + task.samples * known.samples[task.name] + known.scores[task.name]
    return jobs


def coupled_jobs(site: Site, suite: Suite, known: RuntimeEstimates) -> tuple[float, dict[str, Any]]:
    """Run a job a data set, all submitted at once as an array. Returns seconds, and scores by task."""
    place, begun = site.folder / "coupled", time.monotonic()
    seconds = job_seconds(suite, known)
    place.mkdir()
    for number, task in enumerate(sorted(suite.tasks, key=lambda task: -seconds[task.name])):
        samples, scores = place / task.name, place / f"{task.name}.json"
        samples.mkdir()
        infer = (*ENGINE, "infer", task.name, "0", str(task.samples), str(samples), str(known.samples[task.name]))
        score = (*ENGINE, "score", str(samples), str(scores), str(known.scores[task.name]))
        runs = f"sleep {known.load} && {subprocess.list2cmdline(infer)} && {subprocess.list2cmdline(score)}"
        (place / f"{number}.sh").write_text(runs)
    where = (f"--partition={site.partition}", "--ntasks=1", f"--cpus-per-task={CORES // GPUS}")
    jobs = (f"--array=0-{len(suite.tasks) - 1}", f"--output={place}/%a.log")
    site.cluster.run("sbatch", *where, *jobs, f"--wrap=sh {place}/$SLURM_ARRAY_TASK_ID.sh")
    queue = ("squeue", "-h", f"--partition={site.partition}")
    until(lambda: not site.cluster.run(*queue), "all jobs have ended", 3600)
    took = time.monotonic() - begun
    return took, {task.name: json.loads((place / f"{task.name}.json").read_text()) for task in suite.tasks}


def coordinated(site: Site, suite: Suite, known: RuntimeEstimates) -> dict[str, Any]:
    """Run the suite with the settings that a person gets. Returns what the command prints."""
    tasks = []
    for task in suite.tasks:
        rate, metric = known.samples[task.name], known.scores[task.name]
        infer = [*ENGINE, "infer", "{task}", "{first}", "{last}", "{samples}", str(rate), "{url}"]
        score = [*ENGINE, "score", "{samples}", "{scores}", str(metric)]
        times = {"sample_seconds": rate, "score_seconds": metric}
        tasks.append({"name": task.name, "samples": task.samples, **times, "infer": infer, "score": score})
    written = {
        "name": suite.name,
        "checkpoints": list(suite.checkpoints),
        "scorers": suite.scorers,
        "engine": {"infer": tasks[0]["infer"], "score": tasks[0]["score"]},
        "server": {"command": [*ENGINE, "serve", "{port}", str(known.load)], "ready": "/", "url": "/"},
        "tasks": tasks,
    }
    path = site.folder / f"{suite.name}.yaml"
    path.write_text(yaml.safe_dump(written))
    words = [sys.executable, "-m", "diagnoser", "evaluations", "run", str(path), "--slurm", "--gres", "", "--json"]
    for name in site.names:
        words += ["--node", f"{name}={GPUS}"]
    words += ["--folder", str(site.folder / "runs"), "--weights", ""]
    words += [f"--sbatch=--partition={site.partition}", f"--sbatch-score=--partition={site.partition}"]
    settings = {"DIAGNOSER_DATABASE_URL": f"sqlite:///{site.folder}/bench.db", "PYTHONPATH": str(ROOT)}
    environment = site.cluster.environment | settings
    printed = subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True).stdout
    done: dict[str, Any] = json.loads(printed)
    return done


if __name__ == "__main__":
    main()
