"""What the client does when the service asks about the ranks of its command."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from diagnoser.client import evidence, evidence_runner
from diagnoser.client.evidence import LONGEST_PAUSE, REFUSED_PAUSE, SHORTEST_PAUSE, EvidenceResponder, Finding
from diagnoser.client.launch import Launch
from diagnoser.client.service import Answer, Unreachable
from diagnoser.hang.stacks import parse_stacks
from tests.e2e.service import until

ASKED = [{"id": "new", "since": 100.0}, {"id": "old", "since": 50.0}]
RECORDER = b"\x80\x04 a dump"


class Asking:
    """A service that answers each question with this, or not at all."""

    def __init__(self, status: int = 200, body: object = ASKED) -> None:
        self.status, self.body = status, body
        self.questions = 0
        self.posted: list[tuple[str, dict[str, object], bytes]] = []

    def get(self, path: str) -> Answer:
        assert path == "/jobs/a%2Fjob/attempts/3/evidence-requests"
        self.questions += 1
        if not self.status:
            raise Unreachable("timed out")
        return Answer(self.status, json.dumps(self.body).encode())

    def request(self, method: str, path: str, query: dict[str, object], body: bytes, headers: dict[str, str]) -> Answer:
        self.posted.append((f"{method} {path}", query, gzip.decompress(body)))
        return Answer(204, b"")


def shipper_of(attempt: int | None) -> Any:
    return SimpleNamespace(attempt=attempt, failure="", launch=Launch("a/job", node="n1"))


def responder(service: Asking, silence: float = 16.0, attempt: int | None = 3) -> EvidenceResponder:
    return EvidenceResponder(cast(Any, service), shipper_of(attempt), 7, "/stacks", lambda: 0.0, lambda: silence)


@pytest.mark.parametrize(("silence", "attempt"), [(7.0, 3), (100.0, None)])
def test_a_command_that_prints_or_is_not_known_yet_asks_nothing(silence: float, attempt: int | None) -> None:
    """A run that goes on costs the service no request."""
    service = Asking()
    assert responder(service, silence, attempt).step() > 0
    assert service.questions == 0


def test_a_request_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest, with all that was found; the run is judged with the last of it."""
    found = [Finding("stacks", 0, b"a"), Finding("stacks", 1, b"b"), Finding("activity", 0, b"c")]
    monkeypatch.setattr(evidence, "collect", lambda *given: iter(found if given == (7, 40.0, "/stacks") else ()))
    service = Asking()
    answering = responder(service)
    assert [answering.step(), answering.step()] == [LONGEST_PAUSE, SHORTEST_PAUSE]
    assert [(query["rank"], query.get("more"), data) for _, query, data in service.posted] == [
        (0, "true", b"a"),
        (1, "true", b"b"),
        (0, None, b"c"),
    ]
    assert {(path, query["node"]) for path, query, _ in service.posted} == {
        ("POST /jobs/a%2Fjob/attempts/3/evidence", "n1")
    }


@pytest.mark.parametrize(
    ("service", "pause"),
    [
        (Asking(404), REFUSED_PAUSE),
        (Asking(403), REFUSED_PAUSE),
        (Asking(200, {"id": "x"}), REFUSED_PAUSE),
        (Asking(0), LONGEST_PAUSE),
        (Asking(200, []), SHORTEST_PAUSE),
    ],
)
def test_a_service_that_does_not_answer_is_left_alone(service: Asking, pause: float) -> None:
    """An older one, one that refuses the token, one that is away; nothing is sent."""
    assert responder(service).step() == pause
    assert service.posted == []


START = """
import json, subprocess, sys
for variables in json.loads(sys.argv[1]):
    subprocess.Popen([sys.executable, "-c", sys.argv[2]], env=variables)
sys.stdin.read()
"""
SLEEP = "import time; time.sleep(600)"


def asleep(command: int) -> int:
    """How many ranks below a command sleep: each has started, and has done what it was to do before."""
    found = evidence_runner.ranks(evidence_runner.processes_below(command)).values()
    return [evidence_runner.place_of(rank.pid) for rank in found].count("hrtimer_nanosleep")


