"""What a person is told about lines without a place does give them one."""

import pytest

from diagnoser.ingest import RecordDefaults
from diagnoser.ingest.batch import Place, Unattributed
from diagnoser.ingest.mapping import DEFAULT, load
from diagnoser.ingest.mapping_hints import mapping_hint
from diagnoser.model import UnplacedReason


@pytest.mark.parametrize(
    ("labels", "job"),
    [
        ({"app": "web", "namespace": "shop"}, "web"),
        ({"level": "info", "host": "gpu-1", "experiment_id": "exp-7", "app": "trainer"}, "exp-7"),
        ({"job": "team/llm"}, "llm"),
        ({"container": "a b", "unit": "web.service"}, "web.service"),
        ({"log path": "/logs/run 7/out.log"}, "out.log"),
        ({'a "quoted" name': "web"}, "web"),
    ],
)
def test_the_proposed_lines_place_what_came(labels: dict[str, str], job: str) -> None:
    """They are a whole mapping file, and with it the labels have a job."""
    received = tuple(labels.items())
    unplaced = DEFAULT.attribute(received, RecordDefaults())
    assert isinstance(unplaced, Unattributed)
    proposed = mapping_hint(received, unplaced.reason, "loki")
    where = load("site.yaml", proposed.mapping_lines).attribute(received, RecordDefaults())
    assert isinstance(where, Place)
    assert where.target.job == job


@pytest.mark.parametrize("labels", [{}, {"level": "info"}, {"host": "gpu-1"}, {"{name}": "web"}, {"app": "///"}])
def test_nothing_is_proposed_that_helps_nothing(labels: dict[str, str]) -> None:
    """Where no label tells jobs apart, only the shipper can."""
    proposed = mapping_hint(tuple(labels.items()), UnplacedReason.NO_JOB, "otlp")
    assert proposed.mapping_lines == ""
    assert "diagnoser.job" in proposed.setting


def test_a_name_of_ours_with_an_unusable_value_is_for_the_shipper_to_mend() -> None:
    """It wins over every mapping, so no line of one is proposed."""
    assert mapping_hint((("diagnoser.job", "a b"),), UnplacedReason.NOT_A_JOB_ID, "kafka").mapping_lines == ""
    assert "rank" in mapping_hint((("diagnoser.rank", "x"),), UnplacedReason.BAD_RANK, "kafka").setting


@pytest.mark.parametrize("reason", UnplacedReason)
@pytest.mark.parametrize("protocol", ["text", "ndjson", "json", "loki-json", "otlp", "kafka", "of another version"])
def test_every_reason_has_advice(reason: UnplacedReason, protocol: str) -> None:
    """No person is left with the fault alone."""
    assert mapping_hint((), reason, protocol).setting
