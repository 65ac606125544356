"""A run that falls silent, on the real process: nobody reports anything, and still it is looked at."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx

from tests.e2e.service import diagnosis_of, service, until

START = datetime(2026, 3, 1, 10, 0, 0, tzinfo=UTC)
TEXT = {"Content-Type": "text/plain"}


def steps(first: int, last: int, at: int = 0, every: int = 1) -> str:
    """Steps that take ``every`` seconds; ``at``: seconds after the start of the run."""
    return "".join(
        f"[{START + timedelta(seconds=at + every * (n - first)):%Y-%m-%d %H:%M:%S}] "
        f"iteration {n:8d}/    9000 | lm loss: {9 - n / 100:.4f} |\n"
        for n in range(first, last)
    )


def send(client: httpx.Client, job: str, text: str) -> None:
    client.post("/api/v1/logs", params={"job": job}, content=text.encode(), headers=TEXT).raise_for_status()


def test_a_run_that_falls_silent_is_called_hung_and_may_go_on(tmp_path: Path) -> None:
    """Steps took a second, for six minutes none was made, then not even a word: hung, with the stage and the numbers.
    A run that fell silent right after a step is left alone. When the first one goes on and ends well, it completed."""
    health = f"[{START + timedelta(seconds=420):%Y-%m-%d %H:%M:%S}] health: 8 of 8 ranks answer\n"
    with service(tmp_path, DIAGNOSER_HANG_CHECK_IDLE_SECONDS="1") as process:
        client = process.start()
        send(client, "calm", steps(1, 60, every=60))  # ten minutes pass before this one is late
        send(client, "stuck", steps(1, 60) + health)
        found = diagnosis_of(client, "stuck", lines=60)
        assert (found["outcome"], found["type"], found["root_cause"]) == ("hung", "unknown", None)
        assert found["decided_by"] == "heuristic:no_progress"
        assert any("at stage train (a step takes 1 s)" in note for note in found["notes"]), found["notes"]
        assert found["recovery"]["action"] != "cordon_and_resubmit"
        assert client.get("/api/v1/diagnoses", params={"job": "calm"}).json()["items"] == []
        send(client, "stuck", steps(60, 90, at=480) + "[exiting program] training completed\n")
        client.post("/api/v1/jobs/stuck/events", json={"kind": "exit", "code": 0}).raise_for_status()
        until(lambda: diagnosis_of(client, "stuck")["outcome"] == "completed", "the run that went on has completed")
