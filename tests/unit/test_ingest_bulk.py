"""Elasticsearch's bulk requests: what is written, and what each action is told."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnoser.ingest import RecordDefaults, Target
from diagnoser.ingest.mapping import DEFAULT
from diagnoser.ingest.protocols.elasticsearch import AT_ONCE, BulkBatch, parse_bulk
from diagnoser.model import Stream
from diagnoser.model.errors import TooLarge

NOW = 1_800_000_000.0
OF_JOB = RecordDefaults("llm")
CREATE = {"create": {"_index": "training"}}


def rows(*objects: object) -> bytes:
    return b"".join((row if isinstance(row, bytes) else orjson.dumps(row)) + b"\n" for row in objects)


def parse(body: bytes, defaults: RecordDefaults = OF_JOB) -> BulkBatch:
    return parse_bulk(body, defaults, NOW, DEFAULT, "of-path")


def items(batch: BulkBatch) -> list[tuple[str, int]]:
    """(verb, status) of each."""
    answer: dict[str, Any] = orjson.loads(batch.answer())
    assert answer["errors"] == any("error" in item[verb] for item in answer["items"] for verb in item)
    return [(verb, said["status"]) for item in answer["items"] for verb, said in item.items()]


def test_documents_of_filebeat_are_placed_by_what_is_nested_in_them() -> None:
    """Host, file and fields of its own; its offset tells nobody apart, and its time dates the line."""
    documents = [
        {
            "@timestamp": "2026-09-21T13:33:20.000Z",
            "log": {"offset": offset, "file": {"path": "/logs/slurm-77.out"}},
            "message": f"step {offset}",
            "host": {"name": "gpu-1"},
            "fields": {"rank": 3},
        }
        for offset in (0, 7)
    ]
    batch = parse(rows(CREATE, documents[0], CREATE, documents[1]), RecordDefaults())
    ((target, (block,)),) = batch.blocks.items()
    assert (target, block.stream, block.data) == (
        Target("slurm-77", None),
        Stream("stdout", "gpu-1", 3),
        b"step 0\nstep 7",
    )
    assert block.times == (1_789_997_600.0, 1_789_997_600.0)
    assert items(batch) == [("create", 201)] * 2


def test_each_action_has_its_own_answer_in_order() -> None:
    """What only adds is done; anything else, and anything broken, is refused alone."""
    body = rows(
        {"index": {"_id": "7"}}, {"message": "a"},
        {"delete": {"_id": "7"}},
        {"update": {"_id": "7"}}, {"doc": {"message": "b"}},
        b"{oops", {"message": "not an action's"},
        CREATE, b"{oops",
        CREATE, ["no object"],
        CREATE, {"level": "no text"},
        CREATE, {"message": "c", "job": "a/b"},
        CREATE, {"log": {"file": "f"}, "msg": "d"},
        CREATE,
    )  # fmt: skip
    batch = parse(body)
    assert items(batch) == [
        ("index", 201), ("delete", 400), ("update", 400), ("index", 400), ("create", 400), ("create", 400),
        ("create", 400), ("create", 200), ("create", 201), ("create", 400),
    ]  # fmt: skip
    assert [block.data for block in batch.blocks[Target("llm", None)]] == [b"a\nd"]
    assert batch.rejected == 7


def test_the_answer_names_index_and_id_as_they_were_given() -> None:
    """The index of the path where the action names none; and its first bytes are those that Fluent Bit looks for."""
    batch = parse(rows({"create": {}}, {"message": "a"}, {"index": {"_index": "i", "_id": "1"}}, {"message": "b"}))
    answer = batch.answer()
    assert [next(iter(item.values()))["_index"] for item in orjson.loads(answer)["items"]] == ["of-path", "i"]
    assert orjson.loads(answer)["items"][1]["index"]["_id"] == "1"
    assert b'"errors":false,"items":[' in answer


def test_a_document_of_no_job_is_no_error() -> None:
    """A site may send everything that it has; what is passed over is counted with what it said."""
    batch = parse(rows(CREATE, {"message": "a", "host": {"name": "web-1"}}), RecordDefaults())
    assert (items(batch), batch.rejected, batch.blocks) == ([("create", 200)], 0, {})
    ((unplaced, (count, sample)),) = batch.unplaced.items()
    assert (unplaced.labels, count) == ((("host.name", "web-1"),), 1)
    assert '"web-1"' in sample


def test_documents_of_a_job_of_somebody_else_are_refused_alone() -> None:
    """The sender hears of each which job that was."""
    batch = parse(rows(CREATE, {"message": "a"}, CREATE, {"message": "b", "job": "theirs"}))
    assert batch.drop(batch.of_jobs({"theirs": "it belongs to another cluster"}))
    assert items(batch) == [("create", 201), ("create", 400)]
    assert b"another cluster" in batch.answer()


def test_when_nothing_could_be_stored_every_item_says_so() -> None:
    """rsyslog looks at nothing else."""
    batch = parse(rows(CREATE, {"message": "a"}, CREATE, b"{oops"))
    answer = orjson.loads(batch.answer_failed(503, "try again"))
    assert answer["errors"] is True
    assert [item["create"]["status"] for item in answer["items"]] == [503, 503]


def test_a_bad_document_among_many_costs_itself_alone() -> None:
    """Documents are read many at once; the others of its lot are read all the same."""
    documents: list[object] = [{"message": str(number)} for number in range(3 * AT_ONCE)]
    documents[AT_ONCE + 1] = b"{oops"
    documents[AT_ONCE + 3] = b'{"message": "x"}, {"message": "y"}'
    batch = parse(rows(*(row for document in documents for row in (CREATE, document))))
    statuses = [status for _, status in items(batch)]
    assert [index for index, status in enumerate(statuses) if status != 201] == [AT_ONCE + 1, AT_ONCE + 3]


def test_too_many_actions_are_refused() -> None:
    """Before anything is built."""
    with pytest.raises(TooLarge):
        parse(b"{}\n" * 500_000)


PARTS = st.sampled_from(
    [rows(CREATE), rows({"message": "a\nb"}), rows({"delete": {}}), b"\n", b"{", b"}", b"[", b"null\n", b"\xff\n", b" "]
)  # fmt: skip


@given(st.lists(PARTS, max_size=30).map(b"".join))
def test_whatever_comes_every_line_is_accounted_for(body: bytes) -> None:
    """The answer is JSON, has an item for each action, and as many are written as it says."""
    batch = parse(body)
    written = sum(status == 201 for _, status in items(batch))
    assert sum(block.lines for blocks in batch.blocks.values() for block in blocks) >= written
    assert written + batch.rejected == len(batch.actions)
