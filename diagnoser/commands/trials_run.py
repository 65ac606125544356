"""`trials run`, `status`, `score` and `cancel`: an evaluation that is carried out here, by Slurm or by Kubernetes."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from diagnoser.commands import trials_kubernetes as options
from diagnoser.commands.stored import with_store
from diagnoser.commands.terminal import AsJson, err, out, print_json
from diagnoser.commands.tokens import iso
from diagnoser.commands.trials import load_suite
from diagnoser.commands.trials_kubernetes import KubernetesOptions, kubernetes_canceller, kubernetes_executor
from diagnoser.model.errors import BadInput, NotFound
from diagnoser.model.trials import BatchKind, BatchState, Node, PieceState, RunState, Suite, TrialState
from diagnoser.observability.logging import set_up
from diagnoser.ports import NodeExecutor, RunProgress, TrialRecord, TrialRun
from diagnoser.trials.weights import CopyLimits, default_folder

if TYPE_CHECKING:
    from diagnoser.adapters.sql.store import SqlStore
    from diagnoser.trials.coordinator import Coordinator

LOCAL, SLURM, KUBERNETES = "local", "slurm", "kubernetes"
_PAUSES = {LOCAL: 0.2, SLURM: 5.0, KUBERNETES: 5.0}
"""Seconds between two looks at what runs."""
_BATCH_SECONDS = {LOCAL: 60.0, SLURM: 600.0, KUBERNETES: 600.0}
"""Of work for a slot at once: a job of a scheduler takes seconds to start."""

Run = Annotated[str, typer.Argument(metavar="RUN", help="Its id, as `trials run` and `trials status` print it.")]
Nodes = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        help="NAME=GPUS, a node that may be used and how many GPUs of it; for Slurm also a list such as gpu-[1-4]=8. "
        "May be given again. Default: this machine, with all of its GPUs; for Kubernetes all nodes that have some.",
    ),
]
Slurm = Annotated[
    bool, typer.Option("--slurm", help="Carry batches out as Slurm jobs, not as processes of this machine.")
]
Sbatch = Annotated[
    list[str] | None,
    typer.Option("--sbatch", help="Further word of sbatch, such as --partition=gpu. May be given again."),
]
SbatchScore = Annotated[
    list[str] | None, typer.Option("--sbatch-score", help="The same for scoring, which needs no GPU.")
]
Gres = Annotated[str, typer.Option(help='By which Slurm jobs ask for GPUs; "" where nodes have none.')]
Scorers = Annotated[
    int,
    typer.Option(min=0, help="Trials that are scored at once, where the suite does not say; 0: half as many as CPUs."),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help='Folder in shared memory for copies of weights; "" for none. Default: one in /dev/shm. For Kubernetes a '
        "folder of the nodes that pods may mount, such as /dev/shm, and by default memory of each pod."
    ),
]
CopyRate = Annotated[float, typer.Option(min=0, help="MB a second that a copy reads from the storage; 0: no limit.")]


def run(
    suite_file: Annotated[Path | None, typer.Argument(metavar="[SUITE.yaml]", help="What to evaluate.")] = None,
    resume: Annotated[str, typer.Option(metavar="RUN", help="Go on with this run, after its coordinator ended.")] = "",
    folder: Annotated[
        Path, typer.Option(help="Where samples, scores and logs of runs go; for Slurm and Kubernetes a shared one.")
    ] = Path("trials"),
    node: Nodes = None,
    slurm: Slurm = False,
    sbatch: Sbatch = None,
    sbatch_score: SbatchScore = None,
    gres: Gres = "gpu",
    scorers: Scorers = 0,
    weights: Weights = None,
    copy_rate: CopyRate = 0.0,
    kubernetes: options.Kubernetes = False,
    image: options.Image = "",
    namespace: options.Namespace = "default",
    context: options.Context = "",
    queue: options.Queue = "",
    claim: options.Claims = None,
    host_path: options.HostPaths = None,
    gpu_resource: options.GpuResource = "nvidia.com/gpu",
    node_selector: options.NodeSelector = "",
    pod_template: options.PodTemplate = None,
    score_cpu: options.ScoreCpu = "1",
    score_memory: options.ScoreMemory = "2Gi",
    run_as: options.RunAs = "",
    as_json: AsJson = False,
) -> None:
    """Evaluate a suite of checkpoints and tasks. When this ends, or is killed, what runs goes on: resume it."""
    if (suite_file is None) == (not resume):
        raise BadInput("name either a suite, or a run to --resume")
    if slurm and kubernetes:
        raise BadInput("name either --slurm or --kubernetes")
    copies = CopyLimits(default_folder() if weights is None else weights, rate=copy_rate * 1e6)
    pods = KubernetesOptions(
        namespace=namespace,
        context=context,
        image=image,
        queue=queue,
        claims=claim or (),
        host_paths=host_path or (),
        gpu=gpu_resource,
        selector=node_selector,
        template=pod_template,
        cpu=score_cpu,
        memory=score_memory,
        run_as=run_as,
        weights=weights,
        copy_rate=copy_rate * 1e6,
    )
    backend = SLURM if slurm else f"{KUBERNETES}@{namespace}" if kubernetes else _here()

    def executor_of(begun: TrialRun) -> AbstractAsyncContextManager[NodeExecutor]:
        nodes = [] if kubernetes and not node else _nodes(node or [], begun.suite.gpus, slurm)
        if kubernetes:
            return kubernetes_executor(pods, begun, nodes)
        return nullcontext(_slurm(nodes, copies, gres, sbatch, sbatch_score) if slurm else _local(nodes, copies))

    async def act(store: "SqlStore") -> RunProgress:
        begun = _new_run(suite_file, folder, backend) if suite_file else (await _progress(store, resume)).run
        _require_backend(begun, backend)
        async with executor_of(begun) as executor:
            if suite_file:
                await store.add_run(begun)
            return await _carried_out(store, executor, begun, scorers, as_json)

    _finish(_with_store(act, "trials run"), as_json)


def score(
    run: Run,
    task: Annotated[list[str] | None, typer.Option("--task", help="These alone. May be given again.")] = None,
    suite_file: Annotated[
        Path | None, typer.Option("--suite", help="File whose score commands are used, instead of the run's own.")
    ] = None,
    scorers: Scorers = 0,
    as_json: AsJson = False,
) -> None:
    """Compute the scores of a run again from its stored samples, on this machine, without a GPU."""

    async def act(store: "SqlStore") -> RunProgress:
        progress = await _progress(store, run)
        which = [
            trial for trial in progress.trials if _can_be_scored(progress, trial) and (not task or trial.task in task)
        ]
        if not which:
            raise BadInput(f"no trial of run {run} has all of its samples and is over")
        if suite_file is not None:
            await store.set_suite(run, _with_scoring(progress.run.suite, load_suite(suite_file)))
        await store.begin_scoring(run, [(trial.checkpoint, trial.task) for trial in which], again=True)
        return await _carried_out(store, _local((), CopyLimits()), progress.run, scorers, as_json)

    _finish(_with_store(act, "trials score"), as_json)


def status(
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="Its id; without it the latest runs are listed.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show the latest runs, or how far one is, with its scores and why trials failed."""
    if run:
        _show(with_store(lambda store: _progress(store, run), "trials status"), as_json)
        return
    runs = with_store(lambda store: store.trial_runs(50), "trials status")
    if as_json:
        for found in runs:
            print_json(_run_fields(found))
        return
    table = Table(box=None, header_style="bold")
    for column in ("run", "suite", "state", "started", "ended", "backend"):
        table.add_column(column, overflow="fold")
    for found in runs:
        times = (_minute(iso(found.created)), _minute(iso(found.ended)))
        table.add_row(*map(Text, (found.id, found.suite.name, found.state, *times, found.backend)))
    out.print(table)


