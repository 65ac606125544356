"""The observer over a Slurm that answers from texts."""

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.observer import Observer
from diagnoser.agent.slurm import source
from diagnoser.agent.slurm.commands import CommandResult, Slurm
from diagnoser.agent.slurm.parsing import GONE, JobRecord, parse_account
from diagnoser.agent.slurm.source import SlurmSource
from diagnoser.agent.state_file import AgentState, JobCheckpoint, LogOffset
from diagnoser.client import log_file

NODES = "NodeName=n1 NodeAddr=n1 State=IDLE\n"


@dataclass
class Texts:
    """squeue: jobs that it lists. sacct: what it prints; None: there is no accounting."""

    squeue: list[dict[str, object]] = field(default_factory=list)
    sacct: str | None = None
    asked: list[str] = field(default_factory=list)

    async def run(self, words: Sequence[str], seconds: float) -> CommandResult:
        self.asked.append(words[0])
        if words[0] == "squeue":
            return CommandResult(tuple(words), 0, json.dumps({"jobs": self.squeue}))
        if words[0] == "sacct":
            return CommandResult(tuple(words), 1 if self.sacct is None else 0, self.sacct or "")
        return CommandResult(tuple(words), 0, NODES)


@dataclass
class Heard:
    """What the service is told: (path, body)."""

    said: list[tuple[str, str]] = field(default_factory=list)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.said.append((request.url.path.removeprefix("/api/v1"), request.content.decode()))
        return httpx.Response(204)


