"""Who is committed next."""

import pytest

from diagnoser.ingest.fair_queue import FairQueue
from diagnoser.model.errors import Overloaded, Unavailable


def filled(limit: int, *requests: tuple[str, int]) -> FairQueue[str]:
    """Requests named by job and place: a1, a2, b1."""
    queue, counts = FairQueue[str](limit), dict[str, int]()
    for job, size in requests:
        counts[job] = counts.get(job, 0) + 1
        queue.put(job, size, f"{job}{counts[job]}")
    return queue


def test_jobs_take_turns_and_each_keeps_its_order() -> None:
    """A quiet job's request is among the first, whatever a noisy one has sent before it."""
    queue = filled(1000, ("noisy", 10), ("noisy", 10), ("noisy", 10), ("quiet", 1), ("other", 10))
    assert queue.take(35) == ["noisy1", "quiet1", "other1", "noisy2"]
    assert queue.take(35) == ["noisy3"]
    assert not queue


def test_the_turn_goes_on_where_the_last_group_ended() -> None:
    """A job that did not fit is the first of the next group."""
    queue = filled(1000, ("a", 10), ("a", 10), ("b", 10), ("c", 10))
    assert queue.take(20) == ["a1", "b1"]
    assert queue.take(20) == ["c1", "a2"]


def test_a_request_over_the_bound_of_a_group_is_a_group_of_its_own() -> None:
    """It is not left waiting for ever, and it takes no other with it."""
    queue = filled(1000, ("a", 10), ("b", 200), ("c", 10))
    assert [queue.take(20) for _ in range(3)] == [["a1"], ["b1"], ["c1"]]
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
