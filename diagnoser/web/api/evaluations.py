"""Evaluation runs: what they scored, and what they used."""

from collections.abc import Mapping
from typing import Annotated, Self

from fastapi import Path, Query
from pydantic import Field

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.evaluations.progress import (
    gpu_seconds,
    gpu_seconds_in_line,
    job_of,
    samples,
    samples_stored,
)
from diagnoser.model.errors import existing
from diagnoser.model.evaluations import EvaluationRun, RunProgress, RunState, TrialState
from diagnoser.web.api.params import Moment, MomentIfSet
from diagnoser.web.http.authentication import READ
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Answer, ApiRouter, StrictSchema

router = ApiRouter("evaluations")

EvaluationId = Annotated[str, Path(pattern=r"^[A-Za-z0-9-]{1,64}$", description="Id of the evaluation run")]


class EvaluationsQuery(StrictSchema):
    limit: int = Field(50, ge=1, le=200)


class EvaluationShape(Answer):
    """One evaluation of a suite: its checkpoints on its tasks."""

    id: str
    suite: str
    state: RunState
    backend: str = Field(description="What carries it out: `local@HOST`, `slurm` or `kubernetes`")
    checkpoints: list[str]
    tasks: int
    created: Moment
    ended: MomentIfSet

    @classmethod
    def from_run(cls, run: EvaluationRun, **values: object) -> Self:
        suite = run.suite
        return cls.filled_from(run, suite=suite.name, checkpoints=suite.checkpoints, tasks=len(suite.tasks), **values)


class TrialShape(Answer):
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


@router.get("/evaluations", dependencies=READ, summary="List evaluation runs")
async def list_evaluations(query: Annotated[EvaluationsQuery, Query()], core: Core) -> list[EvaluationShape]:
    """The newest first."""
    return list(map(EvaluationShape.from_run, await core.store.evaluations.runs(query.limit)))


@router.get("/evaluations/{id}", dependencies=READ, responses=answers(404), summary="One evaluation run")
async def show_evaluation(id: EvaluationId, core: Core) -> EvaluationDetail:
    """With the scores of all its trials."""
    progress = await find(core.store, id)
    run = progress.run
    trials = [TrialShape.filled_from(trial, job=job_of(run, *trial.key)) for trial in progress.trials]
    return EvaluationDetail.from_run(
        run,
        samples=samples(progress),
        samples_inferred=samples_stored(progress),
        gpu_seconds=gpu_seconds(progress, core.clock()),
        gpu_seconds_in_line=gpu_seconds_in_line(progress),
        trials=trials,
    )


async def find(store: SqlStore, id: str) -> RunProgress:
    """Raises NotFound."""
    return existing(await store.evaluations.progress(id), f"no evaluation {id!r}")
