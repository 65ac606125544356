"""Scores over the checkpoints of a training run, and which of them got worse by more than their noise.

The noise of a score has two sources, and the larger one counts: a data set is a sample (the standard error that the
scorer reports, else that of a share of n samples), and a training run moves from checkpoint to checkpoint (the spread
of the differences between neighbours). A score has dropped where it is worse than the median of the three before it by
more than chance: at least three standard deviations of the difference, and as many more as keep a false alarm for any
metric of the suite to one in a hundred checkpoints.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

from diagnoser.model.evaluations import EvaluationRun, Score, ScoreDrop, Task, TrialRecord, TrialState

_BEFORE = 3
"""Scores that the expectation is the median of."""
_OF_MEDIAN = {1: 1.0, 2: 0.71, 3: 0.67}
"""Standard deviation of the median of so many normal values, in that of one."""
_NEIGHBOURS = 12
"""Differences that the spread is taken from: the last ones."""
_NEIGHBOURS_LEAST = 4
_DEVIATIONS, _FALSE_ALARMS = 3.0, 0.01
_NORMAL = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations."""
_LOWER_IS_BETTER = re.compile(
    r"(?i)(?:^|[^a-z])(?:loss|perplexity|ppl|nll|error|err|wer|cer|bpb|bits_per_\w+)(?:[^a-z]|$)"
)
_IS_ERROR = re.compile(r"(?i)_?std_?err(?:or)?")


@dataclass(frozen=True, slots=True)
class ScoreSeries:
    """A metric of a task of a suite, by step; of a checkpoint that was evaluated again, the last score."""

    suite: str
    task: str
    metric: str
    scores: tuple[Score, ...]

    @property
    def lower_is_better(self) -> bool:
        """Judge by the name: a loss, a perplexity, a rate of errors."""
        return bool(_LOWER_IS_BETTER.search(self.metric))


def step_of(checkpoint: str) -> int | None:
    """The last number in the name of its file or folder: 2000 of ``/ckpt/step-2000``."""
    numbers = re.findall(r"[0-9]+", checkpoint.rstrip("/").rpartition("/")[2])
    return int(numbers[-1][:18]) if numbers else None


def series(evaluated: Iterable[tuple[EvaluationRun, Sequence[TrialRecord]]]) -> list[ScoreSeries]:
    """evaluated: runs with their trials, in any order."""
    by_metric: dict[tuple[str, str, str], dict[str, Score]] = {}
    for run, trials in sorted(evaluated, key=lambda pair: (pair[0].created, pair[0].id)):
        tasks = run.suite.tasks_by_name
        for trial in trials:
            if trial.state is not TrialState.SCORED:
                continue
            if trial.task not in tasks:
                continue
            for metric in itertools.filterfalse(_IS_ERROR.search, trial.scores):
                score = _score(run.id, trial, metric, tasks[trial.task])
                by_metric.setdefault((run.suite.name, trial.task, metric), {})[trial.checkpoint] = score
    drawn = []
    for key, scores in sorted(by_metric.items()):
        drawn.append(ScoreSeries(*key, tuple(sorted(scores.values(), key=_place))))
    return drawn


def drops(of: Sequence[ScoreSeries]) -> list[ScoreDrop]:
    """All of them, at every place. of: as ``series`` gives them."""
    metrics = Counter(of_metric.suite for of_metric in of)
    found = []
    for of_metric in of:
        for place in range(1, len(of_metric.scores)):
            if drop := _drop(of_metric, place, metrics[of_metric.suite]):
                found.append(drop)
    return found


def _drop(of: ScoreSeries, place: int, metrics: int) -> ScoreDrop | None:
    """metrics: how many are compared at the same time. None also where the noise is not known."""
    score, before = of.scores[place], of.scores[:place]
    expected = median(earlier.value for earlier in before[-_BEFORE:])
    noise = _noise_of_difference(score, before)
    worse = expected - score.value
    if of.lower_is_better:
        worse = -worse
    deviations = max(_DEVIATIONS, NormalDist().inv_cdf(1 - _FALSE_ALARMS / metrics))
    if noise is None:
        return None
    if not worse > deviations * noise:
        return None
    return ScoreDrop(of.suite, of.task, of.metric, score, expected, noise)


def _score(run: str, trial: TrialRecord, metric: str, task: Task) -> Score:
    value = trial.scores[metric]
    noise = _reported(trial, metric) or _of_share(value, task.samples)
    return Score(run, trial.checkpoint, step_of(trial.checkpoint), value, noise)


def _place(score: Score) -> tuple[bool, int, str]:
    """Checkpoints without a number come last."""
    if score.step is None:
        return True, 0, score.checkpoint
    return False, score.step, score.checkpoint


def _reported(trial: TrialRecord, metric: str) -> float | None:
    """The standard error that stands beside the metric, under its name with an ending or with a word put in, such as
    ``acc_stderr,none`` for ``acc,none``."""
    for name, value in trial.scores.items():
        if name == metric:
            continue
        if _IS_ERROR.sub("", name) != metric:
            continue
        if 0 < value < math.inf:
            return value
    return None


def _of_share(value: float, samples: int) -> float | None:
    """The standard error of a share of n samples, with one right and one wrong answer added, so that it is not 0 where
    all are alike. None for what cannot be a share."""
    if not 0 <= value <= 1:
        return None
    share = (value * samples + 1) / (samples + 2)
    return math.sqrt(share * (1 - share) / (samples + 2))


def _noise_of_difference(score: Score, before: Sequence[Score]) -> float | None:
    """The standard deviation of this score minus the median of those before it."""
    compared = before[-_BEFORE:]
    known = [scored.noise for scored in (*compared, score) if scored.noise is not None]
    changes = [abs(later.value - earlier.value) for earlier, later in itertools.pairwise(before)][-_NEIGHBOURS:]
    noises = []
    if len(known) > 1:
        noises.append(max(known))
    if len(changes) >= _NEIGHBOURS_LEAST:
        noises.append(_NORMAL * median(changes) / math.sqrt(2))
    if not noises:
        return None
    return max(noises) * math.hypot(1.0, _OF_MEDIAN[len(compared)])
