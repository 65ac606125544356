"""`evaluations run`, `score` and `cancel`: an evaluation that is carried out here, by Slurm or by Kubernetes."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from diagnoser.agent.flags import from_flags
from diagnoser.commands.evaluations_kubernetes import (
    Context,
    KubernetesOptions,
    kubernetes_canceller,
    kubernetes_executor,
)
from diagnoser.commands.evaluations_plan import load_suite
from diagnoser.commands.evaluations_status import progress_of, show
from diagnoser.commands.open_store import with_store
from diagnoser.commands.terminal import AsJson, err
from diagnoser.evaluations.progress import samples, samples_stored
from diagnoser.evaluations.weights import CopyLimits, default_folder
from diagnoser.model.errors import BadInput, Conflict, Unavailable
from diagnoser.model.evaluations import EvaluationRun, Node, RunProgress, RunState, Suite, TrialState
from diagnoser.observability.logging import set_up
from diagnoser.ports import NodeExecutor

if TYPE_CHECKING:
    from diagnoser.adapters.sql.store import SqlStore
    from diagnoser.client.run import ServerOptions
    from diagnoser.evaluations.coordinator import Coordinator, CoordinatorSettings
    from diagnoser.evaluations.reporting import LogReporter

Answer = TypeVar("Answer")

LOCAL, SLURM, KUBERNETES = "local", "slurm", "kubernetes"
_PAUSES = {LOCAL: 0.2, SLURM: 2.0, KUBERNETES: 5.0}
"""Seconds between two looks at what runs."""
FOLLOW_PAUSE = 30.0
"""Seconds between two looks for new checkpoints."""
RUNS = 1000
"""Earlier runs that are looked at for what was evaluated already."""
_BATCH_SECONDS = {LOCAL: 60.0, SLURM: 600.0, KUBERNETES: 600.0}
"""Of work for a slot at once: a job of a scheduler takes seconds to start."""

Run = Annotated[str, typer.Argument(metavar="RUN", help="Its id, as `run` and `status` print it.")]


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    gres: Annotated[str, typer.Option(help='By which Slurm jobs ask for GPUs; "" where nodes have none.')] = "gpu"
    sbatch: Annotated[
        list[str], typer.Option(help="Further word of sbatch, such as --partition=gpu. May be given again.")
    ] = field(default_factory=list)
    sbatch_score: Annotated[list[str], typer.Option(help="The same for scoring, which needs no GPU.")] = field(
        default_factory=list
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    suite_file: Annotated[Path | None, typer.Argument(metavar="[SUITE.yaml]", help="What to evaluate.")] = None
    resume: Annotated[str, typer.Option(metavar="RUN", help="Go on with this run, after its coordinator ended.")] = ""
    folder: Annotated[
        Path, typer.Option(help="Where samples, scores and logs of runs go; for Slurm and Kubernetes a shared one.")
    ] = Path("trials")
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            help="NAME=GPUS, a node that may be used and how many GPUs of it; for Slurm also a list such as "
            "gpu-[1-4]=8. May be given again. Default: this machine, with all of its GPUs; for Kubernetes all nodes "
            "that have some.",
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(
            help='Folder in shared memory for copies of weights; "" for none. Default: one in /dev/shm. For '
            "Kubernetes a folder of the nodes that pods may mount, such as /dev/shm, and by default memory of each "
            "pod."
        ),
    ] = None
    copy_rate: Annotated[
        float, typer.Option(min=0, help="MB a second that a copy reads from the storage; 0: no limit.")
    ] = 0.0
    server: Annotated[
        str,
        typer.Option(
            envvar="DIAGNOSER_URL",
            help="Address of the service; the log of a trial that failed is sent there and diagnosed. Not set: not "
            "sent.",
        ),
    ] = ""
    token_file: Annotated[
        str, typer.Option(help="File with the token for the service. Default: the variable DIAGNOSER_TOKEN.")
    ] = ""
    fast: Annotated[
        bool, typer.Option("--fast", help="Use all nodes, also where fewer would end within 2 % of the same time.")
    ] = False
    patience: Annotated[
        float,
        typer.Option(min=0, help="Minutes without an answer of Slurm, Kubernetes or the nodes before this gives up."),
    ] = 60.0
    once: Annotated[
        bool,
        typer.Option("--once", help="For a suite that follows a job: end when nothing is due, instead of waiting."),
    ] = False
    as_json: AsJson = False
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Carry batches out as Slurm jobs, not as processes of this machine.")
    ] = False
    slurm_jobs: SlurmOptions
    kubernetes: Annotated[
        bool,
        typer.Option("--kubernetes", help="Carry batches out as Kubernetes Jobs.", rich_help_panel="Kubernetes"),
    ] = False
    pods: KubernetesOptions

    @property
    def copies(self) -> CopyLimits:
        folder = self.weights
        if folder is None:
            folder = default_folder()
        return CopyLimits(folder, rate=self.copy_rate * 1e6)

    @property
    def backend(self) -> str:
        if self.slurm:
            return SLURM
        if self.kubernetes:
            return f"{KUBERNETES}@{self.pods.namespace}"
        return _here()

    def suite(self) -> Suite | None:
        """Read the suite; None where a run is resumed. Raises BadInput where the options do not fit each other."""
        if self.slurm and self.kubernetes:
            raise BadInput("name either --slurm or --kubernetes")
        if (self.suite_file is None) == (not self.resume):
            raise BadInput("name either a suite, or a run to --resume")
        suite = follow = None
        if self.suite_file is not None:
            suite = load_suite(self.suite_file)
            follow = suite.follow
        if self.once and follow is None:
            raise BadInput("--once is for a suite with follow: {job, every}")
        return suite

    def executor(self, run: EvaluationRun) -> AbstractAsyncContextManager[NodeExecutor]:
        """Raises BadInput for nodes that cannot be used."""
        nodes: list[Node] = []
        if self.nodes:
            nodes = _nodes(self.nodes, run.suite.gpus, self.slurm)
        elif not self.kubernetes:  # which finds its nodes by itself
            nodes = _nodes((), run.suite.gpus, self.slurm)
        if self.kubernetes:
            pods = replace(self.pods, weights=self.weights, copy_rate=self.copy_rate * 1e6)
            return kubernetes_executor(pods, run, nodes)
        if self.slurm:
            return nullcontext(_slurm(nodes, self.copies, self.slurm_jobs))
        return nullcontext(_local(nodes, self.copies))


@from_flags(RunOptions)
def run(options: RunOptions) -> None:
    """Evaluate a suite of checkpoints and tasks. When this ends, or is killed, what runs goes on: resume it.

    A suite with follow: {job, every} evaluates the verified checkpoints of that job as they come, one in each so many
    steps, and never ends by itself. Started again it goes on where it was, and several do the work of one.

    Ends with 1 where a trial has no score."""
    suite = options.suite()
    runner = _Runner(options, _service(options.server, options.token_file))
    if not _with_store(lambda store: runner.act(store, suite), "evaluations run"):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Runner:
    """Carries runs out and shows each. What it returns says whether all of their trials have scores."""

    options: RunOptions
    service: "ServerOptions | None"

    async def act(self, store: "SqlStore", suite: Suite | None) -> bool:
        options = self.options
        if suite is None:
            resumed = (await progress_of(store, options.resume)).run
            _require_backend(resumed, options.backend)
            return await self._carry_out(store, resumed)
        if suite.follow is not None:
            return await self._follow(store, suite)
        assert options.suite_file is not None, "a suite is read from a file"
        new = _new_run(options.suite_file, suite, secrets.token_hex(4), options.folder, options.backend)
        return await self._carry_out(store, new, is_new=True)

    async def _follow(self, store: "SqlStore", suite: Suite) -> bool:
        are_scored, unseen = True, set[str]()
        while True:
            for run in await _followed(store, self.options, suite, unseen):
                are_scored &= await self._carry_out(store, run)
            if self.options.once:
                return are_scored
            await asyncio.sleep(FOLLOW_PAUSE)

    async def _carry_out(self, store: "SqlStore", run: EvaluationRun, is_new: bool = False) -> bool:
        async with self.options.executor(run) as executor:
            if is_new:  # the executor has checked that it can be carried out
                await store.evaluations.add_run(run)
            progress = await _carried_out(store, executor, run, self._settings(run), self.options.as_json, self.service)
        show(progress, self.options.as_json)
        return _is_scored(progress)

    def _settings(self, run: EvaluationRun) -> "CoordinatorSettings":
        return replace(_settings(run), fast=self.options.fast, patience=self.options.patience * 60)


def score(
    run: Run,
    task: Annotated[list[str] | None, typer.Option("--task", help="These alone. May be given again.")] = None,
    suite_file: Annotated[
        Path | None, typer.Option("--suite", help="File whose score commands are used, instead of the run's own.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the scores of a run again from its stored samples, on this machine, without a GPU."""

    async def act(store: "SqlStore") -> RunProgress:
        progress = await progress_of(store, run)
        which = []
        for trial in progress.trials:
            if task and trial.task not in task:
                continue
            if trial.state not in (TrialState.SCORED, TrialState.FAILED):
                continue
            if progress.is_whole(trial.key):
                which.append(trial.key)
        if not which:
            raise BadInput(f"no trial of run {run} has all of its samples and is over")
        if suite_file is not None:
            commands = {task.name: task.score for task in load_suite(suite_file).tasks}
            suite = progress.run.suite
            tasks = tuple(replace(task, score=commands.get(task.name, task.score)) for task in suite.tasks)
            await store.evaluations.set_suite(run, replace(suite, tasks=tasks))
        await store.evaluations.begin_scoring(run, which, again=True)
        return await _carried_out(store, _local((), CopyLimits()), progress.run, _settings(progress.run), as_json)

    progress = _with_store(act, "evaluations score")
    show(progress, as_json)
    if not _is_scored(progress):
        raise typer.Exit(1)


