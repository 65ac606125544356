"""Measures an evaluation with a real engine: coupled jobs, the longest first, against the coordinator and warm servers.

    ENGINES_FOLDER=... python -m tools.bench.trials_engines [warm]

Every process runs for real: torch and transformers are imported, a small model is loaded and generates, and the metric
runs programs. A machine with few cores cannot run four nodes beside each other, so what a batch takes on a node is the
CPU time of its processes, with a thread for inference as the GPU of a node; the coordinator decides by a clock that
goes by it. The mix is the paper's: of a job's time, 30 % is start, 19 % metric, and a slot has eight data sets.
With "warm", only the engine starts of a suite of 20 short tasks are measured.
"""

import asyncio
import heapq
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import yaml

from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.evaluations import batch_folder
from diagnoser.evaluations.coordinator import CoordinatorSettings
from diagnoser.evaluations.progress import gpu_seconds
from diagnoser.evaluations.runtime_estimates import RuntimeEstimates
from diagnoser.evaluations.schedule import schedule
from diagnoser.evaluations.suite import read_suite
from diagnoser.evaluations.weights import CopyLimits
from diagnoser.model.evaluations import EvaluationRun, Node, RunProgress, RunState, Suite, TrialState
from diagnoser.ports import Order, OrderState, OrderStatus
from tests.environments import ENGINES
from tests.integration.test_trial_engines import MODEL
from tests.trial_runs import coordinator

NODES = (1, 4)
TASKS, WARM_TASKS = 8, 20
WARM_UP = 4
"""Samples of a task, in a run before the one that is measured."""
START, METRIC = 0.30, 0.19
TAIL = 1.0
"""Of the lognormal sizes of data sets and metrics."""
PROBE = 100
"""Samples and tests that show what one takes."""
AT_ONCE = 4
"""Coupled jobs, which do not know of each other."""
LOOK = 0.2
"""Seconds between two looks of the coordinator."""
PYTHON = str(ENGINES.python)
THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
LOAD = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer, model = AutoTokenizer.from_pretrained(checkpoint), AutoModelForCausalLM.from_pretrained(checkpoint)
def answer(prompt):
    words = tokenizer(prompt, return_tensors="pt").input_ids
    return tokenizer.decode(model.generate(words, max_new_tokens=16, do_sample=False)[0, words.shape[1]:])
"""
COLD = f"""
import json, os, resource, sys
checkpoint, task, first, last, samples = sys.argv[1:]
{LOAD}
if "DIAGNOSER_TRIAL_LOADED" in os.environ:
    open(os.environ["DIAGNOSER_TRIAL_LOADED"], "w").close()
start = resource.getrusage(resource.RUSAGE_SELF)
with open(samples + "/answers.jsonl", "w") as file:
    for number in range(int(first), int(last)):
        file.write(json.dumps(answer(f"{{task}} {{number}}")) + "\\n")
print(start.ru_utime + start.ru_stime)
"""
SERVE = f"""
import http.server, json, sys, urllib.parse
checkpoint, port = sys.argv[1:]
{LOAD}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer(urllib.parse.unquote(self.path[1:]))).encode())
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""
WARM = """
import sys, urllib.parse, urllib.request
task, first, last, samples, url = sys.argv[1:]
with open(samples + "/answers.jsonl", "wb") as file:
    for number in range(int(first), int(last)):
        with urllib.request.urlopen(url + urllib.parse.quote(f"{task} {number}")) as answer:
            file.write(answer.read() + b"\\n")
"""
SCORE = """
import json, pathlib, subprocess, sys
samples, scores, tests = sys.argv[1:]
lines = [line for path in sorted(pathlib.Path(samples).iterdir()) for line in path.read_text().splitlines()]
passed = 0
for number in range(int(tests)):
    program = f"answer = {lines[number % len(lines)]}; assert sum(map(ord, answer)) % 3 != {number % 3}"
    passed += not subprocess.run([sys.executable, "-I", "-S", "-c", program], stderr=subprocess.DEVNULL).returncode
json.dump({"passed": passed / int(tests), "letters": sum(map(len, lines))}, open(scores, "w"))
"""


@dataclass(frozen=True, slots=True)
class DataSet:
    """tests: programs that its metric runs."""

    name: str
    samples: int
    tests: int


@dataclass(frozen=True, slots=True)
class Job:
    """CPU-seconds of a coupled job: until its model was loaded, of inference, and of the metric."""

    start: float
    inference: float
    metric: float
    scores: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return self.start + self.inference + self.metric


