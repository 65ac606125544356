"""The whole service with an archive: what a job printed can be read line by line after it was compressed."""

import subprocess
from pathlib import Path

from tests import preloaded
from tests.e2e.service import service, until

LINES = [f"step {number} loss 2.{number % 997:03} tokens/s {number * 7 % 10_007}" for number in range(1, 60_001)]
FAILURE = "RuntimeError: CUDA error: an illegal memory access was encountered"


def test_lines_are_there_after_they_are_compressed(tmp_path: Path) -> None:
    """A large request is stored as it came, archived and compressed; API, command and page lead to its lines."""
    with service(tmp_path, DIAGNOSER_ARCHIVE=f"file://{tmp_path}/archive") as here:
        client = here.start()
        body = "\n".join([*LINES, FAILURE, ""]).encode()
        headers = {"content-type": "text/plain"}
        client.post("/api/v1/logs?job=j&rank=3", content=body, headers=headers).raise_for_status()
        until(lambda: list((tmp_path / "archive").glob("j/1/*.zst")), "the lines are archived")
        until(lambda: "diagnoser_archived_bytes_total 0.0" not in client.get("/metrics").text, "they are compressed")
        window = client.get("/api/v1/jobs/j/attempts/1/lines", params={"from": 59_990}).json()
        assert [line["text"] for line in window["lines"]] == [*LINES[59_989:], FAILURE]
        assert window["compressed"] == []
        matches = client.get("/api/v1/jobs/j/attempts/1/lines/search", params={"q": "step 31415 "}).json()
        assert [(item["number"], item["stream"]["rank"]) for item in matches["items"]] == [(31_415, 3)]
        assert (matches["searched"], matches["total"], matches["next"]) == (60_001, 60_001, None)
        command = [str(preloaded.program_folder() / "diagnoser"), "logs", "j", "--url", here.url]
        printed = subprocess.run(command, capture_output=True, check=True)
        assert (printed.stdout, printed.stderr) == (body, b"")
        client.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 1}).raise_for_status()
        until(lambda: client.get("/api/v1/diagnoses", params={"job": "j"}).json()["items"], "the diagnosis")
        made = client.get("/api/v1/diagnoses", params={"job": "j"}).json()["items"][0]["id"]
        page = client.get(f"/diagnoses/{made}").text
        link = page.partition('<a href="/api/v1/jobs/j/attempts/1/lines')[2].partition('"')[0].replace("&amp;", "&")
        shown = client.get(f"/api/v1/jobs/j/attempts/1/lines{link}").json()
        assert FAILURE in [line["text"] for line in shown["lines"]]
