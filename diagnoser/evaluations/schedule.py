"""Plans what runs where and when: a pure function of suite, estimates, nodes, and what is done.

The cost model: a slot is as many GPUs of a node as one trial needs. It runs batches one after the other. A batch is of
one checkpoint and pays the load once; each of its shards pays the start, and its samples their task's seconds. A trial
is scored on a CPU when the last of its shards has ended.

For an end T, a trial has to be inferred by T minus its scoring. Trials are placed in the order of these deadlines, and
longest first where they are alike. Each goes to the slot that can begin it first, and is cut where its deadline is, the
rest going to the next slot. T is tried from the lower bound upwards until a schedule keeps it.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from diagnoser.evaluations.runtime_estimates import RuntimeEstimates
from diagnoser.model.errors import BadInput
from diagnoser.model.evaluations import (
    Batch,
    Done,
    Node,
    Placement,
    Schedule,
    Scoring,
    Suite,
    Task,
    TrialKey,
    TrialShard,
)

_STRETCHES = (*(step / 200 for step in range(25)), 0.16, 0.25, 0.5, 1.0)
"""How much later than the lower bound the end is tried to be."""
_ALIKE = 0.01
"""Deadlines that differ by less than this share of the whole count as the same, so that long trials come first."""
_PIECE_STARTS, _PIECE_SECONDS = 20.0, 600.0
"""A shard lasts at most this many starts or seconds, whichever is more: it is what the death of its node costs."""
_EPSILON = 1e-9

_NOTHING = Done()

Range = tuple[int, int]


def schedule(suite: Suite, estimates: RuntimeEstimates, nodes: Sequence[Node], done: Done = _NOTHING) -> Schedule:
    """The whole run, from second 0. Raises BadInput where no node has as many GPUs as a trial needs."""
    return rescheduled(suite, estimates, nodes, done, (), 0.0)


def rescheduled(
    suite: Suite,
    estimates: RuntimeEstimates,
    nodes: Sequence[Node],
    done: Done,
    running: Sequence[Placement],
    now: float,
) -> Schedule:
    """Plan what is left at ``now``, in seconds of the run, after a node died, came late or joined.

    nodes: those that live. running: what goes on, on any of them, with the end that is expected by now; its shards stay
    as they are, and more of its checkpoint needs no load on its node. Everything else that is not done is cut anew.
    placements of the result are new ones only; makespan and scorings look at all. Raises BadInput as ``schedule``.
    """
    slots = _slots(suite, nodes, running, now)
    trials = list(_trials(suite, estimates, done, running, now))
    last_end = max((placement.end for placement in running), default=now)
    bound = max([now, last_end, *_bounds(trials, slots, estimates, suite.scorers)])
    best = min(
        _plans(trials, slots, estimates, suite.scorers, now, bound, len(suite.checkpoints) > 1),
        key=lambda plan: plan.makespan,
    )
    makespan = max(best.makespan, last_end, now)
    return Schedule(best.placements, best.scorings, makespan, bound)


def in_line(suite: Suite, estimates: RuntimeEstimates, nodes: Sequence[Node]) -> float:
    """Seconds of what is usual without this: a job a trial, in the order of the suite, which loads, infers and scores
    while it holds its GPUs. Each starts on the slot that is free first.
    """
    slots = [0.0] * len(_slots(suite, nodes, (), 0.0))
    for _ in suite.checkpoints:
        for task in suite.tasks:
            seconds = (
                estimates.load
                + estimates.start
                + task.samples * estimates.samples[task.name]
                + estimates.scores[task.name]
            )
            heapq.heapreplace(slots, slots[0] + seconds)
    return max(slots)


def gpu_seconds(placements: Iterable[Placement], suite: Suite) -> float:
    """Sum up for how long the placements hold GPUs."""
    return suite.gpus * sum(placement.end - placement.start for placement in placements)


@dataclass(frozen=True, slots=True)
class _Slot:
    """free: when its next batch can start. loaded: checkpoints whose weights are in the memory of its node by then."""

    node: str
    number: int
    free: float
    loaded: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Trial:
    """waiting: its samples that neither are done nor run. seconds: of one of them. ready: when the others are done."""

    checkpoint: str
    task: Task
    waiting: tuple[Range, ...]
    seconds: float
    score: float
    ready: float

    @property
    def samples(self) -> int:
        return sum(map(_length, self.waiting))

    @property
    def work(self) -> float:
        return self.samples * self.seconds


def _length(samples: Range) -> int:
    first, last = samples
    return last - first


def _slots(suite: Suite, nodes: Sequence[Node], running: Sequence[Placement], now: float) -> list[_Slot]:
    free, loaded = dict[tuple[str, int], float](), dict[str, set[str]]()
    for placement in running:
        slot = placement.node, placement.slot
        free[slot] = max(free.get(slot, now), placement.end)
        loaded.setdefault(placement.node, set()).update(shard.checkpoint for shard in placement.batch.shards)
    slots = []
    for node in nodes:
        in_memory = frozenset(loaded.get(node.name, ()))
        for number in range(node.gpus // suite.gpus):
            slots.append(_Slot(node.name, number, free.get((node.name, number), now), in_memory))
    if not slots:
        raise BadInput(f"no node has the {suite.gpus} GPUs that a trial needs")
    return slots


def _trials(
    suite: Suite, estimates: RuntimeEstimates, done: Done, running: Sequence[Placement], now: float
) -> Iterator[_Trial]:
    """List the trials that are not scored yet."""
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
                seconds, score = estimates.samples[task.name], estimates.scores[task.name]
                yield _Trial(checkpoint, task, waiting, seconds, score, ends.get(key, now))


def _gaps(shards: Iterable[TrialShard], samples: int) -> Iterator[Range]:
    """The ranges of 0 to ``samples`` that no shard covers."""
    at = 0
    for shard in sorted(shards, key=lambda shard: shard.first):
        if shard.first > at:
            yield at, min(shard.first, samples)
        at = max(at, shard.last)
    if at < samples:
        yield at, samples


def _bounds(
    trials: Sequence[_Trial], slots: Sequence[_Slot], estimates: RuntimeEstimates, scorers: int
) -> Iterator[float]:
    """Times before which no schedule of this cost model can end; their largest is the lower bound.

    A slot that works for a set of trials computes their samples from its lead on: when it is free, a load later unless
    its node holds the weights of one of their checkpoints, and the start of one shard later. Why no schedule beats

    1. a trial's own samples: some slot has at least its samples over the number of slots, rounded up (all of them where
       they cannot be cut); it begins after the shortest lead, and the metric follows.
    2. all trials whose metric takes at least s: all are inferred by T - s. What the slots can give until then lies
       between their leads and T - s. It has to hold the seconds of all samples; a start for each trial beyond the
       number of slots, as n trials are at least n shards and a lead has one start; and a load for each checkpoint that
       no node holds beyond the number of slots, as a slot with k of them loads at least k - 1 times after its lead.
    3. the metrics: ``scorers`` CPUs share them, from when the first trial can be inferred.

    None asks in which order the samples run or how they are cut.
    """
    earliest = []
    held = frozenset[str]().union(*(slot.loaded for slot in slots))
    work, number, checkpoints = 0.0, 0, set[str]()
    for trial in sorted(trials, key=lambda trial: -trial.score):
        inferred = trial.ready
        if trial.waiting:
            share = math.ceil(trial.samples / len(slots)) if trial.task.splits else trial.samples
            lead = min(_leads(slots, {trial.checkpoint}, estimates))
            inferred = max(inferred, lead + share * trial.seconds)
            work += trial.work
            number += 1
            checkpoints.add(trial.checkpoint)
            missing = len(checkpoints - held)
            further = max(0, number - len(slots)) * estimates.start
            further += max(0, missing - len(slots)) * estimates.load
            yield _filled(_leads(slots, checkpoints, estimates), work + further) + trial.score
        earliest.append(inferred)
        yield inferred + trial.score
    if scorers and earliest:
        yield min(earliest) + sum(trial.score for trial in trials) / scorers


def _leads(slots: Iterable[_Slot], checkpoints: set[str], estimates: RuntimeEstimates) -> list[float]:
    leads = []
    for slot in slots:
        lead = slot.free + estimates.start
        if not slot.loaded & checkpoints:
            lead += estimates.load
        leads.append(lead)
    return leads


def _filled(starts: Iterable[float], work: float) -> float:
    """Find when slots that start at these times have done the work, if they all end together."""
    total = level = 0.0
    for number, start in enumerate(sorted(starts), 1):
        if number > 1 and start >= level:
            break
        total += start
        level = (work + total) / number
    return level


@dataclass(slots=True)
class _Lane:
    """A slot while a plan is made. end: of what it has. last: the checkpoint of its last batch, "" before the first."""

    slot: _Slot
    estimates: RuntimeEstimates
    end: float
    last: str = ""
    batches: list[tuple[float, list[TrialShard]]] = field(default_factory=list)
    """With when each starts."""

    def first_sample(self, trial: _Trial) -> float:
        """Find when the trial's first sample could run here."""
        at = self.end + self.estimates.start
        if trial.checkpoint in (self.last, *self.slot.loaded):
            return at
        return at + self.estimates.load

    def take(self, trial: _Trial, ranges: Iterable[Range], longest: float) -> None:
        if self.last != trial.checkpoint:
            self.batches.append((self.end, []))
            self.end = self.first_sample(trial) - self.estimates.start
        self.last = trial.checkpoint
        for first, last in ranges:
            for shard in _cut(trial, first, last, longest):
                self.batches[-1][1].append(shard)
                self.end += self.estimates.start + shard.samples * trial.seconds

    def placements(self) -> Iterator[Placement]:
        ends = [*(start for start, _ in self.batches[1:]), self.end]
        for (start, shards), end in zip(self.batches, ends, strict=False):
            yield Placement(Batch(tuple(shards), end - start), self.slot.node, self.slot.number, start, end)