def cancel(run: Run, context: Context = "", as_json: AsJson = False) -> None:
    """End a run, with all that it has running. Its samples and scores stay."""

    def executor_of(ending: EvaluationRun) -> AbstractAsyncContextManager[NodeExecutor]:
        kind, _, place = ending.backend.partition("@")
        if kind == KUBERNETES:
            return kubernetes_canceller(place, context)
        if kind == SLURM:
            return nullcontext(_slurm((), CopyLimits(), SlurmOptions()))
        _require_backend(ending, _here())
        return nullcontext(_local((), CopyLimits(default_folder())))

    async def act(store: "SqlStore") -> RunProgress:
        ending = (await progress_of(store, run)).run
        async with executor_of(ending) as executor:
            await store.evaluations.end_run(run, RunState.CANCELLED, time.time())
            return await _coordinator(store, executor, _settings(ending)).step(run)

    show(with_store(act, "evaluations cancel"), as_json)


def _with_store(act: "Callable[[SqlStore], Awaitable[Answer]]", command: str) -> Answer:
    try:
        return with_store(act, command)
    except KeyboardInterrupt:
        err.print("The coordinator has ended; what runs goes on. `diagnoser evaluations status` lists runs.")
        raise typer.Exit(130) from None


async def _followed(store: "SqlStore", options: RunOptions, suite: Suite, unseen: set[str]) -> list[EvaluationRun]:
    """List the runs to carry out: those that a follower before this one left, and a new one for each checkpoint that
    is due.

    unseen: checkpoints that are not there, each warned of once.
    """
    from diagnoser.evaluations.continuous_evaluation import due, run_id, suite_of

    runs = await store.evaluations.runs(RUNS)
    left = [run for run in reversed(runs) if _is_left(run, suite, options.backend)]
    assert suite.follow is not None, "the caller follows the suite"
    assert options.suite_file is not None, "a suite is read from a file"
    for saved in due(suite.follow, await store.jobs.attempts(suite.follow.job), runs, suite.name):
        of_checkpoint = suite_of(suite, saved)
        try:
            name = run_id(of_checkpoint)
            run = _new_run(options.suite_file, of_checkpoint, name, options.folder, options.backend)
            await store.evaluations.add_run(run)
            left.append(run)
        except BadInput as error:
            if saved.path not in unseen:
                err.print(f"skipped: {error}", style="yellow")
            unseen.add(saved.path)
        except Conflict:
            err.print(f"somebody else evaluates {saved.path}")
    return left


