"""The pages and the API of evaluations."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.model import Job
from diagnoser.model.evaluations import (
    BatchKind,
    BatchRecord,
    BatchState,
    EvaluationRun,
    RunState,
    ShardRecord,
    ShardState,
    Suite,
    Task,
    TrialRecord,
    TrialShard,
    TrialState,
)
from tests.serving import HOSTILE, NOW, Web, serving
from tests.unit.test_worker_score_alerts import scored

TASKS = (Task("code", 10, (), ()), Task("maths", 4, (), ()))
RUN = EvaluationRun("r1", Suite("weekly", ("/ckpt/step-9",), TASKS, gpus=2), "slurm", "/runs/r1", "/suites", NOW - 600)
MATHS, CODE = TrialShard("/ckpt/step-9", "maths", 0, 4), TrialShard("/ckpt/step-9", "code", 0, 10)


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(tmp_path) as made:
        yield made


async def fill_evaluation(web: Web) -> None:
    """Maths is scored; code has failed, with hostile text in its log, and a second batch was lost."""
    store = web.store
    await store.evaluations.add_run(RUN)
    await store.evaluations.cut("r1", 0, (), (MATHS, CODE))
    infer = BatchRecord("r1-a", "r1", BatchKind.INFER, "hgx-01", 0, NOW - 600, 300.0)
    done = [ShardRecord(MATHS, ShardState.INFERRED, "r1-a", seconds=100.0, load=40.0)]
    await store.evaluations.start_batch(infer, (MATHS,))
    await store.evaluations.record_batch(replace(infer, state=BatchState.ENDED, ended=NOW - 500), done)
    lost = replace(infer, id="r1-b", node="hgx-02")
    failed = TrialRecord("/ckpt/step-9", "code", TrialState.FAILED, error=HOSTILE)
    await store.evaluations.start_batch(lost, (CODE,))
    code = [ShardRecord(CODE, ShardState.FAILED, "r1-b", 3, HOSTILE)]
    await store.evaluations.record_batch(replace(lost, state=BatchState.LOST, ended=NOW - 400), code, [failed])
    await store.evaluations.begin_scoring("r1", [("/ckpt/step-9", "maths")])
    scoring = BatchRecord("r1-s", "r1", BatchKind.SCORE, "", 0, NOW - 500, checkpoint="/ckpt/step-9", task="maths")
    maths = TrialRecord("/ckpt/step-9", "maths", TrialState.SCORED, {"accuracy": 0.75, HOSTILE: 1.0}, scored=NOW - 450)
    await store.evaluations.start_batch(scoring, ())
    await store.evaluations.record_batch(replace(scoring, state=BatchState.ENDED, ended=NOW - 450), (), [maths])
    await store.evaluations.end_run("r1", RunState.ENDED, NOW - 300)


async def test_without_runs_the_page_says_how_they_come_about(web: Web) -> None:
    """With the command."""
    page = (await web.client.get("/evaluations")).text
    assert "Nothing was evaluated yet" in page and "diagnoser evaluations run SUITE.yaml" in page
    assert (await web.client.get("/evaluations?suite=none")).status_code == 200
    assert (await web.client.get("/evaluations/none")).status_code == 404


async def test_scores_are_drawn_by_step_and_what_got_worse_is_marked(web: Web) -> None:
    """Of the suite that ran last, or of the one that is asked for."""
    await scored(web.store, [0.70, 0.72, 0.71, 0.40])
    await fill_evaluation(web)
    page = (await web.client.get("/evaluations")).text
    assert 'href="/evaluations/nightly-r4"' in page and "step 4\u2009000" in page
    assert page.count("<polyline") == 1 and page.count("<circle") == 1
    assert page.count("<line ") == 4 and 'title="Standard error">± 0.0' in page
    assert "worse: 0.71 expected" in page and 'href="/evaluations?suite=weekly"' in page
    other = (await web.client.get("/evaluations?suite=weekly")).text
    assert "one checkpoint" in other and "1 failed" in other and "worse:" not in other


async def test_a_run_shows_what_ran_where_and_what_it_cost(web: Web) -> None:
    """GPU time, a Gantt chart with what was lost, scores, why trials failed, and their diagnosis; text stays text."""
    await fill_evaluation(web)
    page = (await web.client.get("/evaluations/r1")).text
    assert "4 of 14 inferred" in page and "10\u00a0min" in page  # 2 GPUs for 100 s and for 200 s
    assert "hgx-01 0" in page and "lost or cancelled" in page and "0.75" in page
    assert "/jobs/trial-r1-0-code" not in page
    await web.store.jobs.register(Job("trial-r1-0-code"))
    assert 'href="/jobs/trial-r1-0-code"' in (await web.client.get("/evaluations/r1")).text
    assert "<script>fetch" not in page


async def test_the_api_has_all_of_it(web: Web) -> None:
    """The list with the newest first, and one run with its trials."""
    await fill_evaluation(web)
    (listed,) = (await web.client.get("/api/v1/evaluations")).json()
    assert (listed["id"], listed["suite"], listed["state"], listed["tasks"]) == ("r1", "weekly", "ended", 2)
    run = (await web.client.get("/api/v1/evaluations/r1")).json()
    assert (run["samples"], run["samples_inferred"], run["gpu_seconds"]) == (14, 4, 600.0)
    assert run["gpu_seconds_in_line"] is None, "code was never scored"
    by_task = {trial["task"]: trial for trial in run["trials"]}
    assert by_task["maths"]["scores"]["accuracy"] == 0.75 and by_task["code"]["job"] == "trial-r1-0-code"
    assert (await web.client.get("/api/v1/evaluations/none")).status_code == 404
    assert (await web.client.get("/api/v1/evaluations?limit=0")).status_code == 400
