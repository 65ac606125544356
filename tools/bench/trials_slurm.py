"""An evaluation on a real Slurm: a job a data set, in line, against `evaluations run --slurm`, with equal scores.

    python -m tools.bench.trials_slurm [SECONDS]

Eight data sets, a real scorer, and the proportions of the paper: of what a job a data set holds its node for, a third
loads the model and a fifth computes the metric. Loads, samples and tests are waits of known length, since two cores
cannot serve four nodes; SECONDS is what a load takes (10), and the others go with it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.integration.slurm import cluster as slurm
from tests.integration.slurm.cluster import Cluster, until

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("waits")
DATA_SETS = {
    "easy": 20,
    "arrays": 40,
    "strings": 60,
    "numbers": 100,
    "logic": 40,
    "lists": 70,
    "long": 220,
    "short": 20,
}
WEIGHTS_MB = 32
SAMPLE, TEST = 0.02, 0.009
"""Of a load."""
SCORERS, NODES = 4, (1, 4)


def main() -> None:
    load = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    if why := slurm.missing():
        raise SystemExit(f"needs a real Slurm: {why}")
    with tempfile.TemporaryDirectory() as made, slurm.running("trials-bench", max(NODES)) as cluster:
        folder = Path(made)
        (folder / "step-1000.bin").write_bytes(os.urandom(WEIGHTS_MB << 20))
        for nodes in NODES:
            names = cluster.nodes[:nodes]
            before, expected = in_line(cluster, folder, names, load)
            after, scores = coordinated(cluster, folder, names, load)
            same = "the same scores" if scores == expected else f"DIFFERENT scores: {expected} and {scores}"
            line = f"{nodes} nodes: in line {before:.0f} s, coordinator {after:.0f} s, {before / after:.2f} x, {same}"
            print(line, flush=True)  # noqa: T201


def commands(folder: Path, load: float) -> tuple[list[str], list[str]]:
    """To infer and to score, with placeholders."""
    more = ["--storage", str(WEIGHTS_MB * 1.048576 / load), "--sample", str(SAMPLE * load)]
    infer = [str(PROGRAMS / "model.py"), "{checkpoint}", "{task}", "{first}", "{last}", "{samples}", *more]
    score = [str(PROGRAMS / "score.py"), "{samples}", "{scores}", "--test", str(TEST * load)]
    return [sys.executable, *infer], [sys.executable, *score]


def in_line(cluster: Cluster, folder: Path, names: Sequence[str], load: float) -> tuple[float, dict[str, Any]]:
    """(seconds, scores): all jobs are submitted at once; each has a node for itself, loads, infers and scores."""
    place, begun = folder / f"line-{len(names)}", time.monotonic()
    for task, samples in DATA_SETS.items():
        (place / task).mkdir(parents=True)
        values = {"{checkpoint}": str(folder / "step-1000.bin"), "{task}": task, "{first}": "0"}
        values |= {"{last}": str(samples), "{samples}": str(place / task), "{scores}": str(place / f"{task}.json")}
        infer, score = ([values.get(word, word) for word in words] for words in commands(folder, load))
        runs = subprocess.list2cmdline(infer) + " && " + subprocess.list2cmdline(score)
        log = f"--output={place}/{task}.log"
        where = f"--nodelist={names[0]}" if len(names) == 1 else "--nodes=1"
        cluster.run("sbatch", "--exclusive", where, log, f"--wrap={runs}")
    until(lambda: not cluster.run("squeue", "-h"), "all jobs have ended", 3600)
    seconds = time.monotonic() - begun
    return seconds, {task: json.loads((place / f"{task}.json").read_text()) for task in DATA_SETS}


def coordinated(cluster: Cluster, folder: Path, names: Sequence[str], load: float) -> tuple[float, dict[str, Any]]:
    """(seconds of the run, scores), with the settings that a person gets."""
    infer, score = commands(folder, load)
    tasks = [
        {"name": name, "samples": count, "sample_seconds": SAMPLE * load, "score_seconds": count * TEST * load}
        for name, count in DATA_SETS.items()
    ]
    suite = {
        "name": f"bench-{len(names)}",
        "checkpoints": [str(folder / "step-1000.bin")],
        "weights": f"{WEIGHTS_MB}MB",
        "scorers": SCORERS,
        "engine": {"infer": infer, "score": score},
        "tasks": tasks,
    }
    path = folder / f"suite-{len(names)}.yaml"
    path.write_text(yaml.safe_dump(suite))
    words = [sys.executable, "-m", "diagnoser", "trials", "run", str(path), "--slurm", "--gres", "", "--json"]
    words += [word for name in names for word in ("--node", f"{name}=1")]
    words += ["--folder", str(folder / "runs"), "--copy-rate", str(WEIGHTS_MB * 1.048576 / load)]
    words += [f"--sbatch=--export=ALL,PYTHONPATH={ROOT}", f"--sbatch-score=--export=ALL,PYTHONPATH={ROOT}"]
    own = {"DIAGNOSER_DATABASE_URL": f"sqlite:///{folder}/bench.db", "PYTHONPATH": str(ROOT)}
    environment = cluster.environment | own
    done = json.loads(subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    return done["seconds"], {trial["task"]: trial["scores"] for trial in done["trials"]}


if __name__ == "__main__":
    main()
