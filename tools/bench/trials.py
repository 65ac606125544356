"""Simulates an evaluation of 63 data sets with the proportions of the paper on 1 to 32 nodes of eight GPUs.

    python -m tools.bench.trials [MIXES]

Of the time that a job a data set holds its GPU, 30 % loads the model, 19 % computes the metric, and the rest infers.
Data sets and metrics are lognormal, the longest about ten times the median. A fifth of the load is paid by each shard,
the rest once behind the weights in the node's memory. Eight metrics run on the CPUs of a node at the same time.

Compared are what people run (a job a data set, the longest first, which loads, infers and scores while it holds its
GPU), the schedule, and the lower bound, with all times known. "at most" is the baseline over the lower bound: in some
mixes one metric takes so long that nothing could be much faster. In the last columns the times are not known: each task
takes what was expected times a lognormal error of 30 %, loads of 20 %, and what waits is cut anew whenever a slot runs
empty, as the coordinator does. With "a node dies" the last node is gone from a third of the run on.
"""

import heapq
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from statistics import median

from diagnoser.evaluations.runtime_estimates import RuntimeEstimates, estimate_runtimes
from diagnoser.evaluations.schedule import gpu_seconds, in_line, rescheduled, schedule
from diagnoser.model.evaluations import Batch, Done, Goal, Node, Placement, Runtime, Suite, Task, TrialShard

TASKS, LOAD, GPUS, SCORERS = 63, 120.0, 8, 8
LOADING, METRICS = 0.30, 0.19
START_SHARE, TAIL = 0.2, 1.0
ERROR, LOAD_ERROR = 0.3, 0.2
NODES, REPLAYED = (1, 2, 4, 8, 16, 32), (1, 2, 4)
MUST, AIM = {1: 1.3, 4: 1.8}, {1: 1.6, 4: 2.5}
GAP = 0.10


def main() -> None:
    mixes = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    _say(f"{TASKS} data sets, median of {mixes} mixes; seconds.\n")
    head = (
        "nodes",
        "in line",
        "schedule",
        "lower bound",
        "over it (worst)",
        "GPU time",
        "times faster (least)",
        "at most",
        "must",
        "aim",
    )
    _say(f"| {' | '.join((*head, 'estimates off: times faster (least)', 'and a node dies'))} |")
    _say("|" + " --- |" * (len(head) + 2))
    wrong = [fault for count in NODES for fault in _row(count, [mix(seed) for seed in range(mixes)])]
    for fault in wrong:
        _say(fault)
    _say(f"\n10,000 trials on 1,024 GPUs are planned in {_planning_seconds():.1f} CPU-seconds.")
    sys.exit(bool(wrong))


def _planning_seconds() -> float:
    suite, known, _ = mix(0)
    tasks = suite.tasks[:50]
    many = replace(suite, tasks=tasks, checkpoints=tuple(f"step-{step}" for step in range(200)), scorers=512)
    started = time.process_time()
    schedule(many, known, [Node(f"node-{number}", GPUS) for number in range(128)])
    return time.process_time() - started


def mix(seed: int) -> tuple[Suite, RuntimeEstimates, int]:
    random = Random(seed)
    held = TASKS * LOAD / LOADING
    inference = _tailed(random, held * (1 - LOADING - METRICS))
    metrics = _tailed(random, held * METRICS)
    tasks = tuple(Task(f"task-{number}", random.randint(100, 10_000), (), ()) for number in range(TASKS))
    rates = {task.name: seconds / task.samples for task, seconds in zip(tasks, inference, strict=True)}
    scores = dict(zip(rates, metrics, strict=True))
    load = RuntimeEstimates(rates, scores, LOAD * (1 - START_SHARE), LOAD * START_SHARE)
    return Suite("mix", ("step-1000",), tasks, size="7B", hardware="A100"), load, seed


def _tailed(random: Random, total: float) -> list[float]:
    found = [random.lognormvariate(0, TAIL) for _ in range(TASKS)]
    return [value * total / sum(found) for value in found]


def _row(count: int, mixes: list[tuple[Suite, RuntimeEstimates, int]]) -> Iterator[str]:
    """Prints the row; what it lacks."""
    nodes = [Node(f"node-{number}", GPUS) for number in range(count)]
    pairs = []
    for suite, known, seed in mixes:
        many = replace(suite, scorers=SCORERS * count)
        pairs.append((in_line(many, known, nodes), schedule(many, known, nodes), many, known, seed))
    gaps = [made.makespan / made.lower_bound - 1 for _, made, *_ in pairs]
    faster = [line / made.makespan for line, made, *_ in pairs]
    held = [gpu_seconds(made.placements, suite) / _jobs_gpu_seconds(known, suite) for _, made, suite, known, _ in pairs]
    late, dead = "", ""
    if count in REPLAYED:
        lines = [in_line(many, _actual(known, seed), nodes) for _, _, many, known, seed in pairs]
        runs = [_Replay(many, known, nodes, seed).run() for _, _, many, known, seed in pairs]
        late = _times([line / run for line, run in zip(lines, runs, strict=True)])
        if count > 1:
            kills = [
                _Replay(many, known, nodes, seed, dies=run / 3).run()
                for (_, _, many, known, seed), run in zip(pairs, runs, strict=True)
            ]
            dead = _times([line / run for line, run in zip(lines, kills, strict=True)])
    cells = [
        str(count),
        f"{median(line for line, *_ in pairs):.0f}",
        f"{median(made.makespan for _, made, *_ in pairs):.0f}",
        f"{median(made.lower_bound for _, made, *_ in pairs):.0f}",
        f"{100 * median(gaps):.1f} % ({100 * max(gaps):.1f} %)",
        f"{median(held):.2f} x",
        _times(faster),
        _times([line / made.lower_bound for line, made, *_ in pairs]),
        f"{MUST[count]} x" if count in MUST else "",
        f"{AIM[count]} x" if count in AIM else "",
        late,
        dead,
    ]
    _say(f"| {' | '.join(cells)} |")
    if max(gaps) > GAP:
        yield f"{count} nodes: {100 * max(gaps):.1f} % over the lower bound"
    if median(faster) < MUST.get(count, 1.0):
        yield f"{count} nodes: {median(faster):.2f} times faster"


