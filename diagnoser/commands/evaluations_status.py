"""`evaluations status`: how far evaluations are, and what commands show of one."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diagnoser.commands.open_store import with_store
from diagnoser.commands.terminal import AsJson, iso, minute, out, print_json, print_list, print_rows
from diagnoser.evaluations.progress import gpu_seconds, samples, samples_stored
from diagnoser.model.errors import existing
from diagnoser.model.evaluations import BatchState, EvaluationRun, RunProgress, ShardState
from diagnoser.model.record_json import fields_of

if TYPE_CHECKING:
    from diagnoser.adapters.sql.store import SqlStore

_TRIAL = ("checkpoint", "task", "state", "scores", "error")


def status(
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="Its id; without it the latest runs are listed.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show the latest runs, or how far one is, with its scores and why trials failed."""
    if run:
        show(with_store(lambda store: progress_of(store, run), "evaluations status"), as_json)
        return
    runs = with_store(lambda store: store.evaluations.runs(50), "evaluations status")
    print_list(runs, as_json, _run_fields, ("run", "suite", "state", "started", "ended", "backend"), _run_row)


async def progress_of(store: "SqlStore", run: str) -> RunProgress:
    """Raises NotFound."""
    return existing(await store.evaluations.progress(run), f"there is no run {run[:60]!r}")


def show(progress: RunProgress, as_json: bool) -> None:
    if as_json:
        print_json(_fields(progress))
        return
    rows = []
    for trial in progress.trials:
        scores = ", ".join(f"{name} {value:.4g}" for name, value in trial.scores.items())
        rows.append((trial.checkpoint, trial.task, trial.state, scores))
    print_rows(("checkpoint", "task", "state", "scores"), rows)
    for trial in progress.trials:
        if trial.error:
            out.print(f"{trial.checkpoint} {trial.task}: {trial.error}", style="red")
    hours = f"{gpu_seconds(progress, time.time()) / 3600:.2f} GPU hours"
    out.print(
        f"run {progress.run.id} {progress.run.state}: {samples_stored(progress)} of {samples(progress)} samples, "
        f"{hours}",
    )


def _fields(progress: RunProgress) -> dict[str, Any]:
    states = [record.state for record in progress.shards]
    return {
        **_run_fields(progress.run),
        "samples": samples_stored(progress),
        "gpu_seconds": gpu_seconds(progress, time.time()),
        "pieces": {state.value: states.count(state) for state in ShardState if state in states},
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
        "trials": [fields_of(trial, _TRIAL) for trial in progress.trials],
    }


def _run_fields(run: EvaluationRun) -> dict[str, Any]:
    seconds = None
    if run.ended is not None:
        seconds = run.ended - run.created
    return {
        "run": run.id,
        "suite": run.suite.name,
        "state": run.state,
        "backend": run.backend,
        "folder": run.folder,
        "created": iso(run.created),
        "ended": iso(run.ended),
        "seconds": seconds,
    }


def _run_row(run: EvaluationRun) -> tuple[str, ...]:
    ended = "" if run.ended is None else minute(run.ended)
    return run.id, run.suite.name, run.state, minute(run.created), ended, run.backend