def main() -> None:
    if ENGINES.missing:
        raise SystemExit(ENGINES.missing)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        subprocess.run([PYTHON, "-c", MODEL, str(folder / "step-100")], check=True, capture_output=True)
        for name, program in (("cold", COLD), ("serve", SERVE), ("warm", WARM), ("score", SCORE)):
            (folder / f"{name}.py").write_text(program)
        if sys.argv[1:] == ["warm"]:
            _measure_warm_starts(folder)
            return
        data_sets = mix(folder)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            measured = pool.map(lambda data_set: coupled_job(folder, data_set), data_sets)
            jobs = {data_set.name: job for data_set, job in zip(data_sets, measured, strict=True)}
        whole = sum(job.seconds for job in jobs.values())
        start, metric = sum(job.start for job in jobs.values()), sum(job.metric for job in jobs.values())
        _say(f"{TASKS} data sets, {whole:.0f} s: start {start / whole:.0%}, metric {metric / whole:.0%}")
        asyncio.run(_compare_all(folder, data_sets, jobs))


async def _compare_all(folder: Path, data_sets: Sequence[DataSet], jobs: Mapping[str, Job]) -> None:
    await asyncio.gather(*(_compare(folder, data_sets, jobs, nodes) for nodes in NODES))


def _measure_warm_starts(folder: Path) -> None:
    """Compare the time of engine starts of many short tasks on a slot, as each engine measures it."""
    short = [DataSet(f"short-{number}", 2, 1) for number in range(WARM_TASKS)]
    starts = {}
    for warm in (False, True):
        progress = asyncio.run(coordinated(folder, f"warm-{warm}", short, {}, 1, warm))
        starts[warm] = sum(record.load or 0.0 for record in progress.inferred)
    saved = 1 - starts[True] / starts[False]
    _say(f"{WARM_TASKS} tasks: starts take {starts[False]:.0f} s, warm {starts[True]:.0f} s: {saved:.0%} saved")


def mix(folder: Path) -> list[DataSet]:
    """Draw data sets and metrics so that a job's start is 30 % of its time and the metric 19 %, as in the paper."""
    probe = coupled_job(folder, DataSet("probe", PROBE, PROBE))
    job = probe.start / START
    random = Random(7)
    inference = _tailed(random, TASKS * job * (1 - START - METRIC) / (probe.inference / PROBE))
    metrics = _tailed(random, TASKS * job * METRIC / (probe.metric / PROBE))
    sizes = enumerate(zip(inference, metrics, strict=True))
    return [DataSet(f"task-{number}", round(samples), round(tests)) for number, (samples, tests) in sizes]


def _tailed(random: Random, total: float) -> list[float]:
    drawn = [random.lognormvariate(0, TAIL) for _ in range(TASKS)]
    return [max(1.0, value * total / sum(drawn)) for value in drawn]


def coupled_job(folder: Path, data_set: DataSet) -> Job:
    """Run what people run: an engine that starts, infers and scores."""
    place = folder / "coupled" / data_set.name
    (place / "samples").mkdir(parents=True)
    checkpoint, (samples, scores) = str(folder / "step-100"), (str(place / "samples"), str(place / "scores.json"))
    infer = [PYTHON, "cold.py", checkpoint, data_set.name, "0", str(data_set.samples), samples]
    inferred, printed = _cpu_seconds(infer, folder)
    start = float(printed)
    metric, _ = _cpu_seconds([sys.executable, "score.py", samples, scores, str(data_set.tests)], folder)
    return Job(start, inferred - start, metric, json.loads(Path(scores).read_text()))


def _cpu_seconds(words: Sequence[str], folder: Path, **more: str) -> tuple[float, str]:
    """Run a command. Returns CPU-seconds of it and all that it started, and what it printed."""
    environment = os.environ | THREAD | more
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=output, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{words} ended with {process.returncode}")
        output.seek(0)
        return used.ru_utime + used.ru_stime, output.read()


async def _compare(folder: Path, data_sets: Sequence[DataSet], jobs: Mapping[str, Job], nodes: int) -> None:
    usual = longest_first([job.seconds for job in jobs.values()], nodes)
    progress = await coordinated(folder, f"mix-{nodes}", data_sets, jobs, nodes, True)
    assert progress.run.ended is not None, "the run is over"
    if any(trial.scores != jobs[trial.task].scores for trial in progress.trials):
        raise SystemExit("the scores differ")
    used = gpu_seconds(progress, progress.run.ended)
    bound = least_seconds(progress.run.suite, jobs, nodes)
    coupled = sum(job.seconds for job in jobs.values())
    decoupled = sum(job.seconds - job.metric for job in jobs.values())
    _say(
        f"{nodes} nodes: a job a data set {usual:.1f} s, coordinator {progress.run.ended:.1f} s: "
        f"{usual / progress.run.ended:.2f} x (lower bound {bound:.1f} s: at most {usual / bound:.2f} x); GPU time "
        f"{used / coupled:.2f} x, {used / decoupled:.2f} x of jobs that "
        "give the GPU back before the metric; the same scores"
    )


def least_seconds(suite: Suite, jobs: Mapping[str, Job], nodes: int) -> float:
    """Find a time before which no schedule ends, with an engine start a node and nothing for clients and looks."""
    samples = {task.name: jobs[task.name].inference / task.samples for task in suite.tasks}
    scores = {name: job.metric for name, job in jobs.items()}
    known = RuntimeEstimates(samples, scores, median(job.start for job in jobs.values()), 0.0)
    return schedule(suite, known, [Node(f"node-{number}", 1) for number in range(nodes)], fast=True).lower_bound