@dataclass(frozen=True, slots=True)
class _Plan:
    placements: tuple[Placement, ...]
    scorings: tuple[Scoring, ...]
    makespan: float


def _plans(
    trials: Sequence[_Trial],
    slots: Sequence[_Slot],
    estimates: RuntimeEstimates,
    scorers: int,
    now: float,
    bound: float,
    several: bool,
) -> Iterator[_Plan]:
    orders = [False]
    if several:
        orders.append(True)
    for stretch in _STRETCHES:
        end = now + (bound - now) * (1 + stretch)
        for together in orders:
            yield (plan := _plan(trials, slots, estimates, scorers, end, together))
            if plan.makespan <= end + _EPSILON:
                return


def _plan(
    trials: Sequence[_Trial],
    slots: Sequence[_Slot],
    estimates: RuntimeEstimates,
    scorers: int,
    end: float,
    together: bool,
) -> _Plan:
    """A schedule that tries to end at ``end``. together: one checkpoint after the other, so that fewer are loaded."""
    lanes = [_Lane(slot, estimates, slot.free) for slot in slots]
    begin = min(slot.free for slot in slots)
    alike = max((end - begin) * _ALIKE, _EPSILON)
    deadlines = [end - math.ceil(before / alike) * alike for before in _scored_before_end(trials, scorers)]

    def urgency(number: int) -> tuple[str, float, str, float]:
        trial = trials[number]
        first = trial.checkpoint if together else ""
        return first, deadlines[number], trial.checkpoint, -trial.work

    order = sorted((number for number, trial in enumerate(trials) if trial.waiting), key=urgency)
    ready = [trial.ready for trial in trials]
    for number in order:
        ready[number] = max(ready[number], _place(trials[number], lanes, estimates, deadlines[number]))
    placements = list(chain.from_iterable(map(_Lane.placements, lanes)))
    placements.sort(key=lambda placement: (placement.start, placement.node, placement.slot))
    scorings = _scorings(list(zip(ready, trials, strict=True)), scorers)
    ends = [placement.end for placement in placements]
    ends += [scoring.end for scoring in scorings]
    return _Plan(tuple(placements), scorings, max(ends, default=begin))


