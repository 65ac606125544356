"""Plans what runs where and when: a pure function of suite, estimates, nodes, and what is done.

The cost model: a slot is as many GPUs of a node as one trial needs. It runs batches one after the other. A batch is of
one checkpoint and pays the load once; each of its shards pays the start, and its samples their task's seconds. A trial
is scored on a CPU when the last of its shards has ended.

For an end T, a trial has to be inferred by T minus its scoring. Trials are placed in the order of these deadlines, and
longest first where they are alike. Each goes to the slot that can begin it first, and is cut where its deadline is, the
rest going to the next slot. T is tried from the lower bound upwards until a plan keeps it. Of the slots as few are used
as end about as early as all would.
"""

import bisect
import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, pairwise

from diagnoser.evaluations.lower_bound import lower_bound
from diagnoser.evaluations.remaining_work import Range, Slot, Trial, remaining_slots, remaining_trials
from diagnoser.evaluations.runtime_estimates import RuntimeEstimates
from diagnoser.model.evaluations import Batch, Done, Goal, Node, Placement, Schedule, Scoring, Suite, TrialShard

_STRETCHES = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.12, 0.25)
"""How much later than the lower bound the end is tried to be."""
_LATER = 0.02
"""Fewer slots may end this share later than the lower bound of all: GPUs cost more than seconds."""
_NEARLY_ALL = 0.9
"""Saving fewer slots than the rest is not worth a plan."""
_ALIKE = 0.005
"""Deadlines that differ by less than this share of the whole count as the same, so that long trials come first."""
_PIECE_STARTS, _PIECE_SECONDS = 20.0, 600.0
"""A shard lasts at most this many starts or seconds, whichever is more: it is what the death of its node costs."""
_WORTH_STARTS = 4.0
"""A trial that is too late is cut into pieces of this many starts at least."""
_EPSILON = 1e-9

_NOTHING = Done()


def schedule(suite: Suite, estimates: RuntimeEstimates, nodes: Sequence[Node], fast: bool = False) -> Schedule:
    """Plan the whole run, from second 0.

    fast: use all nodes, even where fewer end as early.
    Raises BadInput where no node has as many GPUs as a trial needs.
    """
    goal = None if fast else Goal()
    return rescheduled(suite, estimates, nodes, _NOTHING, (), 0.0, goal)


def rescheduled(
    suite: Suite,
    estimates: RuntimeEstimates,
    nodes: Sequence[Node],
    done: Done,
    running: Sequence[Placement],
    now: float,
    goal: Goal | None = None,
) -> Schedule:
    """Plan what is left at ``now``, in seconds of the run, after a node died, came late or joined.

    nodes: those that live.
    running: what goes on, on any of them, with the end that is expected by now; its shards stay as they are, and more
        of its checkpoint needs no load on its node. Everything else that is not done is cut anew.
    goal: as few slots are used as keep it, or end about as early as all do. None: use all.
    placements of the result are new ones only; makespan and scorings look at all. Raises BadInput as ``schedule``.
    """
    slots = remaining_slots(suite, nodes, running, now)
    last_end = max((placement.end for placement in running), default=now)
    trials = tuple(remaining_trials(suite, estimates, done, running, now))
    planner = _Planner(suite, estimates, trials, now).with_better_order(slots)
    bound = max(last_end, planner.bound(slots))
    plan = planner.earliest(slots)
    if goal is not None:
        accepted = max(goal.until, plan.makespan, now + (bound - now) * (1 + _LATER))
        plan = planner.smallest(slots, plan, accepted, goal.slots)
    scorings = tuple(Scoring(trial.checkpoint, trial.task.name, at, at + trial.score) for at, trial in plan.scorings)
    return Schedule(plan.lanes.placements(), scorings, max(plan.makespan, last_end), bound)


