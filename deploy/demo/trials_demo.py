"""An evaluation in one command: a job a data set, in line, against the coordinator, with the same scores.

A tiny model with real weights is evaluated on eight data sets by a real scorer (unit tests of what the model wrote).
Its storage is limited in rate, as one that many nodes share is. Two cores cannot serve four nodes: samples and tests
are waits of known length, and the nodes are parts of this machine, which share one copy of the weights.

make demo-trials           keeps serving, so that the chart of each run can be looked at, until Ctrl-C
make demo-trials EXIT=1    ends after printing
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import yaml
from demo import serving
from rich.table import Table
from waits import console, end_on_sigterm

PROGRAMS = Path(__file__).with_name("trials")
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
WEIGHTS_MB, STORAGE_MB, SAMPLE_SECONDS, TEST_SECONDS = 32, 16, 0.04, 0.018
SCORERS = 4
NODES = (1, 4)
RUN_SECONDS = 300
"""How long an evaluation, or a part of it, may take."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exit", action="store_true", help="end after printing")
    parser.add_argument("--port", type=int, default=8321, help="port to serve on; another one if it is taken")
    args = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="diagnoser-demo-") as made:
        folder = Path(made)
        checkpoint = folder / "step-1000.bin"
        checkpoint.write_bytes(os.urandom(1 << 20) * WEIGHTS_MB)
        suite = folder / "suite.yaml"
        suite.write_text(yaml.safe_dump(suite_of(checkpoint), sort_keys=False))
        console.print(
            f"{len(DATA_SETS)} data sets, {sum(DATA_SETS.values())} samples. A load takes {WEIGHTS_MB / STORAGE_MB} s, "
            f"a sample {SAMPLE_SECONDS} s, its test {TEST_SECONDS} s."
        )
        table = Table("nodes", "a job a data set, in line", "coordinator", "faster", "scores", box=None)
        for nodes in NODES:
            console.print(f"{nodes} node{'s' * (nodes > 1)}: a job a data set, then the coordinator (a minute) ...")
            before, expected = in_line(checkpoint, folder / f"line-{nodes}", nodes)
            after, scores, run = coordinated(suite, folder, nodes)
            same = "the same" if scores == expected else "DIFFERENT"
            table.add_row(str(nodes), f"{before:.1f} s", f"{after:.1f} s", f"{before / after:.2f} x", same)
            if scores != expected:
                raise SystemExit(f"the scores differ: {expected} and {scores}")
        console.print(table)
        if not args.exit:
            with serving(made, args.port) as (url, service):
                page = f"{url}/evaluations/{run}"
                console.print(f"What ran where: [link={page}]{page}[/link], until Ctrl-C.", highlight=False)
                service.wait()


def commands(checkpoint: str) -> tuple[list[str], list[str]]:
    """To infer and to score."""
    more = ["--storage", str(STORAGE_MB), "--sample", str(SAMPLE_SECONDS)]
    infer = [sys.executable, str(PROGRAMS / "model.py"), checkpoint, "{task}", "{first}", "{last}", "{samples}", *more]
    return infer, [sys.executable, str(PROGRAMS / "score.py"), "{samples}", "{scores}", "--test", str(TEST_SECONDS)]


def suite_of(checkpoint: Path) -> dict[str, object]:
    infer, score = commands("{checkpoint}")
    tasks = [{"name": name, "samples": count} for name, count in DATA_SETS.items()]
    named = {"name": "demo", "checkpoints": [str(checkpoint)], "weights": f"{WEIGHTS_MB}MB", "hardware": "waits"}
    return {**named, "scorers": SCORERS, "engine": {"infer": infer, "score": score}, "tasks": tasks}


def in_line(checkpoint: Path, folder: Path, nodes: int) -> tuple[float, dict[str, object]]:
    """(seconds, scores): each node takes the next data set, loads, infers and scores."""
    waiting: queue.Queue[str] = queue.Queue()
    for name in DATA_SETS:
        waiting.put(name)
    scores: dict[str, object] = {}

    def work() -> None:
        while True:
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                return
            samples, result = folder / task, folder / f"{task}.json"
            samples.mkdir(parents=True)
            values = {"{task}": task, "{first}": "0", "{last}": str(DATA_SETS[task])}
            values |= {"{samples}": str(samples), "{scores}": str(result)}
            for command in commands(str(checkpoint)):
                subprocess.run([values.get(word, word) for word in command], check=True, timeout=RUN_SECONDS)
            scores[task] = json.loads(result.read_text())

    begun = time.monotonic()
    threads = [threading.Thread(target=work, daemon=True) for _ in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - begun, scores


def coordinated(suite: Path, folder: Path, nodes: int) -> tuple[float, dict[str, object], str]:
    """(seconds from the run's begin to its last score, scores, its id)."""
    parts = [word for number in range(nodes) for word in ("--node", f"node-{number + 1}=1")]
    words = [sys.executable, "-m", "diagnoser", "trials", "run", str(suite), "--folder", str(folder / "runs"), *parts]
    environment = os.environ | {"DIAGNOSER_DATABASE_URL": f"sqlite:///{folder}/demo.db"}
    words += ["--copy-rate", str(STORAGE_MB), "--json"]
    done = json.loads(
        subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True, timeout=RUN_SECONDS).stdout
    )
    return done["seconds"], {trial["task"]: trial["scores"] for trial in done["trials"]}, done["run"]


if __name__ == "__main__":
    main()
