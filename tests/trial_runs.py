"""Evaluation runs of small real programs on this machine, for tests; ``python -m tests.trial_runs URL RUN`` carries one
on, as a coordinator that can be killed."""

import asyncio
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.evaluations.coordinator import Coordinator, CoordinatorSettings
from diagnoser.evaluations.local import LocalExecutor
from diagnoser.evaluations.weights import CopyLimits
from diagnoser.model.evaluations import (
    EvaluationRun,
    Model,
    Node,
    RunProgress,
    RunState,
    Server,
    ShardState,
    Suite,
    Task,
    TrialState,
)
from diagnoser.ports import NodeExecutor

BARE = (sys.executable, "-I", "-S")
"""A Python that loads nothing: pieces are processes, and each test starts dozens."""
INFER = """
import os, sys, time
checkpoint, task, first, last, samples, seconds, ledger = sys.argv[1:]
weights = open(checkpoint).read()
open(os.environ["DIAGNOSER_TRIAL_LOADED"], "w").close()
time.sleep(float(seconds) * (int(last) - int(first)))
with open(samples + "/numbers.txt", "w") as file:
    file.writelines(f"{number}\\n" for number in range(int(first), int(last)))
with open(ledger, "a") as file:
    file.write(f"{checkpoint} {task} {first} {last} {weights}\\n")
"""
"""Writes down that it did a shard, once it has."""

SCORE = """
import json, pathlib, sys
samples, scores = sys.argv[1:]
numbers = [int(line) for path in sorted(pathlib.Path(samples).iterdir()) for line in path.read_text().split()]
with open(scores, "w") as file:
    json.dump({"samples": len(numbers), "distinct": len(set(numbers)), "sum": sum(numbers)}, file)
"""
JUDGE = """
import os, pathlib, signal, sys, urllib.request
task, first, last, samples, answers, url, ledger, mark = sys.argv[1:]
with urllib.request.urlopen(url + "/models") as answer:
    weights = answer.read().decode() + "-of-" + pathlib.Path(answers).parent.name
if not os.path.exists(mark):
    open(mark, "w").close()
    os.kill(os.getppid(), signal.SIGKILL)
    sys.exit(1)
numbers = sorted(int(line) for path in pathlib.Path(answers).iterdir() for line in path.read_text().split())
with open(samples + "/numbers.txt", "w") as file:
    file.writelines(f"{number}\\n" for number in numbers[int(first) : int(last)])
with open(ledger, "a") as file:
    file.write(f"- {task} {first} {last} {weights}\\n")
"""
"""Passes on the answers that it is given; the first of all kills the runner of its batch instead."""
SERVE = """
import http.server, os, subprocess, sys
port, checkpoint, ledger = sys.argv[1:]
worker = subprocess.Popen(["sleep", "600"])
open(ledger, "a").write(f"{os.getpid()} {worker.pid}\\n")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/v1/die":
            os._exit(9)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(open(checkpoint, "rb").read())
http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""
"""Writes down its process and that of its worker, as servers of large models have them."""
NODES = (Node("east", 1), Node("west", 1))
FAST = CoordinatorSettings(batch_seconds=0.3, scorers=2)


def suite(folder: Path, tasks: Sequence[int] = (12, 7, 30), seconds: float = 0.02) -> Suite:
    """Tasks of so many samples, of two checkpoints."""
    for number in (1, 2):
        (folder / f"checkpoint-{number}").write_text(f"weights-{number}")
    infer = (*BARE, "-c", INFER, "{checkpoint}", "{task}", "{first}", "{last}", "{samples}", str(seconds))
    score = (*BARE, "-c", SCORE, "{samples}", "{scores}")
    made = [
        Task(f"task/{place}", count, (*infer, str(folder / "done.txt")), score, seconds, 0.05)
        for place, count in enumerate(tasks)
    ]
    paths = tuple(str(folder / f"checkpoint-{number}") for number in (1, 2))
    return Suite("small", paths, tuple(made), 1, 9, "cpu", "9B", 2)


def judged(folder: Path, given: Suite) -> Suite:
    """The suite with a judge of its last task, whose server is of another model."""
    (folder / "judge").write_text("judge")
    server = Server((*BARE, "-c", SERVE, "{port}", "{checkpoint}", str(folder / "judges.txt")), seconds=180)
    of = given.tasks[-1]
    words = ("{task}", "{first}", "{last}", "{samples}", "{answers}", "{url}")
    infer = (*BARE, "-c", JUDGE, *words, str(folder / "done.txt"), str(folder / "killed"))
    task = replace(of, name="judged", infer=infer, after=of.name, model="judge")
    return replace(given, tasks=(*given.tasks, task), models=(Model("judge", str(folder / "judge"), server, "9B"),))


def trial_run(folder: Path, given: Suite | None = None, name: str = "r1") -> EvaluationRun:
    directory = folder / name
    directory.mkdir(exist_ok=True)
    return EvaluationRun(name, given or suite(folder), "local", str(directory), str(folder), time.time())


def copies(folder: Path) -> CopyLimits:
    return CopyLimits(str(folder / "weights"), 0.0)


def coordinator(
    store: SqlStore,
    executor: NodeExecutor,
    settings: CoordinatorSettings = FAST,
    clock: Callable[[], float] = time.time,
    **more: Any,
) -> Coordinator:
    return Coordinator(store.evaluations, executor, clock, lambda: secrets.token_hex(4), settings=settings, **more)


async def carry_out(found: Coordinator, run: str) -> RunProgress:
    async def pause() -> None:
        await asyncio.sleep(0.05)  # a step reads the whole ledger

    return await found.carry_out(run, pause, lambda progress: None)


async def main(url: str, run: str) -> None:
    store = await open_store(url)
    progress = await store.evaluations.progress(run)
    assert progress is not None
    executor = LocalExecutor(NODES, copies(Path(progress.run.directory)))
    await carry_out(coordinator(store, executor), run)
    await store.close()


def check(progress: RunProgress) -> None:
    """Each sample is in the result once. Raises AssertionError."""
    given = progress.run.suite
    assert progress.run.state is RunState.ENDED
    assert len(progress.trials) == len(given.checkpoints) * len(given.tasks)
    for trial in progress.trials:
        assert trial.state is TrialState.SCORED, trial.error
        count = next(task.samples for task in given.tasks if task.name == trial.task)
        assert trial.scores == {"samples": count, "distinct": count, "sum": count * (count - 1) / 2}, trial
    assert not [record for record in progress.shards if record.state in (ShardState.WAITING, ShardState.RUNNING)]


def completions(folder: Path) -> Counter[tuple[str, int]]:
    """(checkpoint and task, sample) -> how often a shard with it was carried out to its end."""
    done: Counter[tuple[str, int]] = Counter()
    for line in (folder / "done.txt").read_text().splitlines():
        _, task, first, last, weights = line.split()
        done.update((f"{weights} {task}", number) for number in range(int(first), int(last)))
    return done


def without_metrics(given: Suite, *words: str) -> Suite:
    """The suite with another command in place of the first task's inference."""
    first, *others = given.tasks
    return replace(given, tasks=(replace(first, infer=words), *others))


def started(folder: Path) -> list[dict[str, Any]]:
    """The orders that were carried out or are."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("r1/batches/*/order.json"))]


def runner_of(order: dict[str, Any]) -> int:
    """The process that carries the order out."""
    return int(json.loads((Path(order["folder"]) / "started").read_text())["pid"])


def written(folder: Path, name: str) -> list[list[str]]:
    """Lines of the sample files of this name."""
    return [path.read_text().splitlines() for path in folder.glob(f"r1/samples/*/*/*/{name}")]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