def cancel(run: Run, context: options.Context = "", as_json: AsJson = False) -> None:
    """End a run, with all that it has running. Its samples and scores stay."""

    def executor_of(begun: TrialRun) -> AbstractAsyncContextManager[NodeExecutor]:
        kind, _, place = begun.backend.partition("@")
        if kind == KUBERNETES:
            return kubernetes_canceller(place, context)
        if kind == SLURM:
            return nullcontext(_slurm((), CopyLimits(), "", (), ()))
        _require_backend(begun, _here())
        return nullcontext(_local((), CopyLimits(default_folder())))

    async def act(store: "SqlStore") -> RunProgress:
        begun = (await _progress(store, run)).run
        async with executor_of(begun) as executor:
            await store.end_run(run, RunState.CANCELLED, time.time())
            return await _coordinator(store, executor, begun, 1).step(run)

    _show(with_store(act, "trials cancel"), as_json)


def add_to(group: typer.Typer) -> None:
    for command in (run, status, score, cancel):
        group.command()(command)


def _with_store(act: "Callable[[SqlStore], Awaitable[RunProgress]]", command: str) -> RunProgress:
    try:
        return with_store(act, command)
    except KeyboardInterrupt:
        err.print(
            "The coordinator has ended; what runs goes on. `diagnoser trials status` lists runs.", highlight=False
        )
        raise typer.Exit(130) from None