@pytest.mark.parametrize(
    ("sacct", "end"),
    [
        ("FAILED|3:0\n", {"kind": "exit", "attempt": 1, "reason": "FAILED", "code": 3}),
        ("CANCELLED by 1001|0:15\n", {"kind": "cancelled", "attempt": 1, "reason": "CANCELLED"}),
        ("NODE_FAIL|0:0\nCOMPLETED|0:0\n", {"kind": "exit", "attempt": 1, "reason": "COMPLETED", "code": 0}),
        ("", {"kind": "exit", "attempt": 1, "reason": GONE}),
        (None, {"kind": "exit", "attempt": 1, "reason": GONE}),
    ],
)
async def test_a_job_that_the_controller_has_forgotten_has_an_end(
    tmp_path: Path, sacct: str | None, end: dict[str, object]
) -> None:
    """By the accounting where there is one; the rest of its log is shipped first, and all of it once."""
    output = tmp_path / "7.log"
    output.write_text("step 1\n")
    row = {"job_id": 7, "job_state": "RUNNING", "nodes": "n1", "user_id": os.getuid(), "start_time": 100}
    texts = Texts([row | {"standard_output": str(output), "current_working_directory": "/"}], sacct)
    heard = Heard()
    transport = httpx.MockTransport(heard.answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://diagnoser.test") as client:
        state, api = AgentState(900.0), ApiClient(client)
        source = SlurmSource(api, Slurm(texts.run), "east", state, lambda: 1000.0)
        observer: Observer[JobRecord] = Observer(api, source, "east", tmp_path / "east.json", state)
        await observer.poll_once()
        output.write_text("step 1\nRuntimeError: late\n")
        texts.squeue = []
        await observer.poll_once()
        await observer.poll_once()
    last = heard.said[-2:]
    assert last[0] == ("/logs", "RuntimeError: late\n")
    assert (last[1][0], json.loads(last[1][1])) == ("/jobs/slurm-east-7/events", end)
    assert texts.asked.count("sacct") == 1


def test_an_account_that_cannot_be_read_says_nothing() -> None:
    """Neither a state that is none, nor a job that still runs by what was written last."""
    for text in ("", "\n", "RUNNING|0:0\n", "sacct: error\n", "FAILED|x:y\n"):
        assert parse_account(7, text).state == GONE


async def test_a_log_on_a_file_system_that_does_not_answer_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look goes on without it, and it is left alone for a while: events of all jobs waited for it for ever."""
    asked, gate = list[str](), threading.Event()

    def read(path: str, *_: object, **__: object) -> None:
        asked.append(path)
        gate.wait()

    monkeypatch.setattr(log_file, "read_chunk", read)
    monkeypatch.setattr(source, "STUCK_SECONDS", 0.0)
    http = httpx.AsyncClient(transport=httpx.MockTransport(Heard().answer), base_url="http://diagnoser.test")
    watched = SlurmSource(ApiClient(http), Slurm(Texts().run), "lab", AgentState(), lambda: 1000.0)
    for _ in range(3):
        job = JobRecord(7, "RUNNING", output="/dead/job.log")
        await watched.ship(job, JobCheckpoint("lab-7", 1, started=True), rest=False)
    gate.set()
    assert watched.stuck == {"/dead/job.log": 1000.0 + source.STUCK_PAUSE}
    assert len(asked) <= 1


async def test_a_job_that_is_renamed_keeps_its_log(tmp_path: Path) -> None:
    """Slurm shows ``%x`` of a running job with its newest name; the file is called by the one it was launched with."""
    sent = list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/logs"):
            sent.append(request.content.decode())
        return httpx.Response(204)

    output = tmp_path / "first-7.out"
    output.write_text("step 1\n")
    row = {"job_id": 7, "job_state": "RUNNING", "nodes": "n1", "user_id": os.getuid(), "start_time": 100}
    row |= {"standard_output": f"{tmp_path}/%x-%j.out", "name": "first"}
    texts = Texts([row])
    http = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://diagnoser.test")
    api, state = ApiClient(http), AgentState()
    watched = SlurmSource(api, Slurm(texts.run), "lab", state, lambda: 1000.0)
    observer: Observer[JobRecord] = Observer(api, watched, "lab", tmp_path / "lab.json", state)
    await observer.poll_once()
    texts.squeue = [row | {"name": "second"}]
    output.write_text("step 1\nKeyError: 'lr'\n")
    await observer.poll_once()
    assert "".join(sent) == output.read_text()


async def test_lines_of_a_log_that_tasks_of_an_array_share_are_sent_once(tmp_path: Path) -> None:
    """To the task that began first, until it has ended; the other is labelled, and gets only what comes later."""
    sent, shared = list[tuple[str, str]](), dict[str, str | None]()

    def answer(request: httpx.Request) -> httpx.Response:
        body = request.content.decode()
        if request.url.path.endswith("/logs"):
            sent.append((request.url.params["job"], body))
        if request.url.path.endswith("/jobs"):
            job = json.loads(body)
            shared[job["id"]] = job["labels"].get("log_shared_with")
        return httpx.Response(204)

    output = tmp_path / "train-10.out"
    output.write_text("step 1\n")
    row = {"job_state": "RUNNING", "nodes": "n1", "user_id": os.getuid(), "standard_output": str(output)}
    # The last task of an array to start has the number of the array, the lowest of all.
    tasks: list[dict[str, object]] = [
        row | {"job_id": 11, "start_time": 100},
        row | {"job_id": 10, "start_time": 200},
    ]
    texts = Texts(tasks)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://d.test") as client:
        state, api = AgentState(900.0), ApiClient(client)
        source = SlurmSource(api, Slurm(texts.run), "east", state, lambda: 1000.0)
        observer: Observer[JobRecord] = Observer(api, source, "east", tmp_path / "east.json", state)
        for line in ("step 2\n", "Traceback\n", "step 3\n"):
            await observer.poll_once()
            with output.open("a") as file:
                file.write(line)
            if line == "Traceback\n":
                texts.squeue[0] |= {"job_state": "FAILED"}
        await observer.poll_once()
    assert sent == [
        ("slurm-east-11", "step 1\n"),
        ("slurm-east-11", "step 2\n"),
        ("slurm-east-11", "Traceback\n"),
        ("slurm-east-10", "step 3\n"),
    ]
    assert shared == {"slurm-east-10": "job 11", "slurm-east-11": None}


async def test_an_agent_goes_on_where_an_older_version_stopped_reading() -> None:
    """That one knew logs by their job; read anew, the lines of earlier launches would count to the present one."""
    row = {"job_id": 7, "job_state": "RUNNING", "nodes": "n1", "user_id": 5, "standard_output": "/h/7.out"}
    state = AgentState(
        900.0, {"7": JobCheckpoint("slurm-east-7", 2, started=True)}, logs={"7": LogOffset(5, attempt=2)}
    )
    http = httpx.AsyncClient(transport=httpx.MockTransport(Heard().answer), base_url="http://diagnoser.test")
    await SlurmSource(ApiClient(http), Slurm(Texts([row]).run), "east", state, lambda: 1000.0).snapshot(state)
    assert state.logs == {"5:/h/7.out": LogOffset(5, job=7, attempt=2)}
