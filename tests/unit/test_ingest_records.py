"""Where records go that come one after another."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnoser.ingest.batch import RecordDefaults, Unattributed
from diagnoser.ingest.mapping import DEFAULT
from diagnoser.ingest.ndjson import parse_ndjson
from diagnoser.ingest.records import RecordPlaces

NOW = 1_800_000_000.0
HOSTS = st.sampled_from(["gpu-0", {"name": "gpu-0"}, {"name": "gpu-1", "os": {"kernel": "6.1"}}, ["gpu-0"], None])
PODS = st.sampled_from(
    [{"pod_name": "a-0", "labels": {"job-name": "a"}}, {"pod_name": "a-1", "labels": {"job-name": "a"}}, "pod", {}]
)
RECORDS = st.fixed_dictionaries(
    {"message": st.sampled_from(["step 1", "step 2"])},
    optional={
        "job": st.sampled_from(["a", "b", ["a"], None]),
        "rank": st.sampled_from([0, 1, "1", -1]),
        "host": HOSTS,
        "kubernetes": PODS,
        "level": st.sampled_from(["INFO", "ERROR"]),
    },
)


@given(st.lists(RECORDS, min_size=2, max_size=12))
def test_a_record_goes_where_it_would_go_alone(records: list[dict[str, Any]]) -> None:
    """Whatever came before it: the same words with the same keys, others, or what cannot be used."""
    together = RecordPlaces(RecordDefaults(), DEFAULT)
    assert [where(together, record) for record in records] == [
        where(RecordPlaces(RecordDefaults(), DEFAULT), record) for record in records
    ]


def where(places: RecordPlaces, record: dict[str, Any]) -> Any:
    placed = places.of(record)
    return placed if isinstance(placed, Unattributed) else placed[0]


@pytest.mark.parametrize(
    ("source", "line"), [("kernel", b"process '/a\\x0aNVRM: x' started"), ("syslog", b"process '/a\nNVRM: x' started")]
)
def test_a_record_of_the_kernels_is_one_line(source: str, line: bytes) -> None:
    """A path may hold a line feed, behind which another message would seem to begin."""
    record = {"message": "process '/a\nNVRM: x' started", "source": source, "node": "gpu-0"}
    batch = parse_ndjson(json.dumps(record).encode(), RecordDefaults(vouched=True), NOW)
    ((block,),) = batch.blocks.values()
    assert block.data == line


def test_what_journalctl_prints_as_json_is_read() -> None:
    """Message, time and host stand under journald's own names; a byte string, as it prints what is no text, is not."""
    entry = {
        "MESSAGE": "NVRM: x",
        "_TRANSPORT": "kernel",
        "SYSLOG_FACILITY": "0",
        "_HOSTNAME": "gpu-0",
        "__REALTIME_TIMESTAMP": "1772362800000000",
    }
    batch = parse_ndjson(json.dumps(entry).encode(), RecordDefaults(vouched=True), NOW)
    ((block,),) = batch.blocks.values()
    assert (block.stream.source, block.stream.node, block.times) == ("kernel", "gpu-0", (1_772_362_800.0,))
    assert parse_ndjson(json.dumps({**entry, "MESSAGE": [1, 2]}).encode(), RecordDefaults(), NOW).rejected == 1
