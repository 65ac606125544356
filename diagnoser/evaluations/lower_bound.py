"""Times before which no schedule can end, whatever the order and the cuts.

A slot that works for a set of trials computes their samples from its lead on: when it is free, a load later unless its
node holds the weights of one of their checkpoints, and the start of one shard later. Why no schedule beats

1. a trial's own samples: some slot has at least its samples over the number of slots, rounded up (all of them where
   they cannot be cut); it begins after the shortest lead, and the metric follows.
2. all trials whose metric takes at least s: all are inferred by T - s. What the slots can give until then lies between
   their leads and T - s. It has to hold the seconds of all samples; a start for each trial beyond the number of slots,
   as n trials are at least n shards and a lead has one start; and a load for each checkpoint that no node holds beyond
   the number of slots, as a slot with k of them loads at least k - 1 times after its lead.
3. the metrics: ``scorers`` CPUs share them, from when the first trial can be inferred.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from diagnoser.evaluations.remaining_work import Slot, Trial
from diagnoser.evaluations.runtime_estimates import RuntimeEstimates

_SETS = 100
"""Sets of trials that the second bound looks at, by their metrics; each is a bound, so that fewer are as true."""

Kinds = Mapping[tuple[float, frozenset[str]], int]
"""Number of slots by when they are free and what they hold: most are alike."""


def lower_bound(trials: Sequence[Trial], slots: Sequence[Slot], estimates: RuntimeEstimates, scorers: int) -> float:
    """Find the latest of the bounds; 0 where nothing is left to do."""
    kinds = Counter((slot.free, slot.loaded) for slot in slots)
    inferred = _earliest_inference(trials, kinds, estimates)
    bounds = [0.0, *_inference_of_sets(trials, kinds, estimates)]
    bounds += [end + trial.score for end, trial in zip(inferred, trials, strict=True)]
    if scorers and trials:
        bounds.append(min(inferred) + sum(trial.score for trial in trials) / scorers)
    return max(bounds)


def _earliest_inference(trials: Sequence[Trial], kinds: Kinds, estimates: RuntimeEstimates) -> list[float]:
    """Find when each trial could be inferred, if it had all slots."""
    number, leads = sum(kinds.values()), dict[str, float]()
    ends = []
    for trial in trials:
        end = trial.ready
        if trial.loads not in leads:
            leads[trial.loads] = min(_leads(kinds, {trial.loads}, estimates))
        if trial.waiting:
            share = math.ceil(trial.samples / number) if trial.task.splits else trial.samples
            end = max(end, leads[trial.loads] + share * trial.seconds)
        ends.append(end)
    return ends


def _inference_of_sets(trials: Sequence[Trial], kinds: Kinds, estimates: RuntimeEstimates) -> Iterator[float]:
    held = frozenset[str]().union(*(loaded for _, loaded in kinds))
    waiting = sorted((trial for trial in trials if trial.waiting), key=lambda trial: -trial.score)
    slots, work, checkpoints = sum(kinds.values()), 0.0, set[str]()
    step = math.ceil(len(waiting) / _SETS)
    for number, trial in enumerate(waiting, 1):
        work += trial.work
        checkpoints.add(trial.loads)
        if number % step and number < len(waiting):
            continue
        missing = len(checkpoints - held)
        further = max(0, number - slots) * estimates.start + max(0, missing - slots) * estimates.load
        yield _level(_leads(kinds, checkpoints, estimates), work + further) + trial.score


def _leads(kinds: Kinds, checkpoints: AbstractSet[str], estimates: RuntimeEstimates) -> Counter[float]:
    """Count the slots by when they could compute their first sample of one of the checkpoints."""
    leads = Counter[float]()
    for (free, loaded), number in kinds.items():
        lead = free + estimates.start
        if not loaded & checkpoints:
            lead += estimates.load
        leads[lead] += number
    return leads


def _level(leads: Counter[float], work: float) -> float:
    """Find when slots with these leads have done the work, if they all end together."""
    number, total, end = 0, 0.0, 0.0
    for lead in sorted(leads):
        if number and lead >= end:
            break
        number += leads[lead]
        total += lead * leads[lead]
        end = (work + total) / number
    return end
