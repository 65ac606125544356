"""From many recorders to the ranks that hold up the others."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from diagnoser.hang import flight_recorder, wait_graph
from diagnoser.hang.flight_recorder import DumpReader
from diagnoser.hang.wait_graph import WaitGraph
from diagnoser.model import SuspectKind
from tests.corpus import CORPUS
from tests.hang_dumps import dump, entry, written

FIXTURES = CORPUS.parent / "fixtures" / "flight-recorder"
ALL = (0, 1, 2, 3)
GROUPS = {"0": ALL, "1": (0, 1), "2": (2, 3)}


def graph(
    entries: Mapping[int, Sequence[dict[str, Any]]], groups: Mapping[str, Sequence[int]] | None = None
) -> WaitGraph:
    own, reader = groups or GROUPS, DumpReader()
    return wait_graph.build(
        reader.read(written(dump({name: ranks for name, ranks in own.items() if rank in ranks}, operations)), rank)
        for rank, operations in entries.items()
    )


def suspects(result: WaitGraph) -> list[tuple[int, SuspectKind]]:
    return [(suspect.rank, suspect.kind) for suspect in result.suspects]


def test_the_rank_that_did_not_come_is_named() -> None:
    """Three stand in number 6, the fourth has done number 5 and called nothing since."""
    entries = {rank: [entry("0", 5, order=0, done=True), entry("0", 6, order=1)] for rank in (0, 1, 3)}
    result = graph(entries | {2: [entry("0", 5, order=0, done=True)]})
    assert suspects(result) == [(2, SuspectKind.BEHIND)]
    assert "3 ranks wait for it in nccl:all_reduce number 6" in result.suspects[0].why
    assert "train.py:88" in result.suspects[0].why
    assert result.waits == {rank: {2} for rank in (0, 1, 3)}


def test_who_waits_for_somebody_else_is_not_to_blame() -> None:
    """0 and 1 wait for 2 in the world's group, which waits for 3 in a group of two."""
    result = graph(
        {
            0: [entry("0", 6, order=1)],
            1: [entry("0", 6, order=1)],
            2: [entry("2", 9, order=1)],
            3: [entry("2", 8, order=0, done=True), entry("0", 5, order=1, done=True)],
        }
    )
    assert suspects(result) == [(3, SuspectKind.BEHIND)]
    assert result.suspects[0].score > 0.9


def test_a_rank_that_left_no_dump_is_suspected_where_nobody_else_can_be() -> None:
    """All others of its group stand in one operation."""
    result = graph({rank: [entry("0", 6, order=1)] for rank in (0, 1, 3)})
    assert (suspects(result), result.not_seen) == ([(2, SuspectKind.ABSENT)], (2,))


def test_a_missing_dump_alone_accuses_nobody() -> None:
    """Rank 2 is behind and has a dump: that rank 3 left none explains nothing."""
    entries = {0: [entry("0", 6, order=1)], 1: [entry("0", 6, order=1)], 2: [entry("0", 5, order=0, done=True)]}
    result = graph(entries)
    assert (suspects(result), result.not_seen) == ([(2, SuspectKind.BEHIND)], (3,))


def test_a_gpu_that_does_not_finish_what_others_have_is_stalled() -> None:
    """It has enqueued as much as its peer, which finished ten collectives more: those could not begin without it."""
    done = [entry("1", number, order=number, done=True) for number in range(20, 30)]
    open_ = [entry("1", number, order=number) for number in range(20, 30)]
    waits = {rank: [entry("0", 6, order=99)] for rank in (2, 3)}
    result = graph({0: [*done, entry("0", 6, order=99)], 1: open_} | waits)
    assert suspects(result) == [(1, SuspectKind.STALLED)]


def test_dumps_of_different_moments_make_nobody_stalled() -> None:
    """Rank 3 wrote its dump when the slow rank 2 had gone on: what 0 and 1 stood in before is no stall of theirs."""
    standing = [entry("0", 6, order=0, done=True), entry("0", 7, order=1)]
    later = [*(entry("0", number, order=number, done=True) for number in range(6, 12)), entry("2", 9, order=20)]
    result = graph({0: standing, 1: standing, 2: standing[:1], 3: later})
    assert suspects(result) == [(2, SuspectKind.BEHIND)]


