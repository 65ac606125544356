"""What a schedule has to place, and where: the trials that are not scored yet, and the slots that live."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from diagnoser.evaluations.runtime_estimates import RuntimeEstimates
from diagnoser.model.errors import BadInput
from diagnoser.model.evaluations import Done, Node, Placement, Suite, Task, TrialKey, TrialShard

Range = tuple[int, int]
"""Samples of a task: the first, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class Slot:
    """As many GPUs of a node as one trial needs.

    free: when its next batch can start, in seconds of the run.
    loaded: checkpoints whose weights are in the memory of its node by then.
    """

    node: str
    number: int
    free: float
    loaded: frozenset[str]


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial that is not scored.

    loads: path or name of its weights.
    waiting: its samples that neither are done nor run; samples: their number; work: the seconds of all.
    seconds: of one of them.
    score: seconds of its metric.
    ready: when the samples that run or are done are all there.
    """

    checkpoint: str
    loads: str
    task: Task
    waiting: tuple[Range, ...]
    samples: int
    work: float
    seconds: float
    score: float
    ready: float


def remaining_slots(suite: Suite, nodes: Sequence[Node], running: Sequence[Placement], now: float) -> list[Slot]:
    """List the slots of all nodes, those with something to run or with weights first.

    Raises BadInput where no node has as many GPUs as a trial needs.
    """
    free, loaded = dict[tuple[str, int], float](), dict[str, set[str]]()
    tasks = suite.tasks_by_name
    for placement in running:
        slot = placement.node, placement.slot
        free[slot] = max(free.get(slot, now), placement.end)
        if suite.server is None:  # the next batch starts a server of its own
            for shard in placement.batch.shards:
                if shard.task in tasks:
                    weights = suite.loaded_by(tasks[shard.task], shard.checkpoint)
                    loaded.setdefault(placement.node, set()).add(weights)
    slots = []
    for node in nodes:
        in_memory = frozenset(loaded.get(node.name, ()))
        for number in range(node.gpus // suite.gpus):
            slots.append(Slot(node.name, number, free.get((node.name, number), now), in_memory))
    if not slots:
        raise BadInput(f"no node has the {suite.gpus} GPUs that a trial needs")
    slots.sort(key=lambda slot: not slot.loaded)
    return slots


def remaining_trials(
    suite: Suite, estimates: RuntimeEstimates, done: Done, running: Sequence[Placement], now: float
) -> Iterator[Trial]:
    covered: dict[TrialKey, list[TrialShard]] = {}
    for shard in done.shards:
        covered.setdefault(shard.trial, []).append(shard)
    ends: dict[TrialKey, float] = {}
    for placement in running:
        for shard in placement.batch.shards:
            covered.setdefault(shard.trial, []).append(shard)
            ends[shard.trial] = max(ends.get(shard.trial, now), placement.end)
    for checkpoint in suite.checkpoints:
        for task in suite.tasks:
            key = checkpoint, task.name
            if key not in done.scored:
                waiting = tuple(_gaps(covered.get(key, ()), task.samples))
                samples = sum(last - first for first, last in waiting)
                seconds, score = estimates.samples[task.name], estimates.scores[task.name]
                ready = ends.get(key, now)
                loads = suite.loaded_by(task, checkpoint)
                yield Trial(checkpoint, loads, task, waiting, samples, samples * seconds, seconds, score, ready)


def _gaps(shards: Iterable[TrialShard], samples: int) -> Iterator[Range]:
    """The ranges of 0 to ``samples`` that no shard covers."""
    at = 0
    for shard in sorted(shards, key=lambda shard: shard.first):
        if shard.first > at:
            yield at, min(shard.first, samples)
        at = max(at, shard.last)
    if at < samples:
        yield at, samples
