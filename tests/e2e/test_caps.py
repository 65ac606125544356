"""What the compressor could not hold is told: at /metrics, on the diagnosis, and never by losing the cause."""

import random
from pathlib import Path

import httpx

from tests.e2e.service import diagnosis_of, service, until

_IN_COMMIT = 'diagnoser_compressor_limit_reached_total{limit="shapes",stage="commit"}'


def noise(count: int) -> list[bytes]:
    """Lines that have nothing in common."""
    rng = random.Random(7)
    return [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz /:", k=40)) + b"\n" for _ in range(count)]


def counters(client: httpx.Client) -> dict[str, str]:
    rows = client.get("/metrics").text.splitlines()
    return dict(row.rsplit(" ", 1) for row in rows if row[:1] != "#")


def test_caps_and_cuts_are_counted(tmp_path: Path) -> None:
    """A log of ever new lines, a line of 1 MB and a painted-over bar: the counters say so, the verdict stands."""
    bar = b"".join(b"\r %2d%%|##   | %d/90 [00:01<00:09,  9.00it/s]" % (n, n) for n in range(90)) + b"\n"
    cause = [b"Traceback (most recent call last):\n", b'  File "t.py", line 1, in f\n', b"KeyError: 'width'\n"]
    lines = [*noise(12_000), b"x" * 1_000_000 + b"\n", bar, *cause]
    with service(tmp_path) as running:
        client = running.start()
        text = {"content-type": "text/plain"}
        client.post("/api/v1/logs?job=j&offset=0", content=b"".join(lines), headers=text).raise_for_status()
        client.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 1}).raise_for_status()
        found = diagnosis_of(client, lines=len(lines))
        until(lambda: float(counters(client)[_IN_COMMIT]) >= 1, "what compression left out is counted behind the lines")
        metrics = counters(client)
        assert running.stop() == 0
    assert found["type"] == "key_error"
    assert "shapes" in found["left_out"]["caps"]
    assert "stdout prints about" in found["left_out"]["why"]
    assert "painted over" in found["left_out"]["why"]
    for of in ("commit", "verdict"):
        assert float(metrics[f'diagnoser_compressor_limit_reached_total{{limit="shapes",stage="{of}"}}']) >= 1
        assert float(metrics[f'diagnoser_compressor_limit_reached_total{{limit="nodes",stage="{of}"}}']) == 0
    assert float(metrics["diagnoser_compressor_truncated_lines_total"]) == 1
    assert float(metrics['diagnoser_compressor_truncated_bytes_total{cause="line_too_long"}']) > 990_000
    assert float(metrics['diagnoser_compressor_truncated_bytes_total{cause="carriage_return"}']) > 3_000
    assert float(metrics['diagnoser_compressor_limit{limit="shapes"}']) == 4096
    assert float(metrics["diagnoser_compressor_cached_templates"]) > 0
