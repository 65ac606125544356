"""`diagnoser.evaluations.continuous_evaluation`: which checkpoints of a training run are evaluated as they come."""

from dataclasses import replace

from diagnoser.evaluations.continuous_evaluation import due, run_id, suite_of
from diagnoser.model import Attempt, AttemptKey, CheckpointPhase, Event, EventKind
from diagnoser.model.evaluations import EvaluationRun, Follow, Suite, Task

FOLLOW = Follow("train", 1000)
SUITE = Suite("nightly", (), (Task("maths", 10, (), ()),), follow=FOLLOW)


def attempt(number: int, *saved: tuple[int, float], phase: CheckpointPhase = CheckpointPhase.VERIFIED) -> Attempt:
    """saved: (step, time)."""
    events = tuple(
        Event(EventKind.CHECKPOINT, time, step=step, path=f"/ckpt/{number}/step-{step}", phase=phase)
        for step, time in saved
    )
    return Attempt(AttemptKey("train", number), 0.0, events=events)


def evaluated(attempts: list[Attempt], runs: list[EvaluationRun]) -> list[int | None]:
    """The steps that are due; they are evaluated then."""
    found = due(FOLLOW, attempts, runs, "nightly")
    for saved in found:
        suite = suite_of(SUITE, saved)
        runs.append(EvaluationRun(run_id(suite), suite, "local@a", "/r", "/", saved.saved + 50))
    return [saved.step for saved in found]


def test_the_first_verified_checkpoint_of_each_part_is_evaluated_once() -> None:
    """At first the newest alone; then each that is due, also when several came at once."""
    runs: list[EvaluationRun] = []
    assert evaluated([], runs) == []
    assert evaluated([attempt(1, (500, 10.0), (1000, 20.0), (1500, 30.0))], runs) == [1500]
    assert evaluated([attempt(1, (1500, 30.0), (1900, 40.0))], runs) == []
    later = attempt(1, (1500, 30.0), (2000, 50.0), (2500, 60.0), (3500, 70.0))
    assert evaluated([later], runs) == [2000, 3500]
    assert evaluated([later], runs) == [] and len({run.id for run in runs}) == 3


def test_what_is_not_verified_is_not_evaluated() -> None:
    """It may be incomplete, or bad."""
    for phase in (CheckpointPhase.STAGED, CheckpointPhase.DURABLE, CheckpointPhase.BAD):
        assert due(FOLLOW, [attempt(1, (1000, 10.0), phase=phase)], [], "nightly") == []


def test_steps_that_a_run_passes_again_are_evaluated_again() -> None:
    """After a rollback the weights are others."""
    runs: list[EvaluationRun] = []
    first = attempt(1, (1000, 10.0))
    assert evaluated([first], runs) == [1000]
    first = attempt(1, (1000, 10.0), (2000, 20.0), (3000, 30.0))
    assert evaluated([first], runs) == [2000, 3000]
    assert evaluated([first, attempt(2, (2000, 90.0))], runs) == [2000]


def test_other_suites_and_other_jobs_do_not_count() -> None:
    """Each follows by itself."""
    runs: list[EvaluationRun] = []
    evaluated([attempt(1, (1000, 10.0))], runs)
    (saved,) = due(FOLLOW, [attempt(1, (1000, 10.0))], runs, "weekly")
    assert run_id(suite_of(replace(SUITE, name="weekly"), saved)) != runs[0].id
    assert due(replace(FOLLOW, job="other"), [attempt(1, (1000, 10.0))], runs, "nightly")
