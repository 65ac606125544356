"""`client.pyz run` against a real service: nothing of the command changes, and its diagnosis is printed."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.client import TOKENS, Client, events_of, stored_lines
from tests.e2e.service import DEMO_LOG, Service, service, until
from tests.ports import free_port

FAIL = f"cat {DEMO_LOG}; exit 1"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("service"), DIAGNOSER_EXIT_GRACE_SECONDS="0.5") as found:
        found.start()
        yield found


@pytest.fixture
def client(tmp_path: Path, running: Service) -> Client:
    return Client(tmp_path, running.url)


def stored(running: Service, job: str, lines: int) -> None:
    assert running.client is not None
    http = running.client
    until(lambda: stored_lines(http, job) == lines, f"{lines} lines of {job}, not {stored_lines(http, job)}")


def test_a_failed_run_prints_its_diagnosis(client: Client, running: Service) -> None:
    """Output and exit code are the command's; cause, place, advice and page come on standard error."""
    ended = client.ended("run", "--job", "fails", "--", "sh", "-c", FAIL)
    assert (ended.returncode, ended.stdout) == (1, DEMO_LOG.read_bytes())
    told = ended.stderr.decode()
    assert "Diagnosis: ecc error  (infrastructure, failed, 98% sure)" in told
    assert re.search(r"root line +237: 5: \[rank5\]: torch.AcceleratorError", told)
    assert re.search(rf"page +{running.url}/diagnoses/\w+\n", told)
    assert "\x1b" not in told
    assert running.client is not None
    kinds = [(event["kind"], event["code"], event["attempt"]) for event in events_of(running.client, "fails")]
    assert kinds == [("started", None, 1), ("exit", 1, 1)]


def test_the_next_run_of_a_job_is_its_next_attempt(client: Client, running: Service) -> None:
    """Its lines are not taken for those of the run before; each is stored once."""
    for code in (1, 0):
        ended = client.ended("run", "--job", "again", "--", "sh", "-c", f"echo step 1; echo step 2; exit {code}")
        assert ended.returncode == code
    assert running.client is not None
    assert [(one["kind"], one["code"], one["attempt"]) for one in events_of(running.client, "again")] == [
        ("started", None, 1),
        ("exit", 1, 1),
        ("started", None, 2),
        ("exit", 0, 2),
    ]
    stored(running, "again", 2)


SAVES = """
import sys
sys.path.insert(0, "client.pyz")
from diagnoser.client.checkpoints import Checkpointer
with Checkpointer("checkpoints") as checkpointer:
    checkpointer.save(7, lambda path: open(path + "/model", "wb").write(b"weights")).result()
"""


def test_a_trainer_reports_its_checkpoints_for_the_job_of_the_command_line(client: Client, running: Service) -> None:
    """Nothing in its environment names the job, and the service has heard of them when the command ends."""
    ended = client.ended("run", "--job", "saves", "--", sys.executable, "-c", SAVES)
    assert ended.returncode == 0, ended.stderr
    assert running.client is not None
    phases = [(event["step"], event["phase"]) for event in events_of(running.client, "saves") if event["phase"]]
    assert phases[-1] == (7, "verified")


