"""Estimates how long inference, loads and metrics take: from earlier runs, else from sizes.

What the suite says counts first. Then the median of earlier runs of this task with a model of this size on this
hardware. Then a coefficient, which is what other tasks took on this hardware, and a guess where nothing has run yet.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, quantiles

from diagnoser.model.evaluations import Runtime, Suite, Task

_SAMPLE_SECONDS = 0.05
"""Of a sample and a billion parameters. A guess, like those below; the first run replaces it."""
_SCORE_SECONDS = 0.01
"""Of a sample."""
_START_SECONDS = 20.0
"""Of a process until it reads the weights."""
_CLIENT_SECONDS = 5.0
"""Of a process that asks a server, until its first request."""
_STORAGE, _MEMORY = 1e9, 5e9
"""Bytes of weights a second: from storage to the memory of a node, and from there to its GPUs."""
_LEAST = 1e-3
"""Seconds of a sample: the schedule divides by it."""
_UNITS = {"K": 1e-6, "M": 1e-3, "B": 1.0, "T": 1e3}
_BYTES_A_PARAMETER = 2


@dataclass(frozen=True, slots=True)
class RuntimeEstimates:
    """Seconds. samples: of inference for one sample, by task. scores: of a trial's metric, by task. load: of a batch
    until the weights are in the memory of its node. start: of each of its shards until the first sample. models: of the
    tasks that load a model of the suite, by its name; load and start are of the others.
    """

    samples: Mapping[str, float]
    scores: Mapping[str, float]
    load: float
    start: float
    models: Mapping[str, "RuntimeEstimates"] = field(default_factory=dict)

    def of_task(self, task: str) -> "RuntimeEstimates":
        """Return the estimates with load and start of what the task loads."""
        return next((part for part in self.models.values() if task in part.samples), self)


def estimate_runtimes(suite: Suite, runtimes: Iterable[Runtime] = ()) -> RuntimeEstimates:
    """runtimes: of earlier runs, of any task, size and hardware."""
    known: list[Runtime] = []
    here: list[Runtime] = []
    for runtime in runtimes:
        if runtime.samples <= 0:
            continue
        known.append(runtime)
        if runtime.hardware == suite.hardware:
            here.append(runtime)
    estimates = _estimate(suite.part(""), known, here)
    models = {model.name: _estimate(suite.part(model.name), known, here) for model in suite.models}
    samples, scores = dict(estimates.samples), dict(estimates.scores)
    for of_model in models.values():
        samples.update(of_model.samples)
        scores.update(of_model.scores)
    return replace(estimates, samples=samples, scores=scores, models=models)


def _estimate(suite: Suite, known: Sequence[Runtime], here: Sequence[Runtime]) -> RuntimeEstimates:
    """Estimate for tasks that all load the same. here: those of ``known`` on this hardware."""
    load, start = _loads(suite, here)
    return RuntimeEstimates(
        {task.name: max(_sample_seconds(suite, task, here), _LEAST) for task in suite.tasks},
        {task.name: _score_seconds(task, known) for task in suite.tasks},
        load,
        start,
    )


def billions(size: str) -> float | None:
    """Read the parameters of a model from its size: 7.0 for "7B". None where it is not a number with a unit."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMBT])\s*", size.upper())
    if match is None:
        return None
    return float(match[1]) * _UNITS[match[2]] or None


def _sample_seconds(suite: Suite, task: Task, here: Sequence[Runtime]) -> float:
    if task.sample_seconds is not None:
        return task.sample_seconds
    same: list[float] = []
    others: list[float] = []
    for runtime in here:
        if (runtime.task, runtime.size) == (task.name, suite.size):
            same.append(_rate(runtime))
        if size := billions(runtime.size):
            others.append(_rate(runtime) / size)
    if same:
        return median(same)
    return median(others) * _billions(suite) if others else _SAMPLE_SECONDS * _billions(suite)


def _rate(runtime: Runtime) -> float:
    return max(runtime.seconds - runtime.load, 0.0) / runtime.samples


def _score_seconds(task: Task, known: Sequence[Runtime]) -> float:
    """A metric runs on CPUs over the samples of its task, whatever the model and the hardware."""
    if task.score_seconds is not None:
        return task.score_seconds
    scores = []
    for runtime in known:
        if runtime.task != task.name:
            continue
        if runtime.score is not None:
            scores.append(runtime.score)
    return median(scores) if scores else task.samples * _SCORE_SECONDS


def _loads(suite: Suite, here: Sequence[Runtime]) -> tuple[float, float]:
    """Seconds of a batch's load, and of a shard's. Only the first shard of a batch waits for the weights, and a runtime
    does not say whether it was the first: the shortest loads are those of a shard, and the longest have both.

    Loads of other sizes count in proportion, where this one has not run.
    """
    loads = [runtime.load for runtime in here if runtime.size == suite.size]
    if not loads:
        for runtime in here:
            if size := billions(runtime.size):
                loads.append(runtime.load / size * _billions(suite))
    if not loads:
        weights = suite.weights or _billions(suite) * 1e9 * _BYTES_A_PARAMETER
        if suite.server is not None:
            return weights / _STORAGE + _START_SECONDS + weights / _MEMORY, _CLIENT_SECONDS
        return weights / _STORAGE, _START_SECONDS + weights / _MEMORY
    tenths = quantiles([*loads, loads[0]], n=10, method="inclusive")
    if suite.server is not None:
        return max(loads) - tenths[0], tenths[0]  # a batch has one start of the server, and any number of shards
    return tenths[-1] - tenths[0], tenths[0]


def _billions(suite: Suite) -> float:
    return billions(suite.size) or suite.weights / _BYTES_A_PARAMETER / 1e9 or 1.0