def in_line(suite: Suite, estimates: RuntimeEstimates, nodes: Sequence[Node]) -> float:
    """Seconds of what is usual without this: a job a trial, which loads, infers and scores while it holds its GPUs.

    The longest starts first, on the slot that is free first.
    """
    slots = [0.0] * len(remaining_slots(suite, nodes, (), 0.0))
    jobs = []
    for task in suite.tasks:
        inference = task.samples * estimates.samples[task.name]
        jobs.append(estimates.load + estimates.start + inference + estimates.scores[task.name])
    for seconds in sorted(jobs * len(suite.checkpoints), reverse=True):
        heapq.heapreplace(slots, slots[0] + seconds)
    return max(slots)


def gpu_seconds(placements: Iterable[Placement], suite: Suite) -> float:
    return suite.gpus * sum(placement.end - placement.start for placement in placements)


@dataclass(frozen=True, slots=True)
class _Plan:
    """scorings: with when each starts."""

    lanes: "_Lanes"
    scorings: Sequence[tuple[float, Trial]]
    makespan: float


@dataclass(frozen=True, slots=True)
class _Planner:
    """now: before which nothing starts, in seconds of the run. together: place a checkpoint at a time, so that few are
    loaded; or else by urgency alone."""

    suite: Suite
    estimates: RuntimeEstimates
    trials: tuple[Trial, ...]
    now: float
    together: bool = True

    def with_better_order(self, slots: Sequence[Slot]) -> "_Planner":
        """Choose the order in which the plan for the earliest end comes closer to it."""
        if len(self.suite.checkpoints) == 1:
            return self
        bound, by_urgency = self.bound(slots), replace(self, together=False)
        if self._plan(slots, bound).makespan <= by_urgency._plan(slots, bound).makespan:
            return self
        return by_urgency

    def bound(self, slots: Sequence[Slot]) -> float:
        return max(self.now, lower_bound(self.trials, slots, self.estimates, self.suite.scorers))

    def smallest(self, slots: Sequence[Slot], plan: _Plan, accepted: float, least: int) -> _Plan:
        """Find the plan with the fewest of the slots that ends by ``accepted``, as ``plan`` with all of them does.

        least: slots that are used in any case.
        """
        number = max(self._fewest(slots, accepted), least)
        while number < _NEARLY_ALL * len(slots):
            smaller = self._plan(slots[:number], accepted)
            if smaller.makespan <= accepted + _EPSILON:
                return smaller
            number += math.ceil(number / 16)
        return plan

    def _fewest(self, slots: Sequence[Slot], accepted: float) -> int:
        """Find how many of the slots could end by ``accepted`` by the lower bound, which falls with their number."""
        too_few, enough = 0, len(slots)
        while enough - too_few > 1:
            number = (too_few + enough) // 2
            if self.bound(slots[:number]) <= accepted:
                enough = number
            else:
                too_few = number
        return enough

    def earliest(self, slots: Sequence[Slot]) -> _Plan:
        """Plan with all of these slots, to end as early as it can: bisect to the earliest end that a plan keeps."""
        bound = self.bound(slots)
        best, too_early, kept = None, -1, len(_STRETCHES)
        while kept - too_early > 1:
            tried = (too_early + kept) // 2
            end = self.now + (bound - self.now) * (1 + _STRETCHES[tried])
            plan = self._plan(slots, end)
            if best is None or plan.makespan < best.makespan:
                best = plan
            if plan.makespan <= end + _EPSILON:
                kept = tried
            else:
                too_early = tried
        assert best is not None
        return best

    def _plan(self, slots: Sequence[Slot], end: float) -> _Plan:
        lanes = _Lanes(slots, self.estimates)
        ready = [trial.ready for trial in self.trials]
        for checkpoint, deadline, numbers in self._groups(end):
            lanes.turn_to(checkpoint)
            for number in numbers:
                ready[number] = max(ready[number], lanes.place(self.trials[number], deadline))
        scorings = _scorings(list(zip(ready, self.trials, strict=True)), self.suite.scorers)
        last_scored = max((at + trial.score for at, trial in scorings), default=self.now)
        return _Plan(lanes, scorings, max(lanes.last_end(self.now), last_scored))

    def _groups(self, end: float) -> Iterator[tuple[str, float, Iterable[int]]]:
        """Yield trials that are alike in checkpoint and deadline, the urgent ones first, in the order to place them.

        What cannot be cut comes first, as the rest fits around it; then the longest.
        """
        alike = max((end - self.now) * _ALIKE, _EPSILON)
        deadlines = []
        for before in _scored_before_end(self.trials, self.suite.scorers):
            deadlines.append(end - math.ceil(before / alike) * alike)

        def group(number: int) -> tuple[str, float, str]:
            checkpoint = self.trials[number].checkpoint
            return checkpoint if self.together else "", deadlines[number], checkpoint

        def urgency(number: int) -> tuple[tuple[str, float, str], bool, float]:
            trial = self.trials[number]
            return group(number), trial.task.splits, -trial.work

        waiting = [number for number, trial in enumerate(self.trials) if trial.waiting]
        for (_, deadline, checkpoint), numbers in groupby(sorted(waiting, key=urgency), group):
            yield checkpoint, deadline, numbers