def _new_run(suite_file: Path, folder: Path, backend: str) -> TrialRun:
    suite = load_suite(suite_file)
    directory = suite_file.resolve().parent
    absent = [path for path in suite.checkpoints if path.startswith(("/", ".")) and not (directory / path).exists()]
    if absent:
        raise BadInput(f"{suite_file}: there is no checkpoint {absent[0]}")
    name = secrets.token_hex(4)
    place = folder.resolve() / name
    try:
        place.mkdir(parents=True)
    except OSError as error:
        raise BadInput(f"{place}: {error.strerror}") from error
    return TrialRun(name, suite, backend, str(place), str(directory), time.time())


def _here() -> str:
    return f"{LOCAL}@{socket.gethostname()}"


def _require_backend(run: TrialRun, backend: str) -> None:
    if run.backend != backend:
        kind, _, place = run.backend.partition("@")
        where = f"on {place}, without --slurm or --kubernetes"
        if kind != LOCAL:
            where = f"with --{kind}" + (f" --namespace {place}" if place else "")
        raise BadInput(f"run {run.id} is carried out {where}: resume it there")


def _nodes(given: Sequence[str], gpus: int, slurm: bool) -> list[Node]:
    """Raises BadInput."""
    if not given and slurm:
        raise BadInput("name the nodes that may be used: --node gpu-[1-4]=8")
    if not given:
        found = len(list(Path("/dev").glob("nvidia[0-9]*")))
        return [Node(socket.gethostname(), found or gpus)]
    nodes = []
    for text in given:
        names, _, count = text.rpartition("=")
        if not names or not count.isdecimal() or not gpus <= int(count) <= 1024:
            raise BadInput(f"--node {text[:60]}: must be NAME=GPUS, with at least the {gpus} GPUs of a trial")
        nodes += [Node(name, int(count)) for name in (_expanded(names) if slurm else (names,))]
    if len({node.name for node in nodes}) != len(nodes):
        raise BadInput("a node is named twice")
    return nodes


def _expanded(names: str) -> tuple[str, ...]:
    from diagnoser.dialects import node_lists

    try:
        return tuple(node_lists.expanded(names))
    except ValueError as error:
        raise BadInput(str(error)) from None


def _local(nodes: Sequence[Node], copies: CopyLimits) -> NodeExecutor:
    from diagnoser.trials.local import LocalExecutor

    return LocalExecutor(nodes, copies)


def _slurm(
    nodes: Sequence[Node],
    copies: CopyLimits,
    gres: str,
    sbatch: Sequence[str] | None,
    sbatch_score: Sequence[str] | None,
) -> NodeExecutor:
    from diagnoser.agent.slurm.trials import SlurmTrials

    return SlurmTrials(nodes, copies, time.time, gres, sbatch or (), sbatch_score or ())


