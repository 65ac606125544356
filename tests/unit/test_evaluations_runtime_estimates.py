"""`diagnoser.evaluations.runtime_estimates`: what the suite says, then medians of earlier runs, then coefficients."""

from dataclasses import replace

import pytest

from diagnoser.evaluations.runtime_estimates import billions, estimate_runtimes
from diagnoser.model.evaluations import Model, Runtime, Suite, Task

SUITE = Suite("s", ("c",), (Task("gsm8k", 1000, ("i",), ("s",)),), size="7B", hardware="A100")


def runtime(
    seconds: float, task: str = "gsm8k", size: str = "7B", hardware: str = "A100", load: float = 0.0
) -> Runtime:
    return Runtime(task, size, hardware, 100, seconds + load, load, score=seconds)


def test_the_median_of_this_task_size_and_hardware_counts() -> None:
    """Other tasks, sizes and hardware do not; nor do the loads that are in the seconds."""
    known = [runtime(10, load=40), runtime(20, load=40), runtime(900, load=40)]
    known += [runtime(1, task="mmlu"), runtime(1, size="1B"), runtime(1, hardware="H100")]
    assert estimate_runtimes(SUITE, known).samples["gsm8k"] == pytest.approx(0.2)


def test_what_the_suite_says_counts_first() -> None:
    """Of inference and of the metric."""
    task = replace(SUITE.tasks[0], sample_seconds=3.0, score_seconds=0.0)
    made = estimate_runtimes(replace(SUITE, tasks=(task,)), [runtime(10)])
    assert (made.samples["gsm8k"], made.scores["gsm8k"]) == (3.0, 0.0)


def test_a_new_task_is_expected_by_what_others_took_on_this_hardware() -> None:
    """In proportion to the parameters: 0.1 s a sample at 1B is 0.7 s at 7B."""
    assert estimate_runtimes(SUITE, [runtime(10, task="mmlu", size="1B")]).samples["gsm8k"] == pytest.approx(0.7)


def test_without_any_run_there_is_a_guess_by_size() -> None:
    """A model ten times as large takes ten times as long a sample, and has ten times the weights to load."""
    small, large = estimate_runtimes(replace(SUITE, size="7B")), estimate_runtimes(replace(SUITE, size="70B"))
    assert large.samples["gsm8k"] == pytest.approx(10 * small.samples["gsm8k"])
    assert large.load == pytest.approx(10 * small.load)
    assert estimate_runtimes(replace(SUITE, size="", weights=14_000_000_000)).load == pytest.approx(small.load)


def test_a_metric_takes_what_it_took_with_any_model() -> None:
    """It runs on CPUs."""
    assert estimate_runtimes(SUITE, [runtime(30, size="1B", hardware="H100")]).scores["gsm8k"] == 30


def test_loads_are_parted_into_those_of_batches_and_of_shards() -> None:
    """The first shard of each batch of four waits for the weights."""
    known = [runtime(10, load=100.0 if number % 4 == 0 else 10.0) for number in range(40)]
    made = estimate_runtimes(SUITE, known)
    assert (made.load, made.start) == (90.0, 10.0)


def test_the_load_of_a_size_that_has_not_run_is_in_proportion() -> None:
    """70B loads ten times as long as 7B."""
    made = estimate_runtimes(replace(SUITE, size="70B"), [runtime(1, load=20.0)])
    assert (made.load, made.start) == (0.0, 200.0)


def test_nothing_that_was_measured_can_make_a_sample_take_no_time() -> None:
    """Pieces without samples or with a load longer than all of their time."""
    assert estimate_runtimes(SUITE, [Runtime("gsm8k", "7B", "A100", 0, 1.0, 0.0)]).samples["gsm8k"] > 0
    assert estimate_runtimes(SUITE, [Runtime("gsm8k", "7B", "A100", 10, 1.0, 5.0)]).samples["gsm8k"] > 0


@pytest.mark.parametrize(("size", "expected"), [("7B", 7), ("350m", 0.35), (" 1.5 T", 1500), ("0B", None), ("7", None)])
def test_sizes_are_numbers_with_a_unit(size: str, expected: float | None) -> None:
    """K, M, B and T, in either case."""
    assert billions(size) == (expected if expected is None else pytest.approx(expected))


def test_a_model_of_the_suite_has_estimates_of_its_own() -> None:
    """A judge ten times as large loads ten times as long, and does not change what is expected of the checkpoints."""
    judged = Task("judged", 1000, ("i",), ("s",), after="gsm8k", model="judge")
    suite = replace(SUITE, tasks=(*SUITE.tasks, judged), models=(Model("judge", "/judge", None, "70B"),))
    known = [runtime(10, load=20.0), runtime(50, "judged", "70B", load=200.0)]
    made, alone = estimate_runtimes(suite, known), estimate_runtimes(SUITE, known)
    assert (made.load, made.start, made.samples["gsm8k"]) == (alone.load, alone.start, alone.samples["gsm8k"])
    judge = made.of_task("judged")
    assert judge.load + judge.start == pytest.approx(200.0) and made.samples["judged"] == pytest.approx(0.5)