_Piece = tuple[Trial, Range]


@dataclass(slots=True)
class _Lane:
    """A slot while a plan is made.

    end: of what it has, in seconds of the run.
    last: the checkpoint of its last batch, "" before the first.
    batches: pieces, with when each starts; they are made shards of once the plan is chosen.
    """

    slot: Slot
    end: float
    last: str = ""
    batches: list[tuple[float, list[_Piece]]] = field(default_factory=list)

    def placements(self) -> Iterator[Placement]:
        ends = [*(start for start, _ in self.batches[1:]), self.end]
        for (start, pieces), end in zip(self.batches, ends, strict=False):
            shards = tuple(TrialShard(trial.checkpoint, trial.task.name, *samples) for trial, samples in pieces)
            yield Placement(Batch(shards, end - start), self.slot.node, self.slot.number, start, end)


class _Lanes:
    """The slots while a plan is made, in the order in which they could begin with more of one checkpoint."""

    def __init__(self, slots: Sequence[Slot], estimates: RuntimeEstimates) -> None:
        self._lanes = [_Lane(slot, slot.free) for slot in slots]
        self._estimates = estimates
        self._checkpoint = ""
        self._with_weights: dict[str, set[int]] = {}
        """Lanes that need no load, by checkpoint."""
        for number, slot in enumerate(slots):
            for checkpoint in slot.loaded:
                self._with_weights.setdefault(checkpoint, set()).add(number)
        self._loaded = set[int]()
        """Those of the checkpoint that is placed now."""
        self._queue = sorted(map(self._entry, range(len(slots))))

    def placements(self) -> tuple[Placement, ...]:
        placements = chain.from_iterable(lane.placements() for lane in self._lanes)
        return tuple(sorted(placements, key=lambda placement: (placement.start, placement.node, placement.slot)))

    def last_end(self, now: float) -> float:
        """Find when the last of the placements ends; now where there is none."""
        return max((lane.end for lane in self._lanes if lane.batches), default=now)

    def turn_to(self, checkpoint: str) -> None:
        """Order the lanes by when they could begin with this checkpoint: those move that hold it or the one before."""
        if checkpoint == self._checkpoint:
            return
        loaded = self._with_weights.setdefault(checkpoint, set())
        moved = self._loaded | loaded
        for number in moved:
            del self._queue[bisect.bisect_left(self._queue, self._entry(number))]
        self._checkpoint, self._loaded = checkpoint, loaded
        for number in moved:
            bisect.insort(self._queue, self._entry(number))

    def place(self, trial: Trial, deadline: float) -> float:
        """Give the trial's samples to lanes so that they end by the deadline, or else as early as they can.

        Returns when the last sample ends.
        """
        start = self._estimates.start
        longest = max(_PIECE_STARTS * start, _PIECE_SECONDS)
        pace = max(trial.seconds, _EPSILON)
        if trial.work > longest:
            pace *= 1 + start / longest  # it is cut into shards, and each of them has to start
        waiting, left, end = list(trial.waiting), trial.samples, 0.0
        while left:
            place, share = 0, left
            if trial.task.splits:
                room = math.floor((deadline - self._queue[0][0]) / pace + _EPSILON)
                if room < 1:  # too late everywhere: all lanes share what is left, in pieces that are worth a start
                    deadline = self._queue[0][0] + max(left * pace / len(self._lanes), _WORTH_STARTS * start) + pace
                    continue
                share = min(left, room)
            if share == left < trial.samples:
                # The rest of a trial that is cut goes where it fits best, so that wide gaps stay free for other trials.
                last_begin = deadline - left * pace, len(self._lanes)
                place = max(0, bisect.bisect_right(self._queue, last_begin) - 1)
            _, number = self._queue.pop(place)
            end = max(end, self._take(number, trial, _taken(waiting, share), longest))
            bisect.insort(self._queue, self._entry(number))
            left -= share
        return end

    def _take(self, number: int, trial: Trial, ranges: Iterable[Range], longest: float) -> float:
        """Put samples of the trial behind what the lane has. Returns when they end."""
        lane = self._lanes[number]
        if lane.last != trial.checkpoint:
            lane.batches.append((lane.end, []))
            lane.end = self._entry(number)[0] - self._estimates.start
            if lane.last not in lane.slot.loaded:
                self._with_weights.get(lane.last, set()).discard(number)
            self._with_weights[trial.checkpoint].add(number)
            lane.last = trial.checkpoint
        for first, last in ranges:
            pieces = _cut(trial, first, last, longest)
            lane.batches[-1][1].extend((trial, piece) for piece in pieces)
            lane.end += len(pieces) * self._estimates.start + (last - first) * trial.seconds
        return lane.end

    def _entry(self, number: int) -> tuple[float, int]:
        """Find when the first sample of a shard of the checkpoint could run there."""
        begin = self._lanes[number].end + self._estimates.start
        if number in self._loaded:
            return begin, number
        return begin + self._estimates.load, number


