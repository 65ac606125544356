"""Tables that PyTorch's debug server writes of all ranks."""

import pytest

from diagnoser.hang import report
from diagnoser.hang.debug_tables import read_tables
from diagnoser.hang.flight_recorder import DumpReader, rank_of_file
from diagnoser.model import EvidenceKind, RuntimeFile, SuspectKind
from diagnoser.model.errors import BadInput
from tests.hang_dumps import debug_tables_of

EVERY = (0, 1, 2, 3)
NAME = "fr_trace_20261122_174438.txt"


def suspects(text: str) -> list[tuple[int, SuspectKind]]:
    result = report.analyze(report.read([(NAME, text.encode())]))
    assert result.rejected == ()
    return [(suspect.rank, suspect.kind) for suspect in result.suspects]


def test_the_rank_that_has_not_called_the_last_collective_is_behind() -> None:
    """All others wait for it."""
    assert suspects(debug_tables_of([("all_reduce", EVERY, ""), ("barrier", (0, 1, 3), "")])) == [(2, "behind")]


def test_a_rank_that_did_not_answer_is_absent() -> None:
    """Torch lists it above the tables, and in no row."""
    text = debug_tables_of([("all_reduce", EVERY, ""), ("barrier", (0, 1, 3), "")], silent=2)
    assert suspects(text) == [(2, "absent")]


def test_a_rank_that_calls_another_collective_is_a_mismatch() -> None:
    """What it calls in place of the others' stands in the row's last column but one."""
    assert suspects(debug_tables_of([("all_reduce", EVERY, ""), ("barrier", EVERY, "broadcast")])) == [(1, "mismatch")]


def test_a_rank_whose_oldest_records_are_lost_is_not_behind() -> None:
    """It has called a later collective of the group, so it has called that one."""
    rows = [("all_reduce", (0, 1, 3), ""), ("all_reduce", EVERY, ""), ("barrier", EVERY, "")]
    assert suspects(debug_tables_of(rows)) == []


def test_an_operation_says_where_it_was_called() -> None:
    """Its number, sizes and frame are those of the row."""
    (first, *_) = read_tables(debug_tables_of([("all_reduce", EVERY, "")]).encode(), DumpReader())
    (operation,) = first.operations
    assert (operation.name, operation.sequence, operation.done) == ("nccl:all_reduce", 6, False)
    assert (operation.sizes, operation.frame) == ("[64]", "step (/code/train.py:88)")
    assert (operation.group.description, operation.group.ranks) == ("default_pg", EVERY)


def test_only_the_newest_snapshot_counts() -> None:
    """The debug server writes one each minute; other files stay."""
    names = ["fr_trace_20261122_174438.txt", "fr_trace_20261122_174338.txt", "stacks_20261122_174300.txt", "_dump_0"]
    assert report.current(names) == ["_dump_0", "fr_trace_20261122_174438.txt", "stacks_20261122_174300.txt"]


def test_tables_need_no_rank() -> None:
    """Neither their name nor who sends them says one."""
    data = debug_tables_of([("barrier", (0, 1, 3), "")]).encode()
    assert rank_of_file(NAME) == -1
    assert report.names_ranks(data)
    report.check(RuntimeFile(EvidenceKind.FLIGHT_RECORDER, data))


@pytest.mark.parametrize("text", ["=== FR Trace ===\n", "=== FR Trace ===\n--- Collectives ---\n  id\n   0\n"])
def test_tables_without_a_rank_are_refused(text: str) -> None:
    """Nothing can be said of them."""
    with pytest.raises(BadInput, match="no rank"):
        read_tables(text.encode(), DumpReader())
