"""The pages of evaluations: scores by step of the training run, and what one run did and used."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from markupsafe import Markup
from pydantic import Field

from diagnoser.evaluations import progress
from diagnoser.evaluations.scores import ScoreSeries, drops, series
from diagnoser.model.evaluations import EvaluationRun, RunProgress, ScoreDrop, TrialState
from diagnoser.structure.sparkline import share_between
from diagnoser.web.api.evaluations import EvaluationId, find
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.routing import Schema
from diagnoser.web.pages.gantt_chart import svg
from diagnoser.web.pages.rendering import Drawn, page_query, reading_pages

RUNS = 100
"""Runs that the list shows and that curves are drawn from, the newest."""
_WIDTH, _HEIGHT, _EDGE = 160.0, 30.0, 3.0
_LINKED = 100
"""Failed trials for which is looked whether their logs were diagnosed."""

router = reading_pages()


class EvaluationsPage(Schema):
    suite: str = Field("", max_length=100)


@dataclass(frozen=True, slots=True)
class ScorePoint:
    """A score in a box of 160 x 30. top, bottom: a standard error up and down. drop: where it is worse than chance
    explains."""

    x: float
    y: float
    top: float
    bottom: float
    drop: ScoreDrop | None


@router.get("/evaluations")
async def evaluations_page(request: Request, core: Core, pages: Drawn) -> Response:
    """By default of the suite that ran last."""
    query = page_query(EvaluationsPage, request)
    runs = await core.store.evaluations.runs(RUNS)
    suites: dict[str, list[EvaluationRun]] = {}
    for run in runs:
        suites.setdefault(run.suite.name, []).append(run)
    suite = query.suite or next(iter(suites), "")
    mine = suites.get(suite, [])
    trials = await core.store.evaluations.trials_of([run.id for run in mine])
    drawn = series((run, trials[run.id]) for run in mine)
    dropped: dict[tuple[str, str], dict[str, ScoreDrop]] = defaultdict(dict)
    for drop in drops(drawn):
        dropped[drop.task, drop.metric][drop.score.checkpoint] = drop
    return pages.draw(
        "evaluations.html",
        suites=list(suites),
        suite=suite,
        runs=mine,
        trials=trials,
        rows=[_score_row(scores, dropped[scores.task, scores.metric]) for scores in drawn],
    )


@router.get("/evaluations/{id}")
async def evaluation_page(id: EvaluationId, core: Core, pages: Drawn) -> Response:
    """Its Gantt chart, GPU hours, and all trials."""
    found, now = await find(core.store, id), core.clock()
    in_line = progress.gpu_seconds_in_line(found)
    used = progress.gpu_seconds(found, now)
    return pages.draw(
        "evaluation.html",
        run=found.run,
        progress=found,
        chart=_chart(found, now),
        samples=progress.samples(found),
        stored=progress.samples_stored(found),
        used=used,
        in_line=in_line,
        jobs=await _diagnosed(core, found),
        metrics=list(dict.fromkeys(metric for trial in found.trials for metric in trial.scores)),
    )


def _chart(found: RunProgress, now: float) -> Markup:
    bars = progress.bars(found, now)
    if not bars:
        return Markup()
    summary = f"{len(found.batches)} batches on {len({bar.row for bar in bars})} slots"
    return svg(bars, f"What ran where in {found.run.suite.name}", summary)


def _score_row(of: ScoreSeries, dropped: Mapping[str, ScoreDrop]) -> dict[str, Any]:
    """A metric of a task, and its points, also as a polyline has them. They stand by step where every checkpoint has
    one, else at equal distances."""
    steps = [score.step for score in of.scores if score.step is not None]
    if len(steps) < len(of.scores):
        steps = list(range(len(of.scores)))
    across = _scaled(steps, _WIDTH)
    values: list[float] = []
    for score in of.scores:
        noise = score.noise or 0.0
        values += score.value, score.value + noise, score.value - noise
    heights = _scaled(values, _HEIGHT)
    points = []
    for place, score in enumerate(of.scores):
        height, top, bottom = heights[3 * place : 3 * place + 3]
        drop = dropped.get(score.checkpoint)
        points.append(ScorePoint(across[place], _HEIGHT - height, _HEIGHT - top, _HEIGHT - bottom, drop))
    line = [f"{point.x:.1f},{point.y:.1f}" for point in points]
    return {"of": of, "points": points, "line": " ".join(line)}


def _scaled(values: Sequence[float], length: float) -> list[float]:
    low, high = min(values), max(values)
    return [_EDGE + share_between(value, low, high) * (length - 2 * _EDGE) for value in values]


async def _diagnosed(core: Core, found: RunProgress) -> dict[tuple[str, str], str]:
    """(checkpoint, task) of trials that failed -> the job as which their logs were diagnosed."""
    failed = [trial for trial in found.trials if trial.state is TrialState.FAILED]
    jobs = {}
    for trial in failed[:_LINKED]:
        job = progress.job_of(found.run, trial.checkpoint, trial.task)
        if await core.store.jobs.find(job) is not None:
            jobs[trial.checkpoint, trial.task] = job
    return jobs