def test_the_diagnosis_can_be_had_as_json(client: Client) -> None:
    """One line for programs."""
    ended = client.ended("run", "--json", "--", "sh", "-c", FAIL)
    diagnosis = json.loads(ended.stderr)
    assert (diagnosis["type"], diagnosis["root_cause"]["rank"]) == ("ecc_error", 5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_command_and_its_end_is_ours(client: Client, number: signal.Signals) -> None:
    """A command that a signal ends ends us by the same signal; one that handles it goes on."""
    with client.running(
        "run", "--wait", "0", "--", "sh", "-c", "echo ready; sleep 60 >/dev/null 2>&1 & wait"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(180) == -number
    handles = f"trap 'echo noted; exit 7' {number.name[3:]}; echo ready; sleep 60 >/dev/null 2>&1 & wait"
    with client.running("run", "--wait", "0", "--", "sh", "-c", handles) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.stdout.read() == b"noted\n"
        assert process.wait(180) == 7


def test_a_killed_command_is_reported_with_its_signal(client: Client, running: Service) -> None:
    """As the kernel's memory killer does it; the shell sees the same as without us."""
    ended = client.ended("run", "--job", "killed", "--wait", "0", "--", "sh", "-c", "kill -KILL $$")
    assert ended.returncode == -signal.SIGKILL
    assert running.client is not None
    assert events_of(running.client, "killed")[-1]["signal"] == signal.SIGKILL


def test_a_command_that_cannot_be_started_is_told_as_a_shell_does(client: Client, tmp_path: Path) -> None:
    """127 for none, 126 for one that may not be run."""
    assert client.ended("run", "--", "no-such-command").returncode == 127
    (tmp_path / "plain").write_text("text")
    assert client.ended("run", "--", str(tmp_path / "plain")).returncode == 126
    assert client.ended("run", "--").returncode == 2


def test_standard_input_and_binary_output_pass_untouched(client: Client, running: Service) -> None:
    """Every byte, no line break at the end, and lines of a megabyte; the service counts them as they are."""
    data = bytes(range(256)) * 64 + b"\n" + b"x" * (3 << 20) + b"\nlast without an end"
    ended = client.ended("run", "--job", "binary", "--", "cat", input=data)
    assert (ended.returncode, ended.stdout == data, ended.stderr) == (0, True, b"")
    assert running.client is not None
    http = running.client
    until(lambda: stored_lines(http, "binary") >= data.count(b"\n") + 1, "all lines are stored")


def test_both_streams_keep_apart_or_keep_their_order(client: Client) -> None:
    """Where they go to different places each is a stream; where they go to the same one their order stays."""
    mixed = "for i in 1 2 3 4 5 6 7 8; do echo out $i; echo err $i >&2; done"
    ended = client.ended("run", "--", "sh", "-c", mixed)
    assert ended.stdout == b"".join(b"out %d\n" % number for number in range(1, 9))
    assert ended.stderr == b"".join(b"err %d\n" % number for number in range(1, 9))
    command = client.command("run", "--", "sh", "-c", mixed)
    together = subprocess.run(
        command, env=client.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    assert together.stdout == b"".join(b"out %d\nerr %d\n" % (number, number) for number in range(1, 9))


def test_what_the_command_leaves_behind_keeps_nobody_waiting(client: Client, tmp_path: Path) -> None:
    """A process that holds the output open still prints there after we have ended with the command's code."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = f"(read word < {gate}; echo late; sleep 1; echo later) & echo early; exit 0"
    with client.running("run", "--", "sh", "-c", script) as process:
        assert process.wait(180) == 0
        gate.write_text("now\n")
        assert process.stdout is not None
        assert process.stdout.read() == b"early\nlate\nlater\n"


def test_a_reader_that_goes_away_ends_the_command_as_without_us(client: Client) -> None:
    """As in `... | head -1`: it gets SIGPIPE."""
    shell = " ".join(client.command("run", "--wait", "0", "--", "yes"))
    ended = subprocess.run(
        ["bash", "-c", f"{shell} | head -1; echo ${{PIPESTATUS[0]}}"],
        env=client.environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ended.stdout == b"y\n%d\n" % (128 + signal.SIGPIPE)


def test_a_terminal_stays_a_terminal(client: Client) -> None:
    """For what is one: bytes pass unchanged, its size is known, and the diagnosis has colours."""
    ours, theirs = pty.openpty()
    program = "import os,sys; print(sys.stdout.isatty(), sys.stderr.isatty(), *os.get_terminal_size()); sys.exit(1)"
    command = client.command("run", "--", sys.executable, "-c", program)
    subprocess.run(["stty", "rows", "31", "cols", "123"], stdin=theirs, check=True)
    with subprocess.Popen(command, env=client.environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:
            pass  # the last one has closed the terminal
    os.close(ours)
    assert process.returncode == 1
    assert shown.startswith(b"True True 123 31\r\n")
    assert b"\x1b[1m" in shown


def test_hostile_output_does_nothing_to_the_terminal_that_shows_the_diagnosis(client: Client) -> None:
    """Whatever of the line is kept, no control character and no mark that turns the text is printed."""
    hostile = r"\033]0;owned\007\033[2J\202\256 \342\200\256gpj"
    line = f"RuntimeError: CUDA error: an illegal memory access was encountered {hostile}"
    script = f"printf 'Traceback (most recent call last):\\n{line}\\n' >&2; exit 1"
    told = client.ended("run", "--", "sh", "-c", script).stderr.decode("utf-8", "replace")
    shown = told[told.index("Diagnosis:") :]
    assert "illegal memory access" in shown
    assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown) is None


def test_the_service_may_die_and_come_back(tmp_path: Path) -> None:
    """kill -9 in the middle of what a run prints: the run notices nothing, and every line counts once."""
    with service(tmp_path, DIAGNOSER_EXIT_GRACE_SECONDS="0.5") as mortal:
        http = mortal.start()
        client = Client(tmp_path, mortal.url)
        script = (
            "for i in $(seq 1 4000); do echo step $i loss 2.$i; [ $((i % 400)) = 0 ] && sleep 0.5; done; read x; exit 1"
        )
        with client.running(
            "run", "--job", "m", "--wait", "120", "--", "sh", "-c", script, stdin=subprocess.PIPE
        ) as process:
            until(lambda: events_of(http, "m"), "the run has begun")
            time.sleep(1.0)
            mortal.kill()
            time.sleep(1.5)
            http = mortal.start()
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.close()
            assert process.stdout is not None
            assert process.stdout.read().count(b"\n") == 4000
            assert process.wait(200) == 1
        until(lambda: stored_lines(http, "m") == 4000, "every line once")
        assert [event["kind"] for event in events_of(http, "m")] == ["started", "exit"]


@pytest.mark.parametrize("fault", ["away", "silent", "nonsense", "unusable"])
def test_nothing_that_is_wrong_with_the_service_is_the_commands(tmp_path: Path, fault: str) -> None:
    """Away, silent, or at an unusable address: a line tells, and the code is the command's."""

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if fault == "silent":
            listening.listen()
        urls = {
            "away": f"http://127.0.0.1:{free_port()}",
            "silent": f"http://127.0.0.1:{listening.getsockname()[1]}",
            "nonsense": "http://no-such-host.invalid:1",
            "unusable": "ftp://x",
        }
        client = Client(tmp_path, "")
        ended = client.ended("run", "--server", urls[fault], "--", "sh", "-c", "echo fine; exit 9")
    assert (ended.returncode, ended.stdout) == (9, b"fine\n")
    told = ended.stderr.decode().splitlines()
    assert 1 <= len(told) <= 2
    assert all(line.startswith("diagnoser: ") for line in told)


def test_tokens(tmp_path: Path) -> None:
    """A wrong one is told once and stops nothing; one of a job ships and shows where to look; a file may be rotated."""
    with service(tmp_path, DIAGNOSER_TOKENS=TOKENS) as guarded:
        guarded.start()
        assert guarded.client is not None
        wrong = Client(tmp_path, guarded.url, {"DIAGNOSER_TOKEN": "wrong"}).ended("run", "--", "sh", "-c", "exit 3")
        assert wrong.returncode == 3
        assert wrong.stderr.decode().count("refuses the token") == 2  # when it happens, and what became of the lines
        ingest = Client(tmp_path, guarded.url, {"DIAGNOSER_TOKEN": "a-token-of-a-job"})
        ended = ingest.ended("run", "--job", "t", "--", "sh", "-c", FAIL)
        assert ended.returncode == 1
        assert f"{guarded.url}/jobs/t" in ended.stderr.decode()
        guarded.client.headers["Authorization"] = "Bearer a-token-of-a-reader"
        assert [event["kind"] for event in events_of(guarded.client, "t")] == ["started", "exit"]
        secret = tmp_path / "token"
        secret.write_text("a-token-of-an-agent\n")
        secret.chmod(0o622)
        agent = Client(tmp_path, guarded.url, {"DIAGNOSER_TOKEN_FILE": str(secret)})
        assert "others may write" in agent.ended("run", "--", "false").stderr.decode()
        secret.chmod(0o600)
        assert "Diagnosis: ecc error" in agent.ended("run", "--", "sh", "-c", FAIL).stderr.decode()


def test_a_token_in_the_clear_is_told(tmp_path: Path) -> None:
    """Plain HTTP to another machine is said before the token goes there; on this machine there is nothing to say."""
    token = {"DIAGNOSER_TOKEN": "a-secret"}
    far = Client(tmp_path, "http://192.0.2.1:8321", token).ended("run", "--", "true")
    assert b"unencrypted" in far.stderr
    near = Client(tmp_path, f"http://127.0.0.1:{free_port()}", token).ended("run", "--", "true")
    assert b"unencrypted" not in near.stderr


def test_one_rank_speaks_for_all(client: Client, running: Service) -> None:
    """The diagnosis is printed by rank 0; others say where it will be. A rank that ends well ends no job."""
    ranks = {
        rank: Client(client.folder, client.url, {"RANK": str(rank), "DIAGNOSER_JOB": "ranks"}) for rank in (0, 1, 2)
    }
    assert ranks[2].ended("run", "--", "sh", "-c", "echo fine").stderr == b""
    assert running.client is not None
    assert [event for event in events_of(running.client, "ranks") if event["kind"] == "exit"] == []
    failed = ranks[1].ended("run", "--", "sh", "-c", "exit 1").stderr.decode()
    assert f"rank 1 failed; the diagnosis will be at {running.url}/jobs/ranks" in failed
    assert "Diagnosis:" not in failed
    (event,) = (event for event in events_of(running.client, "ranks") if event["kind"] == "exit")
    assert (event["rank"], event["code"]) == (1, 1)


def test_the_installed_command_is_the_same_client(client: Client, running: Service) -> None:
    """`diagnoser run` hands its words over as they are, those of the command included."""
    diagnoser = str(Path(sys.executable).with_name("diagnoser"))
    words = [
        diagnoser,
        "run",
        "--server",
        running.url,
        "--",
        "sh",
        "-c",
        'printf "%s|" "$@"; exit 6',
        "sh",
        "--json",
        "--",
        "-x",
    ]
    ended = subprocess.run(words, env=client.environment, capture_output=True, timeout=300, check=False)
    assert (ended.returncode, ended.stdout) == (6, b"--json|--|-x|")
    told = subprocess.run([diagnoser, "send", "--help"], capture_output=True, timeout=300, check=True)
    assert b"usage: diagnoser send" in told.stdout


HANGS = """
import os, subprocess, sys, time
for step in range(60):
    print("iteration %d/900 | lm loss: %.4f" % (step, 9 - step / 200), flush=True)
    time.sleep(0.05)
waits, sleeps = "import threading as t; t.Event().wait()", "import time; time.sleep(600)"
codes = [waits, waits, sleeps, waits]
ranks = [subprocess.Popen([sys.executable, "-c", code], env={"RANK": str(n)}) for n, code in enumerate(codes)]
try:
    ranks[0].wait()
finally:
    for rank in ranks:
        rank.kill()
"""


def test_the_rank_that_holds_up_the_others_is_named_without_an_agent(tmp_path: Path) -> None:
    """From what the client sees of the processes below it; and the run stays a hang when a person ends it."""
    settings = {"DIAGNOSER_HANG_CHECK_IDLE_SECONDS": "1", "DIAGNOSER_EXIT_GRACE_SECONDS": "0.5"}
    with service(tmp_path, **settings) as running:
        http = running.start()
        client = Client(tmp_path, running.url, {"PATH": "/usr/bin:/bin"})
        with client.running("run", "--job", "hangs", "--", sys.executable, "-c", HANGS) as run:
            until(lambda: verdict(http), "it is called hung")
            found = verdict(http)
            run.send_signal(signal.SIGINT)
            assert run.wait(180)
            assert run.stderr is not None
            told = run.stderr.read().decode()
    assert (found["outcome"], found["root_cause"]["rank"]) == ("hung", 2)
    assert "waits in hrtimer_nanosleep" in found["root_cause"]["text"]
    assert re.search(r"Diagnosis: nccl timeout error  \(infrastructure, hung, ", told)


def verdict(http: httpx.Client) -> dict[str, Any]:
    items = http.get("/api/v1/diagnoses", params={"job": "hangs"}).raise_for_status().json()["items"]
    return items[0] if items else {}
