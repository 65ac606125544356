"""The page of a job that runs: its figures, who prints, its curves beside those of the family, and marks by step."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diagnoser.logview.log_timeline import RankSpan
from diagnoser.model import Attempt, AttemptKey, CheckpointPhase, Event, EventKind, Job, Progress
from diagnoser.web.pages.run_view import RunSeries, newest_steps, rank_activity, run_charts, run_marks
from tests.serving import ECC, NOW, save, serving
from tests.unit.test_web_jobs_list import prints


def steps(*losses: float, first: int = 1, rank: int = 0) -> list[Progress]:
    return [Progress(n, rank, 0.0, n, loss) for n, loss in enumerate(losses, first)]


def spans(**last: float) -> list[RankSpan]:
    return [RankSpan(int(rank[1:]), "", 0.0, at, 0, 0) for rank, at in last.items()]


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ({"r0": 100.0, "r1": 90.0}, "All 2 ranks printed within the last minute of the log"),
        ({"r0": 100.0, "r1": 90.0, "r2": 30.0}, "Rank 2 did not print within the last minute of the log; 2 others did"),
        ({"r0": 100.0, "r1": 9.0, "r2": 8.0}, "Rank 0 printed within the last minute of the log; 2 others did not"),
        ({}, ""),
    ],
)
def test_who_prints_is_said_in_a_sentence(last: dict[str, float], told: str) -> None:
    """The fewer are named: those that print, or those that do not."""
    timeline: Any = SimpleNamespace(is_timed=True, end=100.0)
    assert rank_activity(spans(**last), timeline) == told


def test_curves_of_the_family_stand_in_one_chart() -> None:
    """This run first; what was no number is a gap, and a step that came twice counts as it came last."""
    this_run = RunSeries("this run", "", [*steps(3.0, math.nan, 2.0), *steps(2.5, first=3)])
    (loss,) = run_charts([this_run, RunSeries("before", "/d", steps(4.0, 3.0))])
    assert (loss["name"], loss["over"], [run["run"] for run in loss["runs"]]) == (
        "loss",
        "step",
        ["this run", "before"],
    )
    assert (loss["runs"][0]["x"], loss["runs"][0]["y"]) == ([1, 2, 3], [3.0, None, 2.5])


def test_the_table_shows_one_rank_newest_first() -> None:
    """A thousand ranks print the same step."""
    both = [*steps(3.0, 2.0, rank=1), *steps(3.0, 2.5)]
    assert [(point.rank, point.step) for point in newest_steps(both)] == [(0, 2), (0, 1)]


def test_what_happened_is_marked_by_step() -> None:
    """A checkpoint, a loss that broke, and where the second launch took up the training."""
    saved = Event(EventKind.CHECKPOINT, NOW, step=40, path="/40", phase=CheckpointPhase.DURABLE)
    losses = [2.0] * 60 + [math.nan] * 9
    marks = run_marks(Attempt(AttemptKey("trains", 2), NOW, events=(saved,)), steps(*losses, first=10))
    assert [(mark["step"], mark["kind"]) for mark in marks] == [(10, "relaunch"), (40, "checkpoint"), (70, "alert")]


async def test_a_running_job_has_numbers_and_curves(tmp_path: Path) -> None:
    """On its page, with a part that moves; the curves come with those of the run before it."""
    lines = [f"step {n}/900 loss: {4 - n / 100:.2f} grad_norm: 0.5 step_time: 0.25" for n in range(50)]
    text = "".join(line + "\n" for line in lines)
    async with serving(tmp_path) as web:
        await web.store.jobs.register(Job("train-2", created=NOW), 1)
        await prints(web, "train-1", text)
        await save(web.store, "train-1", ECC)
        await prints(web, "train-2", text)
        page = (await web.client.get("/jobs/train-2")).text
        before = (await web.client.get("/jobs/train-1")).text
        series = (await web.client.get("/jobs/train-2/attempts/1/series.json")).json()
        missing = await web.client.get("/jobs/train-2/attempts/9/series.json")
    figures = page[page.index('id="run" data-moves') : page.index('id="curves"')]
    for shown in ("49", "of 900", "3.51", "0.5", "4 steps/s", "Finishes", lines[-1]):
        assert shown in figures
    assert 'id="run"' not in before and 'id="curves"' in before
    assert [run["run"] for run in series["charts"][0]["runs"]] == ["this run", "train-1, attempt 1"]
    assert missing.status_code == 404