def test_nobody_waits_for_what_a_rank_did_after_its_dump() -> None:
    """Rank 3 has finished with rank 2 what that had not called when it wrote its dump; rank 0 waits for rank 1."""
    called = [entry("1", 5, order=0, done=True)]
    later = [*(entry("2", number, order=number, done=True) for number in range(90, 105)), entry("2", 105, order=200)]
    early = [entry("2", 8, order=1, done=True)]
    result = graph({0: [*called, entry("1", 6, order=1)], 1: called, 2: early, 3: later})
    assert suspects(result) == [(1, SuspectKind.BEHIND)]


def test_another_collective_than_all_others_is_a_bug_of_the_script() -> None:
    """The one that calls it is named, with both calls; also where only the size differs."""
    entries = {rank: [entry("0", 6, order=1)] for rank in (0, 1, 3)}
    for wrong in (entry("0", 6, order=1, name="nccl:broadcast"), entry("0", 6, order=1, size=32)):
        result = graph(entries | {2: [wrong]})
        assert suspects(result) == [(2, SuspectKind.MISMATCH)]
        (mismatch,) = result.mismatches
        assert sorted(mismatch.variants.values()) == [(0, 1, 3), (2,)]


def test_two_groups_in_another_order_are_a_deadlock() -> None:
    """One rank begins with the second group: it waits there for those who wait for it in the first."""
    groups = {"0": ALL, "5": ALL}
    result = graph({rank: [entry("0", 6, order=1)] for rank in (0, 1, 3)} | {2: [entry("5", 3, order=1)]}, groups)
    assert suspects(result) == [(2, SuspectKind.DEADLOCK)]


def test_a_send_waits_for_its_peer() -> None:
    """Rank 0 sends to rank 1, which has called nothing; where rank 1 receives, the network stands still."""
    waiting = graph({0: [entry("1", 4, order=1, name="nccl:send 0->1")], 1: []})
    assert suspects(waiting) == [(1, SuspectKind.BEHIND)]
    met = graph(
        {0: [entry("1", 4, order=1, name="nccl:send 0->1")], 1: [entry("1", 9, order=1, name="nccl:recv 1<-0")]}
    )
    assert met.suspects == ()
    assert "network or a GPU" in met.notes[0]


def test_a_run_in_which_all_is_done_has_no_suspect() -> None:
    """Equal progress everywhere, and a dump of every rank."""
    result = graph({rank: [entry("0", 6, order=1, done=True)] for rank in ALL})
    assert (result.suspects, result.not_seen, result.groups) == ((), (), ())


@pytest.mark.skipif(not FIXTURES.is_dir(), reason="the flight-recorder dumps of ../shared/fixtures are absent")
@pytest.mark.parametrize(("folder", "ranks"), [("nccl_16_ranks", [12, 14]), ("gloo_4_ranks", [2])])
def test_real_dumps_name_the_ranks_that_were_made_to_fail(folder: str, ranks: list[int]) -> None:
    """Those and no other; also where any single dump of the others is missing."""
    reader = DumpReader()
    dumps = [
        reader.read(path.read_bytes(), flight_recorder.rank_of_file(path.name))
        for path in sorted(Path(FIXTURES / folder).glob("_dump_*"))
    ]
    assert [suspect.rank for suspect in wait_graph.build(dumps).suspects] == ranks
    for missing in (own.rank for own in dumps if own.rank not in ranks and len(dumps) > 4):
        some = wait_graph.build(own for own in dumps if own.rank != missing)
        assert sorted(suspect.rank for suspect in some.suspects) == ranks, missing


def test_a_thousand_ranks_are_looked_through_once_each() -> None:
    """The work grows with the ranks, not with their square: four times as many take less than twelve times as long."""

    def seconds(ranks: int) -> float:
        everyone = tuple(range(ranks))
        groups = {"0": everyone}
        content = {rank: written(dump(groups, [entry("0", 6, order=1)] if rank != 7 else [])) for rank in everyone}
        started, reader = time.process_time(), DumpReader()
        result = wait_graph.build(reader.read(data, rank) for rank, data in content.items())
        assert [suspect.rank for suspect in result.suspects] == [7]
        return time.process_time() - started

    small, large = min(seconds(64) for _ in range(3)), min(seconds(256) for _ in range(3))
    assert large < 12 * small
