"""Lines that belong to no job, on their way to the sink."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from diagnoser.ingest import RecordDefaults, unattributed
from diagnoser.ingest.batch import Batch, Labels, Unattributed
from diagnoser.ingest.unattributed import UnattributedStreams
from diagnoser.model import UnplacedReason, UnplacedStream
from diagnoser.observability.metrics import Metrics
from diagnoser.redaction.redact import redact
from tests.in_memory import RecentUnplaced

SENDER = RecordDefaults(cluster="east", sender="shipper")


def batch(*labels: Labels, lines: int = 1, sample: str = "a") -> Batch:
    made = Batch()
    for one in labels:
        made.leave_out(Unattributed(UnplacedReason.NO_JOB, "no job", one), lines, sample)
    return made


def streams_of(sink: RecentUnplaced) -> tuple[UnattributedStreams, Metrics]:
    metrics = Metrics(CollectorRegistry())
    return UnattributedStreams(sink.record_unplaced, redact, metrics), metrics


async def test_a_stream_is_handed_on_once_with_all_of_its_lines() -> None:
    """However many requests it came in; who sent it, and by which protocol, tells streams apart."""
    sink = RecentUnplaced()
    streams, metrics = streams_of(sink)
    for time in (1.0, 2.0):
        streams.note(batch((("app", "web"),), lines=3), "loki", SENDER, time)
    streams.note(batch((("app", "web"),)), "otlp", SENDER, 3.0)
    await streams.flush()
    await streams.flush()
    first = UnplacedStream((("app", "web"),), UnplacedReason.NO_JOB, "no job", "loki", "a", 6, "shipper", "east", 2.0)
    assert [stream.lines for stream in sink.streams] == [6, 1]
    assert sink.streams[0] == first
    assert metrics.unplaced_lines.labels(UnplacedReason.NO_JOB)._value.get() == 7


async def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that makes up labels fills no memory: further streams are only counted."""
    monkeypatch.setattr(unattributed, "STREAMS", 3)
    sink = RecentUnplaced()
    streams, metrics = streams_of(sink)
    streams.note(batch(*((("app", str(number)),) for number in range(9))), "loki", SENDER, 1.0)
    await streams.flush()
    assert len(sink.streams) == 3
    assert metrics.unplaced_lines.labels(UnplacedReason.NO_JOB)._value.get() == 9


async def test_secrets_and_long_values_are_not_kept() -> None:
    """Labels and sample are cut and redacted before they are shown to anybody."""
    sink = RecentUnplaced()
    streams, _ = streams_of(sink)
    labels = (("url", "http://x/?password=hunter2hunter2"), ("long", "v" * 999), ("api_key", "hunter2hunter2x9"))
    streams.note(batch(labels, sample="\0password=hunter2hunter2 " + "x" * 5000), "loki", SENDER, 1.0)
    await streams.flush()
    (stream,) = sink.streams
    assert "hunter2" not in str(stream)
    assert [name for name, _ in stream.labels] == ["url", "long", "api_key"]
    assert "\0" not in stream.sample
    assert (len(stream.labels[1][1]), len(stream.sample)) == (256, 1000)


async def test_the_sink_in_memory_keeps_the_newest() -> None:
    """Streams of equal labels are one, and the oldest go first."""
    sink = RecentUnplaced(limit=2)
    for number in (1, 2, 1, 3):
        made = UnplacedStream((("app", str(number)),), UnplacedReason.NO_JOB, "", "loki", "", 1, "s", "", float(number))
        await sink.record_unplaced([made])
    assert [(stream.labels[0][1], stream.lines) for stream in sink.streams] == [("1", 2), ("3", 1)]


async def test_what_waits_at_the_end_is_handed_on() -> None:
    """A process that stops loses nothing of it."""
    sink = RecentUnplaced()
    streams, _ = streams_of(sink)
    task = asyncio.create_task(streams.run())
    await asyncio.sleep(0)
    streams.note(batch((("app", "web"),)), "loki", SENDER, 1.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(sink.streams) == 1