def _jobs_gpu_seconds(known: RuntimeEstimates, suite: Suite) -> float:
    """GPU seconds of a job a data set that gives its GPU back before it scores."""
    return sum(known.load + known.start + task.samples * known.samples[task.name] for task in suite.tasks)


def _times(ratios: list[float]) -> str:
    return f"{median(ratios):.2f} x ({min(ratios):.2f})"


def _actual(known: RuntimeEstimates, seed: int) -> RuntimeEstimates:
    """What the tasks take instead of what is expected."""
    random = Random(f"actual {seed}")
    return RuntimeEstimates(
        {name: rate * random.lognormvariate(0, ERROR) for name, rate in known.samples.items()},
        {name: score * random.lognormvariate(0, ERROR) for name, score in known.scores.items()},
        known.load,
        known.start,
    )


@dataclass(slots=True)
class _Replay:
    """Carries a schedule out with other times than expected, as the coordinator does: it takes the next shard of each
    slot's part, and cuts what waits anew when a slot has none left or a node dies."""

    suite: Suite
    known: RuntimeEstimates
    nodes: list[Node]
    seed: int
    dies: float | None = None
    done: list[TrialShard] = field(default_factory=list)
    running: dict[tuple[str, int], Placement] = field(default_factory=dict)
    """With the expected end."""
    ends: list[tuple[float, str, int, TrialShard]] = field(default_factory=list)
    plan: dict[tuple[str, int], list[TrialShard]] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    """When the weights are in the memory of a node."""
    runtimes: list[Runtime] = field(default_factory=list)
    goal: Goal | None = None
    """Of the first plan."""

    def run(self) -> float:
        """When the last metric ends."""
        actual, random = _actual(self.known, self.seed), Random(f"loads {self.seed}")
        ready: dict[str, float] = {}
        now = 0.0
        self._cut(now)
        while True:
            self._start(now, actual, random)
            if not self.ends:
                return self._scored(ready, actual.scores)
            now, node, slot, shard = heapq.heappop(self.ends)
            if self.dies is not None and now >= self.dies:
                heapq.heappush(self.ends, (now, node, slot, shard))
                now = self._die(self.dies)
                continue
            del self.running[node, slot]
            self.done.append(shard)
            ready[shard.task] = now
            seconds = (shard.last - shard.first) * actual.samples[shard.task]
            self.runtimes.append(Runtime(shard.task, "7B", "A100", shard.last - shard.first, seconds, 0.0))

    def _expected(self) -> RuntimeEstimates:
        """What is known, with the rates that this run has shown."""
        rates = estimate_runtimes(self.suite, self.runtimes).samples
        shown = {runtime.task for runtime in self.runtimes}
        return replace(self.known, samples=dict(self.known.samples) | {name: rates[name] for name in shown})

    def _cut(self, now: float) -> None:
        going = list(self.running.values())
        late = [replace(placed, end=max(placed.end, now)) for placed in going]
        done = Done(tuple(self.done))
        made = rescheduled(self.suite, self._expected(), self.nodes, done, late, now, self.goal or Goal())
        self.goal = self.goal or made.goal
        self.plan = {}
        for placed in made.placements:
            self.plan.setdefault((placed.node, placed.slot), []).extend(placed.batch.shards)

    def _start(self, now: float, actual: RuntimeEstimates, random: Random) -> None:
        slots = [(node.name, slot) for node in self.nodes for slot in range(node.gpus)]
        free = [slot for slot in slots if slot not in self.running]
        if any(not self.plan[slot] for slot in free if slot in self.plan) and any(self.plan.values()):
            self._cut(now)
        for slot in free:
            if not self.plan.get(slot):
                continue
            shard = self.plan[slot].pop(0)
            held = self.held.setdefault(slot[0], now + self.known.load * random.lognormvariate(0, LOAD_ERROR))
            load = max(0.0, held - now)
            samples = shard.last - shard.first
            took = load + self.known.start + samples * actual.samples[shard.task]
            expected = load + self.known.start + samples * self.known.samples[shard.task]
            self.running[slot] = Placement(Batch((shard,), expected), *slot, now, now + expected)
            heapq.heappush(self.ends, (now + took, *slot, shard))

    def _die(self, now: float) -> float:
        """Its running shards are lost, and nothing else."""
        gone = self.nodes[-1].name
        self.nodes, self.dies = self.nodes[:-1], None
        self.ends = [end for end in self.ends if end[1] != gone]
        heapq.heapify(self.ends)
        self.running = {slot: placed for slot, placed in self.running.items() if slot[0] != gone}
        self._cut(now)
        return now

    def _scored(self, ready: Mapping[str, float], scores: Mapping[str, float]) -> float:
        free = [0.0] * self.suite.scorers
        for task, at in sorted(ready.items(), key=lambda one: one[1]):
            heapq.heapreplace(free, max(free[0], at) + scores[task])
        return max(free)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
