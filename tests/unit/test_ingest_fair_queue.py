"""Who is committed next."""

import pytest

from diagnoser.ingest.fair_queue import FairQueue
from diagnoser.model.errors import Overloaded, Unavailable


def filled(limit: int, *requests: tuple[str, int]) -> FairQueue[str]:
    """Requests named by job and place: a1, a2, b1."""
    queue, counts = FairQueue[str](limit, credit=100), dict[str, int]()
    for job, size in requests:
        counts[job] = counts.get(job, 0) + 1
        queue.put(job, size, f"{job}{counts[job]}")
    return queue


def test_jobs_take_turns_and_each_keeps_its_order() -> None:
    """A quiet job's request is among the first, whatever noisy ones have sent before it."""
    queue = filled(1000, ("noisy", 10), ("noisy", 10), ("noisy", 10), ("quiet", 1), ("other", 10))
    assert queue.take(35) == ["quiet1", "noisy1", "other1", "noisy2"]
    assert queue.take(35) == ["noisy3"]
    assert not queue


def test_the_turn_goes_on_where_the_last_group_ended() -> None:
    """A job that did not fit is the first of the next group."""
    queue = filled(1000, ("a", 10), ("a", 10), ("b", 10), ("c", 10))
    assert queue.take(20) == ["a1", "b1"]
    assert queue.take(20) == ["c1", "a2"]


def test_a_small_request_goes_before_the_large_ones_of_any_number_of_jobs() -> None:
    """Also of jobs that have not had a turn yet."""
    queue = filled(100_000, *((f"noisy-{number}", 256) for number in range(40) for _ in range(2)))
    queue.take(1024)
    queue.put("quiet", 1, "quiet1")
    assert queue.take(1024)[0] == "quiet1"


def test_jobs_share_by_bytes_and_not_by_requests() -> None:
    """Splitting its lines over many requests gains a job nothing, and sending many at once costs it nothing."""
    queue = filled(100_000, *[("large", 100)] * 20, *[("small", 10)] * 200)
    taken = [request for _ in range(10) for request in queue.take(100)]
    large = 100 * sum(request.startswith("large") for request in taken)
    assert abs(large - 500) <= 100


def test_a_job_that_was_silent_saves_up_no_more_than_its_credit() -> None:
    """Its first bytes come before all others; then it has its turns as they do, also after a moment's silence."""
    queue = filled(100_000, *[("busy", 10)] * 200)
    queue.take(500)
    late = [("late", 10)] * 20
    for job, size in late:
        queue.put(job, size, job)
    assert queue.take(100) == ["late"] * 10
    assert queue.take(100).count("late") == 5
    queue.take(100)
    for job, size in late:
        queue.put(job, size, job)
    assert queue.take(100).count("late") <= 6


def test_a_request_over_the_bound_of_a_group_is_a_group_of_its_own() -> None:
    """It is not left waiting for ever, and it takes no other with it."""
    queue = filled(1000, ("a", 10), ("b", 200), ("c", 10))
    assert [queue.take(20) for _ in range(2)] == [["a1", "c1"], ["b1"]]
    assert queue.take(20) == []


def test_one_job_may_fill_its_share_only() -> None:
    """Its sender is told to wait, with a time; the others go on, until the queue is full."""
    queue = filled(100, ("noisy", 20))
    with pytest.raises(Overloaded, match="noisy") as refusal:
        queue.put("noisy", 6, "more")
    assert refusal.value.retry_after > 0
    for job in ("b", "c", "d"):
        queue.put(job, 25, job)
    with pytest.raises(Unavailable):
        queue.put("e", 6, "too much")
    queue.take(20)
    queue.put("noisy", 6, "now")


def test_one_request_of_a_job_may_be_larger_than_its_share() -> None:
    """What fits the queue is never refused for good."""
    assert filled(100, ("a", 90)).take(10) == ["a1"]