def _is_left(run: EvaluationRun, suite: Suite, backend: str) -> bool:
    """Whether a follower of the suite has begun the run, and not ended it."""
    if run.state is not RunState.RUNNING:
        return False
    if run.suite.follow is None:
        return False
    if run.backend != backend:
        return False
    return run.suite.name == suite.name


def _service(server: str, token_file: str) -> "ServerOptions | None":
    """Where logs of failed trials go; None where they stay here. Raises BadInput."""
    from diagnoser.client.run import ServerOptions
    from diagnoser.client.service import Service, TokenSource, UsageError

    if not server:
        return None
    options = ServerOptions(server, TokenSource(os.environ.get("DIAGNOSER_TOKEN", ""), token_file))
    try:
        for caution in Service(options.url, options.token).cautions():
            err.print(caution, style="yellow")
        options.token.read()
    except UsageError as error:
        raise BadInput(str(error)) from None
    return options


def _new_run(suite_file: Path, suite: Suite, name: str, folder: Path, backend: str) -> EvaluationRun:
    directory = suite_file.resolve().parent
    for path in suite.all_checkpoints:
        if not path.startswith(("/", ".")):
            continue  # a name, not a path
        if not (directory / path).exists():
            raise BadInput(f"{suite_file}: there is no checkpoint {path}")
    place = folder.resolve() / name
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{place}: {error.strerror}") from error
    return EvaluationRun(name, suite, backend, str(place), str(directory), time.time())


