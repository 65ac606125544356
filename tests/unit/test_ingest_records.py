"""Where records go that come one after another."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from diagnoser.ingest.batch import RecordDefaults, Unplaced
from diagnoser.ingest.mapping import DEFAULT
from diagnoser.ingest.records import RecordPlaces

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
    return placed if isinstance(placed, Unplaced) else placed[0]
