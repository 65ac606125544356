"""Flight-recorder dumps of every format become operations and progress."""

import random
from typing import Any

import pytest

from diagnoser.hang import flight_recorder
from diagnoser.hang.flight_recorder import DumpReader, GroupProgress
from diagnoser.model.errors import BadInput
from tests.hang_dumps import dump, entry, written

PAIR = {"0": (0, 1, 2, 3), "7": (1, 3)}


@pytest.mark.parametrize("as_json", [False, True])
def test_pickle_and_json_say_the_same(as_json: bool) -> None:
    """Operations in their order, with group, size and the program's own frame."""
    content = dump(PAIR, [entry("7", 5, order=2), entry("0", 9, order=1, done=True)])
    parsed = DumpReader().read(written(content, as_json=as_json), 1)
    assert [(o.group.ranks, o.sequence, o.done, o.sizes, o.frame) for o in parsed.operations] == [
        ((0, 1, 2, 3), 9, True, "[64]", "step (/code/train.py:88)"),
        ((1, 3), 5, False, "[64]", "step (/code/train.py:88)"),
    ]
    assert parsed.progress is not None
    assert {group.ranks: progress for group, progress in parsed.progress.items()} == {
        (0, 1, 2, 3): GroupProgress(9, 9),
        (1, 3): GroupProgress(5, -1),
    }


def test_a_receive_names_its_peer_by_the_ranks_of_the_group() -> None:
    """``recv 1<-0`` within [1, 3] waits for rank 1."""
    parsed = DumpReader().read(written(dump(PAIR, [entry("7", 4, order=0, name="nccl:recv 1<-0")])), 3)
    (operation,) = parsed.operations
    assert (operation.name, operation.peer, operation.sends, operation.sequence) == ("nccl:recv", 1, False, 4)


def test_status_counts_for_groups_without_an_entry() -> None:
    """Its numbers are those of the rank's groups in the order of their names, as long as there are as many."""
    status = {
        "0": {"last_enqueued_collective": 40, "last_completed_collective": 40},
        "1": {"last_enqueued_collective": 12, "last_completed_collective": 11},
    }
    parsed = DumpReader().read(written(dump(PAIR, [], pg_status=status)), 1)
    assert parsed.progress is not None
    assert {group.ranks: (p.enqueued, p.completed) for group, p in parsed.progress.items()} == {
        (0, 1, 2, 3): (40, 40),
        (1, 3): (12, 11),
    }


def test_the_first_formats_are_read() -> None:
    """One sequence number for all, the group's name alone."""
    old = entry("0", 0, order=3)
    del old["process_group"], old["collective_seq_id"], old["is_p2p"]
    parsed = DumpReader().read(written(dump(PAIR, [old | {"pg_name": "0", "seq_id": 8}], version="2.0")), 0)
    assert [(o.group.ranks, o.sequence) for o in parsed.operations] == [((0, 1, 2, 3), 8)]


def test_a_receive_of_the_first_formats_is_known_by_its_name() -> None:
    """They did not say what is point-to-point."""
    old = entry("7", 4, order=0, name="nccl:recv 1<-0")
    del old["is_p2p"]
    (operation,) = DumpReader().read(written(dump(PAIR, [old], version="2.1")), 3).operations
    assert (operation.peer, operation.is_collective) == (1, False)


def test_what_long_lists_of_ranks_may_cost_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One list that many groups name is refused: a few bytes each would be long work."""
    monkeypatch.setattr(flight_recorder, "MEMBERS_MAX", 10_000)
    ranks = str(list(range(1_000)))
    groups = {str(number): {"name": str(number), "desc": str(number), "ranks": ranks} for number in range(11)}
    with pytest.raises(BadInput, match="ranks together"):
        DumpReader().read(written({"pg_config": groups, "entries": []}), 0)


@pytest.mark.parametrize(
    ("name", "rank"),
    [("_dump_12", 12), ("nccl_trace_rank_3", 3), ("fr_7.json", 7), ("rank12.pickle", 12), ("notes.txt", -1), ("", -1)],
)
def test_a_files_name_ends_in_its_rank(name: str, rank: int) -> None:
    """The dump itself does not say whose it is."""
    assert flight_recorder.rank_of_file(name) == rank


def test_a_dump_of_nonsense_is_refused_or_empty() -> None:
    """Every value replaced by one of another kind, one by one: never an error of ours."""
    dice = random.Random(3)
    wrong: list[Any] = [None, 5, "x", [], {}, [[[]]], {"a": 1}, -1, 10**30, True, ["0"], {"ranks": 5}]
    for _ in range(3_000):
        content = dump(PAIR, [entry("7", 5, order=2), entry("7", 4, order=0, name="nccl:recv 1<-0")])
        place = dice.choice([content, *content["entries"], *content["pg_config"].values()])
        place[dice.choice(list(place))] = dice.choice(wrong)
        parsed = DumpReader().read(written(content), 1)
        assert len(parsed.operations) <= 2
    with pytest.raises(BadInput, match="no flight-recorder dump"):
        DumpReader().read(written({"a": 1}), 0)
