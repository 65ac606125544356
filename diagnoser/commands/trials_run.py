"""`trials run`, `score` and `cancel`: an evaluation that is carried out here, by Slurm or by Kubernetes."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from diagnoser.commands import trials_kubernetes as options
from diagnoser.commands.stored import with_store
from diagnoser.commands.terminal import AsJson, err
from diagnoser.commands.trials_kubernetes import KubernetesOptions, kubernetes_canceller, kubernetes_executor
from diagnoser.commands.trials_plan import load_suite
from diagnoser.commands.trials_status import progress_of, show
from diagnoser.model.errors import BadInput, Conflict
from diagnoser.model.trials import Node, PieceState, RunProgress, RunState, Suite, TrialRecord, TrialRun, TrialState
from diagnoser.observability.logging import set_up
from diagnoser.ports import NodeExecutor
from diagnoser.trials.progress import samples, samples_stored
from diagnoser.trials.weights import CopyLimits, default_folder

if TYPE_CHECKING:
    from diagnoser.adapters.sql.store import SqlStore
    from diagnoser.client.run import ServerOptions
    from diagnoser.trials.coordinator import Coordinator
    from diagnoser.trials.reporting import LogReporter

Answer = TypeVar("Answer")

LOCAL, SLURM, KUBERNETES = "local", "slurm", "kubernetes"
_PAUSES = {LOCAL: 0.2, SLURM: 5.0, KUBERNETES: 5.0}
"""Seconds between two looks at what runs."""
FOLLOW_PAUSE = 30.0
"""Seconds between two looks for new checkpoints."""
RUNS = 1000
"""Earlier runs that are looked at for what was evaluated already."""
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
Server = Annotated[
    str,
    typer.Option(
        envvar="DIAGNOSER_URL",
        help="Address of the service; the log of a trial that failed is sent there and diagnosed. Not set: not sent.",
    ),
]
TokenFile = Annotated[
    str, typer.Option(help="File with the token for the service. Default: the variable DIAGNOSER_TOKEN.")
]


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
    server: Server = "",
    token_file: TokenFile = "",
    once: Annotated[
        bool, typer.Option("--once", help="Of a suite that follows a job: end when nothing is due, instead of waiting.")
    ] = False,
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
    """Evaluate a suite of checkpoints and tasks. When this ends, or is killed, what runs goes on: resume it.

    A suite with follow: {job, every} evaluates the verified checkpoints of that job as they come, one in each so many
    steps, and never ends by itself. Started again it goes on where it was, and several do the work of one.

    Ends with 1 where a trial has no score."""
    if slurm and kubernetes:
        raise BadInput("name either --slurm or --kubernetes")
    suite = _suite(suite_file, resume, once)
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

    def executor_of(trial_run: TrialRun) -> AbstractAsyncContextManager[NodeExecutor]:
        if kubernetes and not node:
            return kubernetes_executor(pods, trial_run, [])
        nodes = _nodes(node or [], trial_run.suite.gpus, slurm)
        if kubernetes:
            return kubernetes_executor(pods, trial_run, nodes)
        return nullcontext(_slurm(nodes, copies, gres, sbatch, sbatch_score) if slurm else _local(nodes, copies))

    backend = _here()
    if slurm:
        backend = SLURM
    elif kubernetes:
        backend = f"{KUBERNETES}@{namespace}"
    runner = _Runner(backend, folder, executor_of, scorers, as_json, _service(server, token_file))
    if not _with_store(lambda store: runner.act(store, suite_file, suite, resume, once), "trials run"):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Runner:
    """Carries runs out and shows each. What it returns says whether all of their trials have scores."""

    backend: str
    folder: Path
    executor_of: Callable[[TrialRun], AbstractAsyncContextManager[NodeExecutor]]
    scorers: int
    as_json: bool
    service: "ServerOptions | None"

    async def act(
        self, store: "SqlStore", suite_file: Path | None, suite: Suite | None, resume: str, once: bool
    ) -> bool:
        if suite_file is None or suite is None:
            trial_run = (await progress_of(store, resume)).run
            _require_backend(trial_run, self.backend)
            return await self._carry_out(store, trial_run)
        if suite.follow is not None:
            return await self._follow(store, suite_file, suite, once)
        trial_run = _new_run(suite_file, suite, secrets.token_hex(4), self.folder, self.backend)
        return await self._carry_out(store, trial_run, is_new=True)

    async def _follow(self, store: "SqlStore", suite_file: Path, suite: Suite, once: bool) -> bool:
        are_scored, unseen = True, set[str]()
        while True:
            for trial_run in await _followed(store, suite_file, suite, self.folder, self.backend, unseen):
                are_scored &= await self._carry_out(store, trial_run)
            if once:
                return are_scored
            await asyncio.sleep(FOLLOW_PAUSE)

    async def _carry_out(self, store: "SqlStore", trial_run: TrialRun, is_new: bool = False) -> bool:
        async with self.executor_of(trial_run) as executor:
            if is_new:  # the executor has checked that it can be carried out
                await store.trials.add_run(trial_run)
            progress = await _carried_out(store, executor, trial_run, self.scorers, self.as_json, self.service)
        show(progress, self.as_json)
        return _is_scored(progress)


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
        progress = await progress_of(store, run)
        which = [
            trial for trial in progress.trials if _can_be_scored(progress, trial) and (not task or trial.task in task)
        ]
        if not which:
            raise BadInput(f"no trial of run {run} has all of its samples and is over")
        if suite_file is not None:
            await store.trials.set_suite(run, _with_scoring(progress.run.suite, load_suite(suite_file)))
        await store.trials.begin_scoring(run, [(trial.checkpoint, trial.task) for trial in which], again=True)
        return await _carried_out(store, _local((), CopyLimits()), progress.run, scorers, as_json)

    progress = _with_store(act, "trials score")
    show(progress, as_json)
    if not _is_scored(progress):
        raise typer.Exit(1)


def cancel(run: Run, context: options.Context = "", as_json: AsJson = False) -> None:
    """End a run, with all that it has running. Its samples and scores stay."""

    def executor_of(trial_run: TrialRun) -> AbstractAsyncContextManager[NodeExecutor]:
        kind, _, place = trial_run.backend.partition("@")
        if kind == KUBERNETES:
            return kubernetes_canceller(place, context)
        if kind == SLURM:
            return nullcontext(_slurm((), CopyLimits(), "", (), ()))
        _require_backend(trial_run, _here())
        return nullcontext(_local((), CopyLimits(default_folder())))

    async def act(store: "SqlStore") -> RunProgress:
        ending = (await progress_of(store, run)).run
        async with executor_of(ending) as executor:
            await store.trials.end_run(run, RunState.CANCELLED, time.time())
            return await _coordinator(store, executor, ending, 1).step(run)

    show(with_store(act, "trials cancel"), as_json)


def _with_store(act: "Callable[[SqlStore], Awaitable[Answer]]", command: str) -> Answer:
    try:
        return with_store(act, command)
    except KeyboardInterrupt:
        err.print(
            "The coordinator has ended; what runs goes on. `diagnoser trials status` lists runs.", highlight=False
        )
        raise typer.Exit(130) from None


async def _followed(
    store: "SqlStore", suite_file: Path, suite: Suite, folder: Path, backend: str, unseen: set[str]
) -> list[TrialRun]:
    """Runs to carry out: those that a follower before this one left, and a new one for each checkpoint that is due.
    unseen: checkpoints that are not there, each warned of once."""
    from diagnoser.trials.following import due, run_id, suite_of

    runs = await store.trials.runs(RUNS)
    mine = [run for run in runs if run.suite.name == suite.name and run.backend == backend and run.suite.follow]
    found = [run for run in reversed(mine) if run.state is RunState.RUNNING]
    assert suite.follow is not None
    for saved in due(suite.follow, await store.jobs.attempts(suite.follow.job), runs, suite.name):
        of_checkpoint = suite_of(suite, saved)
        try:
            trial_run = _new_run(suite_file, of_checkpoint, run_id(of_checkpoint), folder, backend)
            await store.trials.add_run(trial_run)
            found.append(trial_run)
        except BadInput as error:
            if saved.path not in unseen:
                err.print(f"skipped: {error}", markup=False, highlight=False, style="yellow")
            unseen.add(saved.path)
        except Conflict:
            err.print(f"somebody else evaluates {saved.path}", markup=False, highlight=False)
    return found


def _service(server: str, token_file: str) -> "ServerOptions | None":
    """Where logs of failed trials go; None where they stay here. Raises BadInput."""
    from diagnoser.client.run import ServerOptions
    from diagnoser.client.service import Service, TokenSource, UsageError

    if not server:
        return None
    options = ServerOptions(server, TokenSource(os.environ.get("DIAGNOSER_TOKEN", ""), token_file))
    try:
        for caution in Service(options.url, options.token).cautions():
            err.print(caution, markup=False, highlight=False, style="yellow")
        options.token.read()
    except UsageError as error:
        raise BadInput(str(error)) from None
    return options


def _new_run(suite_file: Path, suite: Suite, name: str, folder: Path, backend: str) -> TrialRun:
    directory = suite_file.resolve().parent
    absent = [path for path in suite.checkpoints if path.startswith(("/", ".")) and not (directory / path).exists()]
    if absent:
        raise BadInput(f"{suite_file}: there is no checkpoint {absent[0]}")
    place = folder.resolve() / name
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{place}: {error.strerror}") from error
    return TrialRun(name, suite, backend, str(place), str(directory), time.time())


def _suite(suite_file: Path | None, resume: str, once: bool) -> Suite | None:
    """Read the suite; None where a run is resumed. Raises BadInput where the options do not fit each other."""
    if (suite_file is None) == (not resume):
        raise BadInput("name either a suite, or a run to --resume")
    suite = load_suite(suite_file) if suite_file else None
    if once and (suite is None or suite.follow is None):
        raise BadInput("--once is for a suite with follow: {job, every}")
    return suite


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
    """The nodes that may be used: without --node this machine. Raises BadInput.

    given: texts of --node.
    gpus: that a trial needs.
    slurm: names may be lists such as ``gpu-[1-4]``.
    """
    if not given and slurm:
        raise BadInput("name the nodes that may be used: --node gpu-[1-4]=8")
    if not given:
        devices = len(list(Path("/dev").glob("nvidia[0-9]*")))
        return [Node(socket.gethostname(), devices or gpus)]
    nodes = []
    for text in given:
        names, count = _names_and_gpus(text, gpus)
        nodes += [Node(name, count) for name in (_expanded(names) if slurm else (names,))]
    if len({node.name for node in nodes}) != len(nodes):
        raise BadInput("a node is named twice")
    return nodes


def _names_and_gpus(text: str, gpus: int) -> tuple[str, int]:
    names, _, count = text.rpartition("=")
    if not names or not count.isdecimal() or not gpus <= int(count) <= 1024:
        raise BadInput(f"--node {text[:60]}: must be NAME=GPUS, with at least the {gpus} GPUs of a trial")
    return names, int(count)


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


def _coordinator(
    store: "SqlStore",
    executor: NodeExecutor,
    run: TrialRun,
    scorers: int,
    reporter: "LogReporter | None" = None,
) -> "Coordinator":
    from diagnoser.trials.coordinator import Coordinator, CoordinatorSettings

    at_once = scorers or max(1, (os.cpu_count() or 1) // 2)
    settings = CoordinatorSettings(batch_seconds=_BATCH_SECONDS[run.backend.partition("@")[0]], scorers=at_once)
    return Coordinator(
        store.trials, executor, time.time, lambda: secrets.token_hex(4), settings=settings, reporter=reporter
    )


async def _carried_out(
    store: "SqlStore",
    executor: NodeExecutor,
    run: TrialRun,
    scorers: int,
    quiet: bool,
    server: "ServerOptions | None" = None,
) -> RunProgress:
    from diagnoser.trials.reporting import LogReporter

    set_up(as_json=False, level="warning")  # to standard error: what a program reads stays alone
    pause = _PAUSES[run.backend.partition("@")[0]]
    err.print(f"run {run.id}, {run.folder}", highlight=False, markup=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    reporter = LogReporter(server) if server is not None else None
    with Progress(*columns, console=err, disable=quiet or not err.is_terminal) as bars:
        progress = await _coordinator(store, executor, run, scorers, reporter).carry_out(
            run.id, lambda: asyncio.sleep(pause), _shown_in(bars, run)
        )
    if reporter is not None:
        await reporter.finish()
    return progress


def _shown_in(bars: Progress, run: TrialRun) -> Callable[[RunProgress], None]:
    trials = len(run.suite.checkpoints) * len(run.suite.tasks)
    inferred, scored = bars.add_task("samples"), bars.add_task("trials", total=trials)

    def show(progress: RunProgress) -> None:
        bars.update(inferred, completed=samples_stored(progress), total=samples(progress))
        bars.update(scored, completed=sum(trial.state is TrialState.SCORED for trial in progress.trials))

    return show


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


def _is_scored(progress: RunProgress) -> bool:
    return all(trial.state is TrialState.SCORED for trial in progress.trials)