def _here() -> str:
    return f"{LOCAL}@{socket.gethostname()}"


def _require_backend(run: EvaluationRun, backend: str) -> None:
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
    if not given:
        if slurm:
            raise BadInput("name the nodes that may be used: --node gpu-[1-4]=8")
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
    from diagnoser.evaluations.local import LocalExecutor

    return LocalExecutor(nodes, copies)


def _slurm(nodes: Sequence[Node], copies: CopyLimits, options: SlurmOptions) -> NodeExecutor:
    from diagnoser.agent.slurm.evaluation_batches import SlurmBatches

    return SlurmBatches(nodes, copies, time.time, options.gres, options.sbatch, options.sbatch_score)


def _settings(run: EvaluationRun) -> "CoordinatorSettings":
    from diagnoser.evaluations.coordinator import CoordinatorSettings

    scorers = max(1, (os.cpu_count() or 1) // 2)
    return CoordinatorSettings(batch_seconds=_BATCH_SECONDS[run.backend.partition("@")[0]], scorers=scorers)


def _coordinator(
    store: "SqlStore",
    executor: NodeExecutor,
    settings: "CoordinatorSettings",
    reporter: "LogReporter | None" = None,
) -> "Coordinator":
    from diagnoser.evaluations.coordinator import Coordinator

    return Coordinator(
        store.evaluations, executor, time.time, lambda: secrets.token_hex(4), settings=settings, reporter=reporter
    )


async def _carried_out(
    store: "SqlStore",
    executor: NodeExecutor,
    run: EvaluationRun,
    settings: "CoordinatorSettings",
    quiet: bool,
    server: "ServerOptions | None" = None,
) -> RunProgress:
    """Carry the run out. Raises Unavailable where nodes or scheduler were silent for too long."""
    from diagnoser.evaluations.reporting import LogReporter

    set_up(as_json=False, level="warning")  # to standard error: what a program reads stays alone
    pause = _PAUSES[run.backend.partition("@")[0]]
    err.print(f"run {run.id}, {run.folder}", soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    reporter = LogReporter(server) if server is not None else None
    coordinator = _coordinator(store, executor, settings, reporter)
    try:
        with Progress(*columns, console=err, disable=quiet or not err.is_terminal) as bars:
            return await coordinator.carry_out(run.id, lambda: asyncio.sleep(pause), _shown_in(bars, run))
    except Unavailable as error:
        if reporter is not None:
            # The run as a job that has failed: the service diagnoses it, and alerts as it does about failures.
            written = Path(run.folder) / "coordinator.log"
            written.write_text(f"ERROR: evaluation {run.id} of {run.suite.name} has ended: {error}\n")
            reporter.report(f"evaluation-{run.id}", f"{run.suite.name} evaluation", written, 1)
        raise Unavailable(f"{error}. Go on with: diagnoser evaluations run --resume {run.id}") from error
    finally:
        if reporter is not None:
            await reporter.finish()


def _shown_in(bars: Progress, run: EvaluationRun) -> Callable[[RunProgress], None]:
    trials = len(run.suite.checkpoints) * len(run.suite.tasks)
    inferred, scored = bars.add_task("samples"), bars.add_task("trials", total=trials)

    def show(progress: RunProgress) -> None:
        bars.update(inferred, completed=samples_stored(progress), total=samples(progress))
        bars.update(scored, completed=sum(trial.state is TrialState.SCORED for trial in progress.trials))

    return show


def _is_scored(progress: RunProgress) -> bool:
    return all(trial.state is TrialState.SCORED for trial in progress.trials)