@contextmanager
def tree(*ranks: dict[str, str], code: str = SLEEP) -> Iterator[int]:
    """The process of a command that starts a process with each of these variables, and what each of them runs."""
    command = [sys.executable, "-c", START, json.dumps(ranks), code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as top:
        try:
            until(lambda: asleep(top.pid) == sum("RANK" in variables for variables in ranks), "they run")
            yield top.pid
        finally:
            os.killpg(top.pid, signal.SIGKILL)


def test_only_ranks_below_the_command_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a process without a rank, nor one that claims a rank elsewhere on the machine."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    ranks = [{"RANK": "0", "LOCAL_RANK": "0"}, {"RANK": "5", "LOCAL_RANK": "1"}, {"WANDB_MODE": "offline"}]
    with tree({"RANK": "1", "LOCAL_RANK": "0"}), tree(*ranks) as command:
        found = [finding for finding in evidence.collect(command, 0.0) if finding.kind == "activity"]
    assert [finding.rank for finding in found] == [0, 5]
    look = json.loads(found[1].data)["activity"]["5"]
    assert (look["cores"], look["place"]) == (0.0, "hrtimer_nanosleep")


def test_flight_recorders_are_found_by_the_variables_of_the_ranks(tmp_path: Path) -> None:
    """Those of the own ranks that were written since the silence began; no link is followed."""
    prefix = str(tmp_path / "dump_")
    for name in ("dump_0", "dump_1", "dump_2"):
        (tmp_path / name).write_bytes(RECORDER)
    (tmp_path / "dump_3").symlink_to(tmp_path / "dump_2")
    os.utime(tmp_path / "dump_1", (0, 0))
    ranks = [{"RANK": str(rank), "TORCH_FR_DUMP_TEMP_FILE": prefix} for rank in (0, 1, 3)]
    with tree(*ranks) as command:
        found = list(evidence.collect(command, time.time() - 60))
    assert [(one.rank, one.data) for one in found if one.kind == "flight-recorder"] == [(0, RECORDER)]


def test_a_process_with_the_number_of_one_that_ended_is_not_taken_for_it() -> None:
    """Nor is one that is gone."""
    with tree({"RANK": "0"}) as command:
        (rank,) = evidence_runner.ranks(evidence_runner.processes_below(command)).values()
        assert list(evidence_runner.usages({0: rank})) == [0]
        assert evidence_runner.usages({0: rank._replace(started=rank.started - 1), 1: rank._replace(pid=1 << 22)}) == {}


def test_a_stopped_process_is_seen_as_such() -> None:
    """Whoever stopped it, and wherever it stood."""
    with tree({"RANK": "0"}) as command:
        (rank,) = evidence_runner.ranks(evidence_runner.processes_below(command)).values()
        os.kill(rank.pid, signal.SIGSTOP)
        until(lambda: evidence_runner.place_of(rank.pid) == evidence_runner.STOPPED, "it is stopped")


OPENS = "import os; file = open(os.environ['DIAGNOSER_STACKS'] + '/' + str(os.getpid()), 'w')\n"
REGISTERS = "import faulthandler, signal; faulthandler.register(signal.SIGURG, file=file)\n"


@pytest.mark.parametrize(
    ("code", "answers"), [(OPENS + REGISTERS, True), (OPENS, False)], ids=["registered", "no handler"]
)
def test_a_rank_that_has_registered_for_it_writes_its_stack(tmp_path: Path, code: str, answers: bool) -> None:
    """Others are not signalled, and would not mind; who has opened no file is left alone as well."""
    with tree({"RANK": "0", "DIAGNOSER_STACKS": str(tmp_path)}, code=code + SLEEP) as command:
        (rank,) = evidence_runner.ranks(evidence_runner.processes_below(command)).values()
        assert evidence_runner.own_stack(rank, str(tmp_path / "elsewhere")) == b""
        stack = evidence_runner.own_stack(rank, str(tmp_path))
        assert evidence_runner.is_there(rank)
    assert (b"File " in stack) is answers
    if answers:
        assert parse_stacks(stack, 0).frames == ("<module> (<string>:3)",)


@pytest.mark.parametrize(
    ("ranks", "nodes", "sent"), [((), "1", {0, 12}), ((), "2", set()), ((12,), "2", {12})], ids=["alone", "two", "seen"]
)
def test_a_failed_command_leaves_dumps(tmp_path: Path, ranks: tuple[int, ...], nodes: str, sent: set[int]) -> None:
    """Of its own ranks, and of this launch: other nodes may write to the same folder."""
    for name in ("dump_0", "dump_12", "dump_x", "dump_3"):
        (tmp_path / name).write_bytes(RECORDER)
    os.utime(tmp_path / "dump_3", (0, 0))
    service, shipper = Asking(), shipper_of(3)
    environment = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "dump_"), "SLURM_JOB_NUM_NODES": nodes}
    evidence.send_left_dumps(cast(Any, service), shipper, ranks, environment, time.time() - 60)
    assert {query["rank"] for _, query, _ in service.posted} == sent