def _scored_before_end(trials: Sequence[Trial], scorers: int) -> list[float]:
    """Find how long before the end the scoring of each trial has to start, if the short ones come last."""
    if not scorers:
        return [trial.score for trial in trials]
    free, before = [0.0] * scorers, [0.0] * len(trials)
    for number in sorted(range(len(trials)), key=lambda number: trials[number].score):
        before[number] = free[0] + trials[number].score
        heapq.heapreplace(free, before[number])
    return before


def _taken(waiting: list[Range], count: int) -> Iterator[Range]:
    while count:
        first, last = waiting.pop(0)
        cut = min(last, first + count)
        if cut < last:
            waiting.insert(0, (cut, last))
        count -= cut - first
        yield first, cut


def _cut(trial: Trial, first: int, last: int, longest: float) -> list[Range]:
    """Cut into pieces of about the same length, of at most ``longest`` seconds where the trial can be cut."""
    samples, parts = last - first, 1
    if trial.task.splits:
        parts = min(samples, math.ceil(samples * trial.seconds / longest))
    bounds = [first + samples * part // parts for part in range(parts + 1)]
    return list(pairwise(bounds))


def _scorings(ready: Sequence[tuple[float, Trial]], scorers: int) -> list[tuple[float, Trial]]:
    """Start the scoring of each trial once it is ready; the longest first where scorers are fewer."""
    coming = sorted(ready, key=lambda pair: (pair[0], -pair[1].score))
    free = [0.0] * (scorers or max(1, len(coming)))
    waiting, scorings, at, now = list[tuple[float, int]](), list[tuple[float, Trial]](), 0, 0.0
    while at < len(coming) or waiting:
        now = max(now, free[0])
        if not waiting:
            now = max(now, coming[at][0])
        while at < len(coming) and coming[at][0] <= now:
            heapq.heappush(waiting, (-coming[at][1].score, at))
            at += 1
        trial = coming[heapq.heappop(waiting)[1]][1]
        heapq.heapreplace(free, now + trial.score)
        scorings.append((now, trial))
    return scorings