def longest_first(jobs: Sequence[float], nodes: int) -> float:
    """Find when the last of the jobs ends, each on the node that is free first."""
    free = [0.0] * nodes
    for seconds in sorted(jobs, reverse=True):
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


async def coordinated(
    folder: Path, name: str, data_sets: Sequence[DataSet], jobs: Mapping[str, Job], nodes: int, warm: bool
) -> RunProgress:
    """Carry the suite out. Times of the returned run are seconds of the nodes."""
    place = ["{task}", "{first}", "{last}", "{samples}"]
    suite: dict[str, Any] = {
        "name": name,
        "checkpoints": [str(folder / "step-100")],
        "scorers": nodes,
        "weights": "1MB",
    }
    infer = [PYTHON, "cold.py", "{checkpoint}", *place]
    if warm:
        infer = [sys.executable, "-I", "-S", "warm.py", *place, "{url}"]
        command = [PYTHON, "serve.py", "{checkpoint}", "{port}"]
        suite["server"] = {"command": command, "ready": "/ready", "url": "/"}
    score = [sys.executable, "score.py", "{samples}", "{scores}"]
    suite |= {"engine": {"infer": infer, "score": [*score, "1"]}, "tasks": []}
    for of in data_sets:
        task: dict[str, Any] = {"name": of.name, "samples": of.samples, "score": [*score, str(of.tests)]}
        if job := jobs.get(of.name):  # what earlier runs would tell
            task |= {"sample_seconds": job.inference / of.samples, "score_seconds": job.metric}
        suite["tasks"].append(task)
    runs = folder / name
    runs.mkdir()
    store = await open_store(f"sqlite:///{runs}/test.db")
    whole = read_suite("SUITE.yaml", yaml.safe_dump(suite))
    if jobs:  # a run before it has measured what the starts of a server and of a client take
        short = [replace(task, samples=WARM_UP, score=(*score, "1")) for task in whole.tasks[:2]]
        before = replace(whole, tasks=tuple(short))
        await carried_out(
            store, EvaluationRun(f"{name}-before", before, "measured", str(runs / "before"), str(folder), 0.0), 1
        )
    progress = await carried_out(store, EvaluationRun(name, whole, "measured", str(runs), str(folder), 0.0), nodes)
    await store.close()
    return progress


async def carried_out(store: SqlStore, run: EvaluationRun, nodes: int) -> RunProgress:
    await store.evaluations.add_run(run)
    executor = MeasuredNodes([Node(f"node-{number}", 1) for number in range(nodes)])
    settings = CoordinatorSettings(scorers=nodes, late_seconds=3600.0)
    coordinating = coordinator(store, executor, settings)
    coordinating.clock = lambda: executor.now
    while (progress := await coordinating.step(run.id)).run.state is RunState.RUNNING:
        await executor.advance()
    if any(trial.state is not TrialState.SCORED for trial in progress.trials):
        raise SystemExit(f"{run.id}: {progress.trials}")
    return progress


@dataclass(slots=True)
class MeasuredNodes:
    """A ``NodeExecutor`` that runs a batch when it is started, and shows its results when its CPU time is over."""

    pool: list[Node]
    now: float = 0.0
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    ends: dict[str, list[float]] = field(default_factory=dict)
    """Of the results of each batch."""

    async def nodes(self) -> list[Node]:
        return self.pool

    async def start(self, order: Order) -> None:
        if order.batch not in self.running:
            self.running[order.batch] = asyncio.create_task(asyncio.to_thread(self._run, order, self.now))

    def _run(self, order: Order, now: float) -> None:
        folder = batch_folder.write_order(order, CopyLimits(), {})
        words = [sys.executable, "-P", "-m", "diagnoser.evaluations.runner", str(folder)]
        seconds, _ = _cpu_seconds(words, folder)
        took = [result.seconds for result in batch_folder.results(folder)]
        self.ends[order.batch] = [now + seconds * share / sum(took) for share in accumulate(took)]

    async def poll(self, orders: Sequence[Order]) -> list[OrderStatus]:
        await asyncio.gather(*self.running.values())
        return list(map(self._status, orders))

    async def cancel(self, order: Order) -> None:
        raise SystemExit(f"{order.batch} was cancelled")

    async def finish(self, checkpoints: Sequence[str], nodes: Sequence[str]) -> None: ...

    async def advance(self) -> None:
        """Go on to the next result, and to the coordinator's look after it."""
        await asyncio.gather(*self.running.values())
        self.now = min(end for ends in self.ends.values() for end in ends if end > self.now) + LOOK

    def _status(self, order: Order) -> OrderStatus:
        ends = self.ends[order.batch]
        shown = sum(end <= self.now for end in ends)
        results = batch_folder.results(Path(order.folder))[:shown]
        state = OrderState.ENDED if shown == len(ends) else OrderState.RUNNING
        return OrderStatus(state, results)


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M')} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
