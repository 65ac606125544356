"""Plans what runs where and when: a pure function of suite, estimates, nodes, and what is done.

The cost model: a slot is as many GPUs of a node as one trial needs. It runs batches one after the other. A batch is of
one checkpoint and pays the load once; each of its shards pays the start, and its samples their task's seconds. A trial
is scored on a CPU when the last of its shards has ended.

For an end T, a checkpoint gets as many slots as its samples fill until T, so that few slots load it. Its trials are
placed in the order of their deadlines, which are T minus their scoring; longest first where they are alike. A trial
goes to the slot that can begin it first, and is cut where its deadline is, the rest going where it just fits. T is
bisected to the earliest that a plan keeps. Of the slots as few are used as end about as early as all would.
"""

import bisect
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from diagnoser.evaluations.lower_bound import lower_bound
from diagnoser.evaluations.remaining_work import Range, Slot, Trial, remaining_slots, remaining_trials
from diagnoser.evaluations.runtime_estimates import RuntimeEstimates
from diagnoser.model.evaluations import Batch, Done, Goal, Node, Placement, Schedule, Scoring, Suite, TrialShard

_ABOUT, _TRIES = 0.01, 5
"""Ends that differ by this share count as the same; so many are tried."""
_LATER = 0.02
"""Fewer slots may end this share later than the lower bound of all: GPUs cost more than seconds."""
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

    Tasks that load a model of the suite come behind those of the checkpoints, as what they are after is done by then.
    """
    plan = _rescheduled(suite.part(""), estimates, nodes, done, running, now, goal)
    for model in suite.models:
        before = (*running, *plan.placements)
        part = _rescheduled(suite.part(model.name), estimates.models[model.name], nodes, done, before, now, goal)
        plan = Schedule(
            plan.placements + part.placements,
            plan.scorings + part.scorings,
            max(plan.makespan, part.makespan),
            plan.lower_bound,
        )
    return plan


def _rescheduled(
    suite: Suite,
    estimates: RuntimeEstimates,
    nodes: Sequence[Node],
    done: Done,
    running: Sequence[Placement],
    now: float,
    goal: Goal | None,
) -> Schedule:
    slots = remaining_slots(suite, nodes, running, now)
    last_end = max((placement.end for placement in running), default=now)
    trials = tuple(remaining_trials(suite, estimates, done, running, now))
    planner = _planner(suite, estimates, trials, now)
    bound = max(last_end, planner.bound(slots))
    plan = planner.earliest(slots)
    if goal is not None:
        accepted = max(goal.until, plan.makespan, now + (bound - now) * (1 + _LATER))
        plan = planner.smallest(slots, plan, accepted, goal.slots)
    scorings = tuple(Scoring(trial.checkpoint, trial.task.name, at, at + trial.score) for at, trial in plan.scorings)
    return Schedule(plan.placements(), scorings, max(plan.makespan, last_end), bound)


def in_line(suite: Suite, estimates: RuntimeEstimates, nodes: Sequence[Node]) -> float:
    """Seconds of what is usual without this: a job a trial, which loads, infers and scores while it holds its GPUs.

    The longest starts first, on the slot that is free first.
    """
    slots = [0.0] * len(remaining_slots(suite, nodes, (), 0.0))
    jobs = []
    for task in suite.tasks:
        inference, model = task.samples * estimates.samples[task.name], estimates.of_task(task.name)
        jobs.append(model.load + model.start + inference + estimates.scores[task.name])
    for seconds in sorted(jobs * len(suite.checkpoints), reverse=True):
        heapq.heapreplace(slots, slots[0] + seconds)
    return max(slots)


def gpu_seconds(placements: Iterable[Placement], suite: Suite) -> float:
    return suite.gpus * sum(placement.end - placement.start for placement in placements)


@dataclass(frozen=True, slots=True)
class _Plan:
    """scorings: with when each starts."""

    lanes: Sequence["_Lane"]
    scorings: Sequence[tuple[float, Trial]]
    makespan: float

    def placements(self) -> tuple[Placement, ...]:
        placements = chain.from_iterable(lane.placements() for lane in self.lanes)
        return tuple(sorted(placements, key=lambda placement: (placement.start, placement.node, placement.slot)))


@dataclass(frozen=True, slots=True)
class _Urgent:
    """A trial, how long before the end it has to be inferred, and its place among all."""

    before_end: float
    trial: Trial
    number: int

    @property
    def rank(self) -> tuple[float, float]:
        """What has to end early comes first, then the longest."""
        return -self.before_end, -self.trial.work


@dataclass(frozen=True, slots=True)
class _Planner:
    """now: before which nothing starts, in seconds of the run. by_checkpoint: what waits, in the order of its ranks."""

    suite: Suite
    estimates: RuntimeEstimates
    trials: tuple[Trial, ...]
    now: float
    by_checkpoint: Mapping[str, Sequence[_Urgent]]

    @property
    def last(self) -> str:
        """The checkpoint that is placed last."""
        return list(self.by_checkpoint)[-1]

    def bound(self, slots: Sequence[Slot]) -> float:
        return max(self.now, lower_bound(self.trials, slots, self.estimates, self.suite.scorers))

    def smallest(self, slots: Sequence[Slot], plan: _Plan, accepted: float, least: int) -> _Plan:
        """Find the plan with the fewest of the slots that ends by ``accepted``, as ``plan`` with all of them does.

        least: slots that are used in any case.
        """
        number = max(self._fewest(slots, accepted), least)
        while number < len(slots):
            smaller = self._plan(slots[:number], accepted)
            if smaller.makespan <= accepted + _EPSILON:
                return smaller
            number += math.ceil(number / 16)
        return plan

    def _fewest(self, slots: Sequence[Slot], accepted: float) -> int:
        """Find how many of the slots could end by ``accepted`` by the lower bound, which falls with their number."""
        numbers = range(1, len(slots))
        return 1 + bisect.bisect_left(numbers, True, key=lambda number: self.bound(slots[:number]) <= accepted)

    def earliest(self, slots: Sequence[Slot]) -> _Plan:
        """Plan with all of these slots, to end as early as it can: bisect to the earliest end that a plan about keeps.

        Between the lower bound and the end of the plan for it, as no plan keeps the bound itself.
        """
        too_early = self.bound(slots)
        best = self._plan(slots, too_early)
        late_enough = best.makespan
        about = (too_early - self.now) * _ABOUT
        for _ in range(_TRIES):
            if late_enough - too_early <= about:
                break
            end = (too_early + late_enough) / 2
            plan = self._plan(slots, end)
            if plan.makespan <= end + about:
                late_enough = end
            else:
                too_early = end
            if plan.makespan < best.makespan:
                best = plan
        return best

    def _plan(self, slots: Sequence[Slot], end: float) -> _Plan:
        """Place checkpoint after checkpoint, each on as few slots as hold it until the end, so that few load it."""
        lanes = [_Lane(number, slot, slot.free) for number, slot in enumerate(slots)]
        ready = [trial.ready for trial in self.trials]
        with_room = list(lanes)
        for checkpoint, waiting in self.by_checkpoint.items():
            with_room.sort(key=lambda lane: checkpoint not in lane.slot.loaded)
            chosen = with_room[: self._slots_for(checkpoint, with_room, end)]
            placing = _Placing(checkpoint, self.estimates, lanes, chosen)
            for urgent in waiting:
                inferred = placing.place(urgent.trial, end - urgent.before_end)
                ready[urgent.number] = max(ready[urgent.number], inferred)
            last_load = end - self.estimates.load - self.estimates.start
            with_room = [lane for lane in with_room if lane.end < last_load]
        scorings = _scorings(list(zip(ready, self.trials, strict=True)), self.suite.scorers)
        ends = [lane.end for lane in lanes if lane.batches]
        ends += [at + trial.score for at, trial in scorings]
        return _Plan(lanes, scorings, max(ends, default=self.now))

    def _slots_for(self, checkpoint: str, with_room: Sequence["_Lane"], end: float) -> int:
        """Count how many of these lanes hold what waits of a checkpoint until the end. The last one gets all."""
        if checkpoint == self.last:
            return len(with_room)
        needed = sum(urgent.trial.work + self.estimates.start for urgent in self.by_checkpoint[checkpoint])
        for number, lane in enumerate(with_room):
            if needed <= 0:
                return number
            needed -= end - lane.begin(checkpoint, self.estimates)
        return len(with_room)


_Piece = tuple[Trial, Range]


@dataclass(slots=True)
class _Lane:
    """A slot while a plan is made.

    end: of what it has, in seconds of the run.
    last: the checkpoint of its last batch, "" before the first.
    batches: pieces, with when each starts; they are made shards of once the plan is chosen.
    """

    number: int
    slot: Slot
    end: float
    last: str = ""
    batches: list[tuple[float, list[_Piece]]] = field(default_factory=list)

    def placements(self) -> Iterator[Placement]:
        ends = [*(start for start, _ in self.batches[1:]), self.end]
        for (start, pieces), end in zip(self.batches, ends, strict=False):
            shards = tuple(TrialShard(trial.checkpoint, trial.task.name, *samples) for trial, samples in pieces)
            yield Placement(Batch(shards, end - start), self.slot.node, self.slot.number, start, end)

    def begin(self, checkpoint: str, estimates: RuntimeEstimates) -> float:
        """Find when the first sample of a shard of the checkpoint could run here."""
        begin = self.end + estimates.start
        if checkpoint == self.last or checkpoint in self.slot.loaded:
            return begin
        return begin + estimates.load

    def add(self, trial: Trial, ranges: Iterable[Range], estimates: RuntimeEstimates) -> None:
        """Put samples of the trial behind what the lane has."""
        if self.last != trial.loads:
            self.batches.append((self.end, []))
            self.end = self.begin(trial.loads, estimates) - estimates.start
            self.last = trial.loads
        for first, last in ranges:
            pieces = _cut(trial, first, last, _longest(estimates))
            self.batches[-1][1].extend((trial, piece) for piece in pieces)
            self.end += len(pieces) * estimates.start + (last - first) * trial.seconds


class _Placing:
    """Gives a checkpoint's trials to lanes, of which it has a queue in the order in which they could begin."""

    def __init__(
        self, checkpoint: str, estimates: RuntimeEstimates, lanes: Sequence[_Lane], chosen: Sequence[_Lane]
    ) -> None:
        """lanes: all, which are taken where a trial would be too late on those chosen."""
        self._checkpoint, self._estimates, self._lanes = checkpoint, estimates, lanes
        self._queue = sorted(map(self._entry, chosen or lanes))

    def place(self, trial: Trial, deadline: float) -> float:
        """Give the trial's samples to lanes so that they end by the deadline, or else as early as they can.

        Returns when the last sample ends.
        """
        pace = max(trial.seconds, _EPSILON)
        waiting, left, end = list(trial.waiting), trial.samples, 0.0
        while left:
            room = math.floor((deadline - self._queue[0][0]) / pace + _EPSILON)
            if not trial.task.splits:
                room = left
            if room < 1:
                deadline = self._next_deadline(pace, left)
                continue
            share = min(left, room)
            place = 0
            if share == left and (left < trial.samples or not trial.task.splits):
                # What is cut no more goes where it fits best, so that wide gaps stay free for other trials. Whole
                # trials that can be cut do not: where estimates are off, they would end too late.
                last_begin = deadline - left * pace, len(self._lanes)
                place = max(0, bisect.bisect_right(self._queue, last_begin) - 1)
            _, number = self._queue.pop(place)
            lane = self._lanes[number]
            lane.add(trial, _taken(waiting, share), self._estimates)
            bisect.insort(self._queue, self._entry(lane))
            end = max(end, lane.end)
            left -= share
        return end

    def _next_deadline(self, pace: float, left: int) -> float:
        """Where it is too late: let all lanes share what is left, in pieces that are worth a start."""
        if len(self._queue) < len(self._lanes):
            self._queue = sorted(map(self._entry, self._lanes))
        share = left * pace / len(self._queue)
        return self._queue[0][0] + max(share, _WORTH_STARTS * self._estimates.start) + pace

    def _entry(self, lane: _Lane) -> tuple[float, int]:
        return lane.begin(self._checkpoint, self._estimates), lane.number


def _planner(suite: Suite, estimates: RuntimeEstimates, trials: tuple[Trial, ...], now: float) -> _Planner:
    before_end = _scored_before_end(trials, suite.scorers)
    by_checkpoint: dict[str, list[_Urgent]] = {}
    for number, trial in enumerate(trials):
        if trial.waiting:
            by_checkpoint.setdefault(trial.loads, []).append(_Urgent(before_end[number], trial, number))
    for waiting in by_checkpoint.values():
        waiting.sort(key=lambda urgent: urgent.rank)
    return _Planner(suite, estimates, trials, now, by_checkpoint)


def _longest(estimates: RuntimeEstimates) -> float:
    """Seconds that a shard may take."""
    return max(_PIECE_STARTS * estimates.start, _PIECE_SECONDS)


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
