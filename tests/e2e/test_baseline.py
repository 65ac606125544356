"""The baseline of a job family, through the real service."""

from pathlib import Path
from typing import Any

import httpx

from tests.e2e.service import diagnosis_of, service, until

ROUTINE = b"loading the tokenizer of the mix\nmounted the shards of the mix\nwarming up the kernels\n"
NEW = b"falling back to the slow path of the sampler\n"


def attempt(client: httpx.Client, number: int, log: bytes, code: int) -> None:
    where: dict[str, str | int] = {"job": "sft", "attempt": number}
    client.post("/api/v1/logs", params=where, content=log, headers={"Content-Type": "text/plain"}).raise_for_status()
    told = {"attempt": number, "kind": "exit", "code": code}
    client.post("/api/v1/jobs/sft/events", json=told).raise_for_status()


def test_a_failed_run_is_held_against_the_clean_ones_without_any_setting(tmp_path: Path) -> None:
    """Three runs end well, the fourth does not: what only it printed is told; clean runs are no jobs."""
    with service(tmp_path) as process:
        client = process.start()
        for number in (1, 2, 3):
            attempt(client, number, ROUTINE, 0)
            assert wait(client, number)["new_lines"] == []
        attempt(client, 4, ROUTINE + NEW, 1)
        found = wait(client, 4)
        page = client.get(f"/diagnoses/{found['id']}").text
        jobs = {one["job"] for one in client.get("/api/v1/diagnoses").json()["items"]}
    told = [(one["line"], one["text"], one["why"]) for one in found["new_lines"]]
    assert told == [(4, NEW.decode().strip(), "in none of 3 clean runs")]
    assert "<details open><summary>1 line that clean runs" in page and NEW.decode().strip() in page
    assert jobs == {"sft"}


def wait(client: httpx.Client, number: int) -> dict[str, Any]:
    def mine() -> dict[str, Any] | None:
        found = diagnosis_of(client, "sft")
        return found if found["attempt"] == number else None

    found: dict[str, Any] = until(mine, f"diagnosis of attempt {number}")
    return found
