"""Schedules: every schedule is sound, none beats the lower bound, and what is left is cut anew."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnoser.evaluations.runtime_estimates import RuntimeEstimates
from diagnoser.evaluations.schedule import gpu_seconds, in_line, rescheduled, schedule
from diagnoser.model.errors import BadInput
from diagnoser.model.evaluations import Batch, Done, Model, Node, Placement, Schedule, Suite, Task, TrialShard
from tests.thorough import THOROUGH, examples

CLOSE = 1e-6
NOTHING = Done()


def suite_of(samples: Sequence[int], checkpoints: int = 1, scorers: int = 0, uncut: Sequence[int] = ()) -> Suite:
    tasks = tuple(
        Task(f"task-{number}", count, ("infer",), ("score",), splits=number not in uncut)
        for number, count in enumerate(samples)
    )
    return Suite("suite", tuple(f"step-{number}" for number in range(checkpoints)), tasks, scorers=scorers)


def prior_of(
    suite: Suite, seconds: float = 1.0, score: float = 0.0, load: float = 60.0, start: float = 5.0
) -> RuntimeEstimates:
    names = [task.name for task in suite.tasks]
    return RuntimeEstimates(dict.fromkeys(names, seconds), dict.fromkeys(names, score), load, start)


def nodes_of(count: int, gpus: int = 8) -> list[Node]:
    return [Node(f"gpu-{number}", gpus) for number in range(count)]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Suite, RuntimeEstimates, list[Node]]:
    counts = draw(st.lists(st.integers(1, 3000), min_size=1, max_size=12))
    suite = suite_of(
        counts,
        draw(st.integers(1, 3)),
        draw(st.sampled_from([0, 1, 3, 16])),
        draw(st.lists(st.integers(0, len(counts) - 1), max_size=3)),
    )
    names = [task.name for task in suite.tasks]
    estimates = RuntimeEstimates(
        {name: draw(st.floats(0.001, 20)) for name in names},
        {name: draw(st.floats(0, 3000)) for name in names},
        draw(st.floats(0, 300)),
        draw(st.floats(0, 60)),
    )
    gpus = draw(st.integers(1, 8))
    return replace(suite, gpus=draw(st.integers(1, gpus))), estimates, nodes_of(draw(st.integers(1, 32)), gpus)


def ends_of_shards(
    placement: Placement, estimates: RuntimeEstimates, held: Collection[str] = ()
) -> dict[TrialShard, float]:
    """By the cost model, computed from the placement alone: the load, then each shard with its start."""
    at = placement.start + (0.0 if placement.batch.shards[0].checkpoint in held else estimates.load)
    ends = {}
    for shard in placement.batch.shards:
        at += estimates.start + (shard.last - shard.first) * estimates.samples[shard.task]
        ends[shard] = at
    return ends


def check(
    made: Schedule,
    suite: Suite,
    estimates: RuntimeEstimates,
    nodes: Sequence[Node],
    done: Done = NOTHING,
    running: Sequence[Placement] = (),
    now: float = 0.0,
) -> None:
    """Each sample is covered once, no slot has two batches at a time, each metric follows its samples, and no end is
    before the lower bound or after the makespan."""
    slack = CLOSE * (1 + made.makespan)
    slots = defaultdict(list)
    for placement in [*running, *made.placements]:
        slots[placement.node, placement.slot].append(placement)
    sizes = {node.name: node.gpus // suite.gpus for node in nodes}
    ready: dict[tuple[str, str], float] = defaultdict(lambda: now)
    shards = [shard for shard in done.shards if (shard.checkpoint, shard.task) not in done.scored]
    for (node, slot), placed in slots.items():
        assert slot < sizes[node]
        placed.sort(key=lambda placement: placement.start)
        held = {placement.batch.shards[0].checkpoint for placement in running if placement.node == node}
        for before, after in pairwise(placed):
            assert after.start >= before.end - slack
        for placement in placed:
            assert len({shard.checkpoint for shard in placement.batch.shards}) == 1
            shards += placement.batch.shards
            ends = ends_of_shards(placement, estimates, held)
            if placement in running:
                ends = dict.fromkeys(placement.batch.shards, placement.end)
            else:
                assert placement.start >= now - slack
                assert placement.end == pytest.approx(max(ends.values()), abs=slack)
                assert placement.batch.seconds == pytest.approx(placement.end - placement.start, abs=slack)
            for shard, end in ends.items():
                ready[shard.checkpoint, shard.task] = max(ready[shard.checkpoint, shard.task], end)
    check_cover(suite, done, shards)
    check_scorings(made, suite, estimates, done, ready, slack)
    last = [*(placement.end for placement in [*running, *made.placements]), *(one.end for one in made.scorings), now]
    assert made.makespan == pytest.approx(max(last), abs=slack)
    assert made.lower_bound <= made.makespan + slack


def check_cover(suite: Suite, done: Done, shards: Sequence[TrialShard]) -> None:
    covered = defaultdict(list)
    for shard in shards:
        covered[shard.checkpoint, shard.task].append((shard.first, shard.last))
    for trial, task in trials_of(suite).items():
        if trial in done.scored:
            assert trial not in covered
            continue
        ranges = sorted(covered[trial])
        assert [first for first, _ in ranges] == [0, *(last for _, last in ranges[:-1])]
        assert ranges[-1][1] == task.samples
        assert all(first < last for first, last in ranges)
        assert task.splits is True or len(ranges) == 1


def trials_of(suite: Suite) -> dict[tuple[str, str], Task]:
    return {(checkpoint, task.name): task for checkpoint in suite.checkpoints for task in suite.tasks}


def check_scorings(
    made: Schedule,
    suite: Suite,
    estimates: RuntimeEstimates,
    done: Done,
    ready: Mapping[tuple[str, str], float],
    slack: float,
) -> None:
    scorings = {(scoring.checkpoint, scoring.task): scoring for scoring in made.scorings}
    assert set(scorings) == set(trials_of(suite)) - set(done.scored)
    assert len(scorings) == len(made.scorings)
    for trial, scoring in scorings.items():
        assert scoring.start >= ready[trial] - slack
        assert scoring.end - scoring.start == pytest.approx(estimates.scores[trial[1]], abs=slack)
        at_once = [
            one for one in made.scorings if one.start <= scoring.start + slack and scoring.start + slack < one.end
        ]
        assert not suite.scorers or len(at_once) <= suite.scorers


@given(problems())
@settings(max_examples=examples(150), deadline=None)
def test_every_schedule_is_sound(problem: tuple[Suite, RuntimeEstimates, list[Node]]) -> None:
    """On 1 to 32 nodes, with several checkpoints, few scorers and tasks that cannot be cut."""
    suite, estimates, nodes = problem
    check(schedule(suite, estimates, nodes), suite, estimates, nodes)


@given(problems(), st.integers(0, 1 << 32))
@settings(max_examples=examples(150), deadline=None)
def test_no_other_schedule_beats_the_lower_bound(
    problem: tuple[Suite, RuntimeEstimates, list[Node]], seed: int
) -> None:
    """Whatever the cuts, the slots and the order: schedules made at random all end after the bound."""
    suite, estimates, nodes = problem
    bound, random = schedule(suite, estimates, nodes).lower_bound, Random(seed)
    slots = [(0.0, "")] * random.randint(1, sum(node.gpus // suite.gpus for node in nodes))
    shards = []
    for checkpoint in suite.checkpoints:
        for task in suite.tasks:
            most = min(task.samples, 2 * len(slots)) if task.splits else 1
            cuts = sorted(random.sample(range(1, task.samples), random.randint(1, most) - 1)) if most > 1 else []
            shards += [
                TrialShard(checkpoint, task.name, first, last)
                for first, last in zip([0, *cuts], [*cuts, task.samples], strict=True)
            ]
    key = random.choice([lambda shard: -estimates.scores[shard.task], lambda shard: random.random()])
    ready: dict[tuple[str, str], float] = defaultdict(float)
    for shard in sorted(shards, key=key):
        number = random.choice([slots.index(min(slots)), random.randrange(len(slots))])
        at, loaded = slots[number]
        at += estimates.start + (0.0 if loaded == shard.checkpoint else estimates.load)
        at += (shard.last - shard.first) * estimates.samples[shard.task]
        slots[number] = at, shard.checkpoint
        ready[shard.checkpoint, shard.task] = max(ready[shard.checkpoint, shard.task], at)
    free = [0.0] * (suite.scorers or len(ready))
    for trial, at in sorted(ready.items(), key=lambda one: one[1]):
        free.sort()
        free[0] = max(free[0], at) + estimates.scores[trial[1]]
    assert bound <= max(free) * (1 + CLOSE)


@given(problems(), st.floats(0, 1), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_what_is_left_after_nodes_died_is_sound(
    problem: tuple[Suite, RuntimeEstimates, list[Node]], share: float, data: st.DataObject
) -> None:
    """At any time, with any nodes dead and others late: what is done or runs stays, the rest is covered once."""
    suite, estimates, nodes = problem
    first = schedule(suite, estimates, nodes)
    now = first.makespan * share
    dead = data.draw(st.sets(st.sampled_from([node.name for node in nodes]), max_size=len(nodes) - 1))
    late = data.draw(st.floats(1, 4))
    shards, running = list[TrialShard](), list[Placement]()
    for placement in first.placements:
        ends = ends_of_shards(placement, estimates)
        going = [shard for shard, end in ends.items() if end > now]
        shards += [shard for shard, end in ends.items() if end <= now]
        if going and placement.start < now and placement.node not in dead:
            end = now + (ends[going[0]] - now) * late
            running.append(Placement(Batch((going[0],), end - now), placement.node, placement.slot, now, end))
    scored = frozenset((one.checkpoint, one.task) for one in first.scorings if one.start <= now)
    done = Done(tuple(shards), scored)
    left = [node for node in nodes if node.name not in dead]
    check(rescheduled(suite, estimates, left, done, running, now), suite, estimates, left, done, running, now)


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 32])
def test_a_long_tailed_suite_ends_close_to_the_lower_bound(count: int) -> None:
    """63 tasks of lognormal length, on 8 to 256 GPUs: within a tenth."""
    random = Random(count)
    suite = suite_of([50 + int(random.lognormvariate(6, 1.3)) for _ in range(63)], scorers=8 * count)
    estimates = replace(prior_of(suite, 0.5), scores={task.name: random.lognormvariate(3, 1.2) for task in suite.tasks})
    made = schedule(suite, estimates, nodes_of(count))
    check(made, suite, estimates, nodes_of(count))
    assert made.makespan <= 1.1 * made.lower_bound


def test_small_tasks_share_a_load() -> None:
    """A hundred tasks of ten seconds on eight GPUs load eight times, not a hundred times."""
    suite = suite_of([10] * 100)
    made = schedule(suite, prior_of(suite), nodes_of(1))
    assert len(made.placements) == 8


def test_a_large_task_is_cut_over_all_slots() -> None:
    """A single task of an hour is inferred by eight GPUs at the same time."""
    suite = suite_of([3600])
    made = schedule(suite, prior_of(suite), nodes_of(1))
    assert {(one.node, one.slot) for one in made.placements} == {("gpu-0", slot) for slot in range(8)}
    assert made.makespan <= 1.1 * (60 + 5 + 3600 / 8)


def test_a_task_that_cannot_be_cut_is_one_shard() -> None:
    """Even where that makes the run longer."""
    suite = suite_of([3600], uncut=[0])
    assert [len(one.batch.shards) for one in schedule(suite, prior_of(suite), nodes_of(4)).placements] == [1]


def test_long_scoring_starts_early() -> None:
    """The trial whose metric takes longest is inferred first, and its scoring overlaps the others."""
    suite = suite_of([400] * 16)
    estimates = prior_of(suite)
    estimates = replace(estimates, scores=dict(estimates.scores) | {"task-9": 900.0})
    made = schedule(suite, estimates, nodes_of(1))
    assert made.placements[0].batch.shards[0].task == "task-9"
    assert made.makespan == pytest.approx(max(one.end for one in made.placements), rel=0.35)
    assert made.makespan < in_line(suite, estimates, nodes_of(1))


def test_shards_are_bounded_so_that_a_death_costs_little() -> None:
    """A task of a day on one GPU is many shards behind one load, none longer than ten minutes."""
    suite = suite_of([86400])
    (placement,) = schedule(suite, prior_of(suite), nodes_of(1, 1)).placements
    assert max(shard.last - shard.first for shard in placement.batch.shards) <= 600


def test_a_slot_loads_each_checkpoint_once() -> None:
    """Two checkpoints of forty tasks on eight slots: no slot goes back and forth between them."""
    suite = suite_of([50 + 10 * number for number in range(40)], checkpoints=2)
    made = schedule(suite, prior_of(suite), nodes_of(1))
    loads = [(one.node, one.slot, one.batch.shards[0].checkpoint) for one in made.placements]
    assert len(loads) == len(set(loads))
    assert made.makespan <= 1.1 * made.lower_bound


def test_a_node_that_holds_the_weights_pays_no_second_load() -> None:
    """Neither the slot that goes on nor a free one of the same node; another node loads."""
    suite = suite_of([100, 100])
    running = Placement(Batch((TrialShard("step-0", "task-0", 0, 100),), 165.0), "gpu-0", 0, 0.0, 165.0)
    for nodes, first_sample in ((nodes_of(1, 1), 170.0), (nodes_of(1, 2), 105.0)):
        made = rescheduled(suite, prior_of(suite), nodes, Done(), [running], 100.0)
        assert made.placements[0].start + 5.0 == first_sample
        assert made.makespan <= 1.01 * made.lower_bound
    (alone,) = rescheduled(suite, prior_of(suite), [Node("gpu-9", 1)], Done((), frozenset()), (), 100.0).placements
    assert alone.batch.seconds == 60 + 2 * 105


def test_a_suite_that_is_done_needs_nothing() -> None:
    """All scored: no placement, and the end is now."""
    suite = suite_of([100])
    done = Done((), frozenset({("step-0", "task-0")}))
    made = rescheduled(suite, prior_of(suite), nodes_of(1), done, (), 50.0)
    assert (made.placements, made.scorings, made.makespan) == ((), (), 50.0)


def test_samples_that_are_stored_are_scored_without_a_gpu() -> None:
    """All shards done: the metric alone is left."""
    suite = suite_of([100])
    done = Done((TrialShard("step-0", "task-0", 0, 100),))
    made = rescheduled(suite, prior_of(suite, score=30.0), nodes_of(1), done, (), 0.0)
    assert (made.placements, made.makespan, made.lower_bound) == ((), 30.0, 30.0)


def test_nodes_that_are_too_small_are_refused() -> None:
    """With the number of GPUs that is missing."""
    suite = replace(suite_of([1]), gpus=8)
    with pytest.raises(BadInput, match="8 GPUs"):
        schedule(suite, prior_of(suite), nodes_of(2, 4))


def test_gpus_are_held_for_load_and_inference_only() -> None:
    """The seconds of a metric are no GPU seconds."""
    suite = replace(suite_of([100]), gpus=2)
    made = schedule(suite, prior_of(suite, score=500.0, start=0.0), nodes_of(1, 2))
    assert gpu_seconds(made.placements, suite) == 2 * (60 + 100)


def test_in_line_holds_the_gpus_while_it_scores() -> None:
    """Two jobs after each other on one GPU: load, start, infer and score, twice."""
    suite = suite_of([100, 200])
    assert in_line(suite, prior_of(suite, score=10.0), nodes_of(1, 1)) == 2 * (60 + 5 + 10) + 300


def test_as_few_gpus_are_used_as_end_about_as_early() -> None:
    """Where one metric of an hour is the bound, 256 GPUs end no earlier than a few, and would each load the weights."""
    suite = suite_of([600] * 64)
    estimates = prior_of(suite)
    estimates = replace(estimates, scores=dict(estimates.scores) | {"task-9": 3600.0})
    all_slots = schedule(suite, estimates, nodes_of(32), fast=True)
    made = schedule(suite, estimates, nodes_of(32))
    check(made, suite, estimates, nodes_of(32))
    assert made.makespan <= max(all_slots.makespan, 1.02 * made.lower_bound)
    assert gpu_seconds(made.placements, suite) < 0.85 * gpu_seconds(all_slots.placements, suite)
    assert len({(placement.node, placement.slot) for placement in made.placements}) < 20


def test_what_is_left_uses_no_more_gpus_than_the_first_plan_needed() -> None:
    """With the end of the first plan to keep, a new plan in the middle of the run leaves idle nodes alone."""
    suite = suite_of([600] * 64)
    estimates = prior_of(suite)
    estimates = replace(estimates, scores=dict(estimates.scores) | {"task-9": 3600.0})
    first = schedule(suite, estimates, nodes_of(32))
    done = Done((TrialShard("step-0", "task-9", 0, 600),), frozenset({("step-0", "task-9")}))
    hurried = rescheduled(suite, estimates, nodes_of(32), done, (), 700.0)
    made = rescheduled(suite, estimates, nodes_of(32), done, (), 700.0, first.goal)
    assert made.makespan <= first.makespan
    assert gpu_seconds(made.placements, suite) < 0.75 * gpu_seconds(hurried.placements, suite)


def test_thousands_of_trials_are_hardly_cut() -> None:
    """A cut pays a start, so there is at most one for each GPU: ten thousand trials on 1,024 GPUs in thorough tests,
    four in ten of both otherwise."""
    checkpoints, nodes = (100, nodes_of(128)) if THOROUGH else (40, nodes_of(51))
    suite = suite_of([50 + number for number in range(100)], checkpoints)
    made = schedule(suite, prior_of(suite), nodes)
    check(made, suite, prior_of(suite), nodes)
    assert sum(len(placed.batch.shards) for placed in made.placements) <= 100 * checkpoints + 8 * len(nodes)


def test_a_judge_comes_behind_what_it_judges_and_is_loaded_once_for_all_checkpoints() -> None:
    """No batch mixes it with a checkpoint; on one slot the answers of both are judged behind one load."""
    suite = suite_of((100,), checkpoints=2)
    judged = Task("judged", 50, ("infer",), ("score",), after="task-0", model="judge")
    suite = replace(suite, tasks=(*suite.tasks, judged), models=(Model("judge", "/judge"),))
    of_judge = prior_of(suite.part("judge"), load=300.0)
    estimates = replace(prior_of(suite), models={"judge": of_judge})
    *first, last = schedule(suite, estimates, nodes_of(1, 1)).placements
    assert {shard.task for placed in first for shard in placed.batch.shards} == {"task-0"}
    assert {shard.trial for shard in last.batch.shards} == {("step-0", "judged"), ("step-1", "judged")}
    assert last.end - last.start == pytest.approx(300.0 + 2 * (5.0 + 50.0))
