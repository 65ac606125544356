"""Who never arrived at a collective."""

from dataclasses import replace

from diagnoser.localize import collectives
from tests.rule_files import log


def watchdog(rank: int, enqueued: int, group: str = "0") -> str:
    return (
        f"[PG ID {group} PG GUID {group}(default_pg) Rank {rank}] Exception (either an error or timeout) detected by "
        f"watchdog at work: {enqueued}, last enqueued work: {enqueued}, last completed work: {enqueued - 1}"
    )


def test_monitored_barrier_names_them() -> None:
    """The barrier itself says which ranks did not arrive."""
    found = collectives.absent(log("[Rank 0]: Ranks 4, 6 failed to pass monitoredBarrier in 5000 ms"), {0: 0})
    assert found is not None and (found.ranks, found.line) == ((4, 6), 0)


def test_the_rank_behind_is_the_suspect() -> None:
    """The rank whose last enqueued work is lower than everybody else's held them up, though it prints last."""
    bodies = [watchdog(0, 71), watchdog(1, 71), watchdog(2, 71), watchdog(3, 70)]
    found = collectives.absent(log(*bodies), {0: 0, 1: 1, 2: 2, 3: 3})
    assert found is not None and (found.ranks, found.line) == ((3,), 3)


def test_what_was_completed_tells_where_all_enqueued_the_same() -> None:
    """Everybody enqueued the same collectives, one rank finished fewer of them: it is stuck, the others wait for it."""
    bodies = [watchdog(rank, 71) for rank in range(4)]
    bodies[2] = bodies[2].replace("completed work: 70", "completed work: 64")
    found = collectives.absent(log(*bodies), dict.fromkeys(range(4), 0))
    assert found is not None and (found.ranks, found.line) == ((2,), 2)
    assert "completed" in found.why


def test_groups_are_compared_by_themselves() -> None:
    """Sequence numbers of different process groups say nothing about each other."""
    bodies = [watchdog(0, 71), watchdog(1, 71), watchdog(0, 9, "3"), watchdog(1, 9, "3")]
    assert collectives.absent(log(*bodies), {0: 0, 1: 1}) is None


def test_the_silent_rank_is_the_suspect() -> None:
    """All ranks but one complain: the one without an error of its own is stopped or dead."""
    evidence = replace(log("x"), ranks=frozenset(range(4)))
    found = collectives.absent(evidence, {0: 0, 1: 0, 3: 0})
    assert found is not None and (found.ranks, found.line) == ((2,), -1)


def test_a_silent_majority_is_no_suspect() -> None:
    """Where most ranks print nothing their silence says nothing."""
    assert collectives.absent(replace(log("x"), ranks=frozenset(range(8))), {0: 0, 1: 0}) is None


def test_ranks_that_the_log_does_not_show_are_not_missed() -> None:
    """Of a cut log only ranks 0, 1 and 7 are there: that 0 does not complain says nothing."""
    assert collectives.absent(replace(log("x"), ranks=frozenset({0, 1, 7})), {1: 0, 7: 0}) is None


def test_the_silent_launcher_is_the_suspect() -> None:
    """All agents but one gave up at the rendezvous: the one that never spoke did not come."""
    found = collectives.absent_task({0: "a", 1: "b", 2: "c"}, {0, 1})
    assert found is not None and found.tasks == (2,)
    assert collectives.absent_task({0: "a", 1: "b", 2: "c"}, {0}) is None
    assert collectives.absent_task({0: "a", 1: "b"}, {0, 1}) is None