def _scored_before_end(trials: Sequence[_Trial], scorers: int) -> list[float]:
    """Find how long before the end the scoring of each trial has to start, if the short ones come last."""
    if not scorers:
        return [trial.score for trial in trials]
    free, before = [0.0] * scorers, [0.0] * len(trials)
    for number in sorted(range(len(trials)), key=lambda number: trials[number].score):
        before[number] = free[0] + trials[number].score
        heapq.heapreplace(free, before[number])
    return before


def _place(trial: _Trial, lanes: Sequence[_Lane], estimates: RuntimeEstimates, deadline: float) -> float:
    """Give the trial's samples to lanes, so that they end by the deadline, or else as early as they can.

    Returns when the last of them ends.
    """
    begins = [lane.first_sample(trial) for lane in lanes]
    longest = max(_PIECE_STARTS * estimates.start, _PIECE_SECONDS)
    pace = trial.seconds
    if trial.work > longest:
        pace *= 1 + estimates.start / longest  # it is cut into shards, and each of them has to start
    waiting, end, left = list(trial.waiting), 0.0, trial.samples
    rooms: list[int] = []
    if trial.task.splits:
        rooms = _rooms(begins, deadline, pace)
        if sum(rooms) < left:
            rooms = _rooms(begins, max(deadline, _filled(begins, left * pace)) + pace, pace)
    for lane, share in _shares(rooms, left):
        lanes[lane].take(trial, _taken(waiting, share), longest)
        left, end = left - share, max(end, lanes[lane].end)
    if left:  # it cannot be cut, or rounding has taken a sample's room
        first = min(lanes, key=lambda lane: lane.first_sample(trial))
        first.take(trial, _taken(waiting, left), longest)
        end = max(end, first.end)
    return end


