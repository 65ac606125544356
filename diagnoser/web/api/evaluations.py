"""Evaluation runs: what they scored, and what they used."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

from fastapi import Path, Query
from pydantic import ConfigDict, Field

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.client.service import API
from diagnoser.model.errors import NotFound
from diagnoser.model.trials import RunState, TrialState
from diagnoser.ports import RunProgress, TrialRun
from diagnoser.trials.progress import gpu_seconds, gpu_seconds_in_line, job_of, samples, samples_stored, trial_fields
from diagnoser.web.api.params import utc
from diagnoser.web.http.authentication import READ, Provided
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Router, Schema

router = Router(prefix=API, tags=["evaluations"])

EvaluationId = Annotated[str, Path(pattern=r"^[A-Za-z0-9-]{1,64}$", description="Id of the evaluation run")]


class EvaluationsQuery(Schema):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(50, ge=1, le=200)


class EvaluationShape(Schema):
    """One evaluation of a suite: its checkpoints on its tasks."""

    id: str
    suite: str
    state: RunState
    backend: str = Field(description="What carries it out: `local@HOST`, `slurm` or `kubernetes`")
    checkpoints: list[str]
    tasks: int
    created: datetime
    ended: datetime | None


class TrialShape(Schema):
    """A checkpoint on a task."""

    checkpoint: str
    task: str
    state: TrialState
    scores: Mapping[str, float]
    error: str = Field(description="Why it failed, with the end of the log")
    job: str = Field(description="Id of the job under which the log of a failed command is diagnosed, if it was sent")


class EvaluationDetail(EvaluationShape):
    """gpu_seconds: GPU seconds that its batches held. gpu_seconds_in_line: what a job for each trial would have held,
    from what this run measured; null before all of its trials are scored."""

    folder: str
    samples: int
    samples_inferred: int
    gpu_seconds: float
    gpu_seconds_in_line: float | None
    trials: list[TrialShape]


@router.get("/evaluations", dependencies=READ, responses=answers(400, 401, 503), summary="List evaluation runs")
async def list_evaluations(query: Annotated[EvaluationsQuery, Query()], services: Provided) -> list[EvaluationShape]:
    """The newest first."""
    return [EvaluationShape.model_validate(_of_run(run)) for run in await services.store.trials.runs(query.limit)]


@router.get("/evaluations/{id}", dependencies=READ, responses=answers(400, 401, 404, 503), summary="One evaluation run")
async def show_evaluation(id: EvaluationId, services: Provided) -> EvaluationDetail:
    """With the scores of all its trials."""
    progress = await find(services.store, id)
    return EvaluationDetail.model_validate(
        _of_run(progress.run)
        | {
            "folder": progress.run.folder,
            "samples": samples(progress),
            "samples_inferred": samples_stored(progress),
            "gpu_seconds": gpu_seconds(progress, services.clock()),
            "gpu_seconds_in_line": gpu_seconds_in_line(progress),
            "trials": [
                trial_fields(trial) | {"job": job_of(progress.run, trial.checkpoint, trial.task)}
                for trial in progress.trials
            ],
        }
    )


async def find(store: SqlStore, id: str) -> RunProgress:
    """Raises NotFound."""
    progress = await store.trials.progress(id)
    if progress is None:
        raise NotFound(f"no evaluation {id!r}")
    return progress


def _of_run(run: TrialRun) -> dict[str, object]:
    return {
        "id": run.id,
        "suite": run.suite.name,
        "state": run.state,
        "backend": run.backend,
        "checkpoints": list(run.suite.checkpoints),
        "tasks": len(run.suite.tasks),
        "created": utc(run.created),
        "ended": None if run.ended is None else utc(run.ended),
    }