def _coordinator(store: "SqlStore", executor: NodeExecutor, run: TrialRun, scorers: int) -> "Coordinator":
    from diagnoser.trials.coordinator import Coordinator, CoordinatorSettings

    at_once = scorers or max(1, (os.cpu_count() or 1) // 2)
    settings = CoordinatorSettings(batch_seconds=_BATCH_SECONDS[run.backend.partition("@")[0]], scorers=at_once)
    return Coordinator(store, executor, time.time, lambda: secrets.token_hex(4), settings=settings)


async def _progress(store: "SqlStore", run: str) -> RunProgress:
    progress = await store.run_progress(run)
    if progress is None:
        raise NotFound(f"there is no run {run[:60]!r}")
    return progress


async def _carried_out(
    store: "SqlStore", executor: NodeExecutor, run: TrialRun, scorers: int, quiet: bool
) -> RunProgress:
    set_up(as_json=False, level="warning")  # to standard error: what a program reads stays alone
    pause = _PAUSES[run.backend.partition("@")[0]]
    err.print(f"run {run.id}, {run.folder}", highlight=False, markup=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, disable=quiet or not err.is_terminal) as bars:
        return await _coordinator(store, executor, run, scorers).carry_out(
            run.id, lambda: asyncio.sleep(pause), _shown_in(bars, run)
        )


def _shown_in(bars: Progress, run: TrialRun) -> Callable[[RunProgress], None]:
    trials = len(run.suite.checkpoints) * len(run.suite.tasks)
    samples = len(run.suite.checkpoints) * sum(task.samples for task in run.suite.tasks)
    inferred, scored = bars.add_task("samples", total=samples), bars.add_task("trials", total=trials)

    def show(progress: RunProgress) -> None:
        bars.update(inferred, completed=_samples(progress))
        bars.update(scored, completed=sum(trial.state is TrialState.SCORED for trial in progress.trials))

    return show


def _samples(progress: RunProgress) -> int:
    stored = (record.piece for record in progress.pieces if record.state is PieceState.INFERRED)
    return sum(piece.last - piece.first for piece in stored)


def _can_be_scored(progress: RunProgress, trial: TrialRecord) -> bool:
    if trial.state not in (TrialState.SCORED, TrialState.FAILED):
        return False
    mine = [record for record in progress.pieces if record.piece.checkpoint == trial.checkpoint]
    stored = [
        record.piece for record in mine if record.piece.task == trial.task and record.state is PieceState.INFERRED
    ]
    wanted = next(task.samples for task in progress.run.suite.tasks if task.name == trial.task)
    return sum(piece.last - piece.first for piece in stored) == wanted


def _with_scoring(suite: Suite, other: Suite) -> Suite:
    """The suite with the score commands of another one, of the tasks that this one has, too."""
    commands = {task.name: task.score for task in other.tasks}
    return replace(suite, tasks=tuple(replace(task, score=commands.get(task.name, task.score)) for task in suite.tasks))


def _finish(progress: RunProgress, as_json: bool) -> None:
    """Ends with 1 where a trial has no score."""
    _show(progress, as_json)
    if any(trial.state is not TrialState.SCORED for trial in progress.trials):
        raise typer.Exit(1)


def _show(progress: RunProgress, as_json: bool) -> None:
    if as_json:
        print_json(_fields(progress))
        return
    table = Table(box=None, header_style="bold")
    for column in ("checkpoint", "task", "state", "scores"):
        table.add_column(column, overflow="fold")
    for trial in progress.trials:
        scores = ", ".join(f"{name} {value:.4g}" for name, value in trial.scores.items())
        table.add_row(*map(Text, (trial.checkpoint, trial.task, trial.state, scores)))
    out.print(table)
    for trial in progress.trials:
        if trial.error:
            out.print(f"{trial.checkpoint} {trial.task}: {trial.error}", markup=False, highlight=False, style="red")
    total = len(progress.run.suite.checkpoints) * sum(task.samples for task in progress.run.suite.tasks)
    hours = f"{gpu_seconds(progress, time.time()) / 3600:.2f} GPU hours"
    out.print(
        f"run {progress.run.id} {progress.run.state}: {_samples(progress)} of {total} samples, {hours}",
        highlight=False,
        markup=False,
    )


def gpu_seconds(progress: RunProgress, now: float) -> float:
    """For how long its batches have held GPUs."""
    held = [batch for batch in progress.batches if batch.kind is BatchKind.INFER]
    return progress.run.suite.gpus * sum((batch.ended or now) - batch.started for batch in held)


def _fields(progress: RunProgress) -> dict[str, Any]:
    states = [record.state for record in progress.pieces]
    return {
        **_run_fields(progress.run),
        "samples": _samples(progress),
        "gpu_seconds": gpu_seconds(progress, time.time()),
        "pieces": {state.value: states.count(state) for state in PieceState if state in states},
        "running": [
            {
                "batch": batch.id,
                "kind": batch.kind,
                "node": batch.node,
                "slot": batch.slot,
                "started": iso(batch.started),
            }
            for batch in progress.batches
            if batch.state is BatchState.RUNNING
        ],
        "trials": [
            {
                "checkpoint": trial.checkpoint,
                "task": trial.task,
                "state": trial.state,
                "scores": dict(trial.scores),
                "error": trial.error,
            }
            for trial in progress.trials
        ],
    }


def _run_fields(run: TrialRun) -> dict[str, Any]:
    return {
        "run": run.id,
        "suite": run.suite.name,
        "state": run.state,
        "backend": run.backend,
        "folder": run.folder,
        "created": iso(run.created),
        "ended": iso(run.ended),
        "seconds": run.ended - run.created if run.ended is not None else None,
    }


def _minute(time: str | None) -> str:
    return time[:16].replace("T", " ") if time else ""