def _shares(rooms_of_lanes: Sequence[int], samples: int) -> Iterator[tuple[int, int]]:
    """(lane, samples that it takes), as long as there is room.

    Where one lane has room for all, the widest takes them. Else the widest are filled one by one, and the last share
    goes to the narrowest lane that has room for it, so that wide ones stay free for other trials.
    """
    rooms = []
    for lane, room in enumerate(rooms_of_lanes):
        if room:
            rooms.append((room, -lane))
    rooms.sort(reverse=True)
    is_cut = max(rooms_of_lanes, default=0) < samples
    while samples and rooms:
        place = 0
        if is_cut:
            place = max(0, sum(room >= samples for room, _ in rooms) - 1)
        room, lane = rooms.pop(place)
        share = min(room, samples)
        samples -= share
        yield -lane, share


def _rooms(begins: Sequence[float], deadline: float, pace: float) -> list[int]:
    """Samples that end by the deadline, of each lane."""
    return [max(0, math.floor((deadline - begin) / pace + _EPSILON)) for begin in begins]


def _taken(waiting: list[Range], count: int) -> Iterator[Range]:
    """Take the first ``count`` samples out of the ranges."""
    while count:
        first, last = waiting.pop(0)
        cut = min(last, first + count)
        if cut < last:
            waiting.insert(0, (cut, last))
        count -= cut - first
        yield first, cut


def _cut(trial: _Trial, first: int, last: int, longest: float) -> Iterator[TrialShard]:
    """Pieces of about the same length, of at most ``longest`` seconds where the trial can be cut."""
    samples, parts = last - first, 1
    if trial.task.splits:
        parts = min(samples, math.ceil(samples * trial.seconds / longest))
    for part in range(parts):
        at, to = first + samples * part // parts, first + samples * (part + 1) // parts
        yield TrialShard(trial.checkpoint, trial.task.name, at, to)


def _scorings(ready: Sequence[tuple[float, _Trial]], scorers: int) -> tuple[Scoring, ...]:
    """Schedule the scoring of each trial from when it is ready; the longest first where scorers are fewer."""
    coming = sorted(ready, key=lambda pair: (pair[0], -pair[1].score))
    free = [0.0] * (scorers or max(1, len(coming)))
    waiting, scorings, at, now = list[tuple[float, int]](), list[Scoring](), 0, 0.0
    while at < len(coming) or waiting:
        now = max(now, free[0])
        if not waiting:
            now = max(now, coming[at][0])
        while at < len(coming) and coming[at][0] <= now:
            heapq.heappush(waiting, (-coming[at][1].score, at))
            at += 1
        trial = coming[heapq.heappop(waiting)[1]][1]
        heapq.heapreplace(free, now + trial.score)
        scorings.append(Scoring(trial.checkpoint, trial.task.name, now, now + trial.score))
    return tuple(scorings)
