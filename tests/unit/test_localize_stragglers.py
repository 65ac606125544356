"""Ranks that are slower than the others, step after step."""

import json
from collections.abc import Sequence

import pytest

from diagnoser.localize.stragglers import Straggler, stragglers, stragglers_in
from tests.rule_files import log

STEADY = (100.0, 110.0, 120.0, 90.0)
SLOW = (100.0, 110.0, 800.0, 90.0)


def text(*steps: Sequence[float]) -> list[str]:
    return [
        f"[Rank {rank}] iter {step} step_time 1000.0 ms (compute {time:.1f} ms)"
        for step, times in enumerate(steps)
        for rank, time in enumerate(times)
    ]


def inspector(*collectives: Sequence[float], communicator: str = "0x7f8c49", ranks: int = 4) -> list[str]:
    """times: microseconds that each rank spends in a collective."""
    return [
        json.dumps(
            {
                "header": {"id": communicator, "rank": rank, "n_ranks": ranks, "nnodes": 1},
                "metadata": {"inspector_output_format_version": "v4.0", "hostname": f"gpu-{rank}", "pid": 7},
                "coll_perf": {
                    "coll": "AllReduce",
                    "coll_sn": number,
                    "coll_msg_size_bytes": 1,
                    "coll_exec_time_us": time,
                },
            }
        )
        for number, times in enumerate(collectives)
        for rank, time in enumerate(times)
    ]


def scrape(*latencies: float, name: str = "XPU_TIMER_MM_KERNEL_AVG_LATENCY") -> list[str]:
    labels = 'dtype="bf16",ip="NOT_SET",job_name="NOT_SET",level="3",local_rank="0",operation="Matmul",rank="{}"'
    return [f"{name}{{{labels.format(rank)}}} {latency}" for rank, latency in enumerate(latencies)]


def test_the_slow_rank_is_reported_with_its_node() -> None:
    """A rank that takes eight times as long as the others is named, though all steps last equally long."""
    assert stragglers(log(*text(*3 * [SLOW])), {2: "n5"}) == (Straggler(2, "n5", 7.6),)


def test_alike_and_few_ranks_have_no_straggler() -> None:
    """Ordinary spread is none, and two or three ranks are too few to compare."""
    assert stragglers_in(text(*5 * [STEADY]), {}) == ()
    assert stragglers_in(text(*5 * [(100.0, 900.0)]), {}) == ()


def test_slowness_must_last() -> None:
    """One slow step in ten is none, and one step shows nothing at all."""
    assert stragglers_in(text(*4 * [STEADY], SLOW, *5 * [STEADY]), {}) == ()
    assert stragglers_in(text(SLOW), {}) == ()


def test_one_quick_step_does_not_clear_a_slow_rank() -> None:
    """Nine slow steps in ten are."""
    (slow,) = stragglers_in(text(*4 * [SLOW], STEADY, *5 * [SLOW]), {})
    assert slow.rank == 2


def test_in_a_collective_the_slow_rank_is_the_one_that_waits_least() -> None:
    """The others have entered and wait: NCCL Inspector shows long times for them, and tells the host of the last."""
    late = (62_000.0, 61_500.0, 61_800.0, 900.0)
    assert stragglers_in(inspector(*5 * [late]), {}) == (Straggler(3, "gpu-3", 68.5),)
    assert stragglers_in(inspector(*5 * [late]), {3: "n9"})[0].node == "n9"


def test_collectives_that_nobody_waits_in_show_nothing() -> None:
    """Short collectives differ by more than twice for no reason."""
    assert stragglers_in(inspector(*9 * [(50.0, 40.0, 45.0, 15.0)]), {}) == ()
    assert stragglers_in(inspector(*9 * [(62_000.0, 61_000.0, 60_000.0, 59_000.0)]), {}) == ()


def test_ranks_of_a_smaller_communicator_are_not_taken_for_ranks_of_the_job() -> None:
    """Rank 3 of a tensor-parallel group may be any rank."""
    world = inspector(*5 * [8 * (60_000.0,)], communicator="0x1", ranks=8)
    group = inspector(*5 * [(62_000.0, 61_500.0, 61_800.0, 900.0)], communicator="0x2")
    assert stragglers_in([*world, *group], {}) == ()


def test_a_gpu_whose_matrix_products_take_long_is_a_straggler() -> None:
    """xpu_timer's gauges over three scrapes; gauges of other kinds say nothing."""
    lines = 3 * ["# TYPE XPU_TIMER_MM_KERNEL_AVG_LATENCY gauge", *scrape(813, 814, 2450, 811)]
    assert stragglers_in(lines, {2: "n5"}) == (Straggler(2, "n5", 3.0),)
    assert stragglers_in(3 * scrape(813, 814, 2450, 811, name="XPU_TIMER_MM_KERNEL_MAX_LATENCY"), {}) == ()


@pytest.mark.parametrize(
    "damaged",
    [
        '{"coll_perf"',
        '{"coll_perf": 7, "header": []}',
        '["coll_perf"]',
        '{"header": {"id": 1, "rank": "x", "n_ranks": 4}, "coll_perf": {"coll": "A", "coll_sn": 1}}',
        '"coll_perf"' + 20_000 * "[",
        'XPU_TIMER_MM_KERNEL_AVG_LATENCY{rank="-1"} 5',
        "[Rank 99999999999999999999] compute " + 400 * "9" + " ms",
    ],
)
def test_damaged_lines_are_passed_over(damaged: str) -> None:
    """Logs are hostile text: what is no sample is none, and hides none."""
    assert [slow.rank for slow in stragglers_in([damaged, *text(*5 * [SLOW])], {})] == [2]
