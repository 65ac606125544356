"""`diagnoser.evaluations.scores`: scores by step, and which of them dropped by more than their noise."""

import random
from collections.abc import Mapping, Sequence

import pytest

from diagnoser.evaluations.scores import drops, series, step_of
from diagnoser.model.evaluations import EvaluationRun, Suite, Task, TrialRecord, TrialState

TASK = Task("maths", 400, (), ())


def evaluated(
    scores: Sequence[Mapping[str, float]], tasks: Sequence[Task] = (TASK,), suite: str = "nightly"
) -> list[tuple[EvaluationRun, list[TrialRecord]]]:
    """One run for each checkpoint, 1,000 steps apart."""
    found = []
    for place, values in enumerate(scores, 1):
        path = f"/ckpt/step-{1000 * place}"
        run = EvaluationRun(f"r{place}", Suite(suite, (path,), tuple(tasks)), "local@a", "/r", "/", float(place))
        found.append((run, [TrialRecord(path, task.name, TrialState.SCORED, values) for task in tasks]))
    return found


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("/ckpt/step-2000", 2000),
        ("iter_0000500/", 500),
        ("/runs/7b/global_step12.pt", 12),
        ("/runs/2024/final", None),
        ("", None),
    ],
)
def test_a_step_is_the_last_number_of_a_checkpoints_own_name(path: str, step: int | None) -> None:
    """Numbers of the folders above it say nothing."""
    assert step_of(path) == step


def test_scores_stand_by_step_and_the_last_evaluation_counts() -> None:
    """Whatever the order of the runs; what failed, and standard errors, have no row."""
    first, second, third = evaluated([{"acc": 0.5}, {"acc": 0.6}, {"acc": 0.7, "acc_stderr": 0.02}])
    again = first[0], [TrialRecord(first[1][0].checkpoint, "maths", TrialState.SCORED, {"acc": 0.4})]
    later = EvaluationRun("r9", again[0].suite, "local@a", "/r", "/", 9.0), again[1]
    failed = second[0], [TrialRecord(second[1][0].checkpoint, "maths", TrialState.FAILED)]
    (found,) = series([third, later, failed, first])
    assert [(score.step, score.value) for score in found.scores] == [(1000, 0.4), (3000, 0.7)]
    assert found.scores[1].noise == 0.02


@pytest.mark.parametrize(
    ("scores", "dropped"),
    [
        ([{"acc": 0.70}, {"acc": 0.72}, {"acc": 0.50}], ["0.71 to 0.5"]),
        ([{"acc": 0.70}, {"acc": 0.72}, {"acc": 0.66}], []),  # within the noise of 400 samples
        ([{"acc": 0.70}, {"acc": 0.72}, {"acc": 0.95}], []),  # better
        ([{"acc": 0.50}], []),
        ([{"acc": 1.0}, {"acc": 1.0}, {"acc": 0.99}], []),  # a share of 400 that is 1 is not without noise
        ([{"perplexity": value} for value in (9.0, 8.9, 8.8, 8.9, 8.7, 8.8, 12.0)], ["8.8 to 12"]),
        ([{"perplexity": value} for value in (9.0, 8.9, 8.8, 8.9, 8.7, 8.8, 5.0)], []),
        ([{"bleu": 30.0}, {"bleu": 3.0}], []),  # no share, and no neighbours: its noise is not known
        ([{"bleu": 30.0, "bleu_stderr": 0.5}, {"bleu": 20.0, "bleu_stderr": 0.5}], ["30 to 20"]),
        ([{"acc,none": 0.7, "acc_stderr,none": 0.2}, {"acc,none": 0.5, "acc_stderr,none": 0.2}], []),
        ([{"acc": 0.7}, {"acc": float("nan")}], []),
    ],
)
def test_a_score_drops_when_it_is_worse_by_more_than_its_noise(
    scores: list[dict[str, float]], dropped: list[str]
) -> None:
    """Of a share by the number of samples, else by what the scorer or the neighbours say; lower may be better."""
    found = drops(series(evaluated(scores)))
    assert [f"{drop.expected:.3g} to {drop.score.value:.3g}" for drop in found] == dropped


def test_chance_alone_is_seldom_a_drop() -> None:
    """63 tasks of 500 samples with an accuracy that does not change, at 60 checkpoints: about one in a hundred
    checkpoints would do, and a score that falls by 12 % on each of them is found."""
    chance = random.Random(7)
    tasks = [Task(f"task-{number}", 500, (), ()) for number in range(63)]
    found = []
    for place, (run, trials) in enumerate(evaluated([{}] * 60, tasks)):
        fallen = 0.12 if place == 59 else 0.0
        scored = []
        for trial in trials:
            right = sum(chance.random() < 0.6 - fallen for _ in range(500))
            scored.append(TrialRecord(trial.checkpoint, trial.task, TrialState.SCORED, {"acc": right / 500}))
        found.append((run, scored))
    dropped = [drop.score.step for drop in drops(series(found))]
    assert sum(step != 60_000 for step in dropped) <= 3
    assert dropped.count(60_000) >= 20
