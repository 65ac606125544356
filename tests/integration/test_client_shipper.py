"""The shipper over a real connection, with the time in the test's hands: a week away, and every kind of refusal."""

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from diagnoser.client.backlog import LINGER_SECONDS, Backlog
from diagnoser.client.launch import Launch
from diagnoser.client.service import Service, TokenSource
from diagnoser.client.shipper import LONGEST_PAUSE, REFUSED_PAUSE, Shipper
from tests.ports import free_port

LINE = b"iteration %d | lm loss 2.31 | grad norm 0.9\n"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Answers(BaseHTTPRequestHandler):
    """The next status of the script, else 204; it keeps what it accepts."""

    protocol_version = "HTTP/1.1"
    script: list[int]
    lines: dict[int, bytes]
    events: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.script.pop(0) if self.script else 204
        if status == 204 and self.path.startswith("/api/v1/logs"):
            text = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            first = int(parse_qs(urlsplit(self.path).query)["offset"][0])
            self.lines.update(enumerate(text.splitlines(keepends=True), first))
        elif status == 204:
            self.events.append(json.loads(body))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if status in (429, 503):
            self.send_header("Retry-After", "7")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def answers() -> type[Answers]:
    return type("Scripted", (Answers,), {"script": [], "lines": {}, "events": []})


@pytest.fixture
def served(port: int, answers: type[Answers]) -> Iterator[type[Answers]]:
    with ThreadingHTTPServer(("127.0.0.1", port), answers) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield answers
        server.shutdown()


class Run:
    """A shipper that is asked for its next step whenever the test says."""

    def __init__(self, port: int, folder: Path) -> None:
        self.clock, self.told = Clock(), list[str]()
        self.backlog = Backlog(self.clock, str(folder), memory_bytes=1 << 20, spill_bytes=1 << 19, disk_bytes=1 << 20)
        service = Service(f"http://127.0.0.1:{port}", TokenSource())
        self.shipper = Shipper(service, self.backlog, Launch("j", 1), self.told.append, self.clock, self.clock)
        self.added = 0

    def print_lines(self, count: int) -> None:
        for _ in range(count):
            self.backlog.add("stdout", LINE % self.added)
            self.added += 1

    def pass_seconds(self, seconds: float) -> list[float]:
        """All steps that fall into that time; what each said to wait."""
        waits, until = list[float](), self.clock.now + seconds
        while self.clock.now < until:
            waits.append(self.shipper.step())
            while self.backlog.spill():
                pass
            self.clock.now += max(waits[-1], 0.01)
        return waits

    def close(self) -> None:
        self.shipper.close()
        self.backlog.close()


@pytest.fixture
def run(port: int, tmp_path: Path) -> Iterator[Run]:
    made = Run(port, tmp_path)
    yield made
    made.close()


def test_a_week_without_the_service(run: Run, port: int, answers: type[Answers]) -> None:
    """Tries become rare, one line is told, memory and spool stay within their bounds, and what was kept arrives."""
    for hour in range(7 * 24):
        run.print_lines(2_000)
        waits = run.pass_seconds(3600.0)
        memory, disk = run.backlog.held_bytes
        assert (memory <= 2 << 20, disk <= 1 << 20) == (True, True)
        assert hour == 0 or min(waits) >= 0.7 * LONGEST_PAUSE
    assert len(run.told) == 1
    with ThreadingHTTPServer(("127.0.0.1", port), answers) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        run.pass_seconds(120.0)
        run.shipper.finish({"kind": "exit", "code": 1}, 60.0)
        run.pass_seconds(60.0)
        server.shutdown()
    assert answers.events[0]["kind"] == "started"
    assert answers.events[0]["time"] == 1_000.0
    assert answers.events[-1] == {"attempt": 1, "kind": "exit", "code": 1}
    assert len(answers.lines) == run.added - run.backlog.dropped
    assert all(text == LINE % number for number, text in answers.lines.items())


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_what_passes_is_sent_again(run: Run, served: type[Answers], status: int) -> None:
    """Each line once, after the time that the service asks for."""
    run.print_lines(10)
    run.clock.now += LINGER_SECONDS
    run.shipper.step()  # it begins, and has sent its lines
    run.print_lines(10)
    served.script += [status, status]
    waits = run.pass_seconds(60.0)
    assert max(waits) >= (0.7 * 7 if status in (429, 503) else 0.7)
    assert sorted(served.lines) == list(range(20))
    assert run.shipper.failure == ""


def test_a_refused_token_is_asked_about_rarely(run: Run, served: type[Answers]) -> None:
    """Somebody has to do something first; then everything arrives."""
    served.script += [401, 403]
    run.print_lines(10)
    waits = run.pass_seconds(1.0)
    assert waits[0] >= 0.7 * REFUSED_PAUSE
    assert "refuses the token" in run.told[0]
    run.pass_seconds(4 * REFUSED_PAUSE)
    assert (len(served.lines), len(run.told)) == (10, 1)


def test_lines_that_will_never_be_taken_hold_up_no_others(run: Run, served: type[Answers]) -> None:
    """400 means that no repetition helps: they are told once."""
    run.shipper.step()
    served.script += [400]
    run.print_lines(5)
    run.pass_seconds(2.0)
    run.print_lines(5)
    run.pass_seconds(2.0)
    assert (sorted(served.lines), len(run.told)) == (list(range(5, 10)), 1)


def test_the_last_lines_go_first_when_a_run_has_ended(run: Run, served: type[Answers]) -> None:
    """The end is reported after the lines, or when their time is up, whichever comes first."""
    run.shipper.step()
    run.print_lines(40_000)
    run.shipper.finish({"kind": "exit", "code": 1}, 1.0)
    run.shipper.step()
    assert max(served.lines) == run.added - 1
    assert not run.shipper.ended.is_set()
    run.clock.now += 2.0
    run.shipper.step()
    assert run.shipper.ended.is_set()
    assert run.backlog.waiting > 0
    run.pass_seconds(5.0)
    assert run.backlog.waiting == 0
