"""Two looks at ranks that others wait for: one that is stuck is told from one that is at work."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from diagnoser.client import evidence_runner
from diagnoser.client.evidence_runner import Process, stat_of, usages
from diagnoser.hang import report
from diagnoser.hang.activity import Work, kind_of_work, parse_activity
from diagnoser.model import EvidenceKind, RuntimeFile, SuspectKind
from diagnoser.model.errors import BadInput
from tests.hang_dumps import dump, entry, written

MAIN = 'Thread 1 (active): "MainThread"\n'
WAITING = MAIN + "    all_reduce (torch/distributed/distributed_c10d.py:2501)\n    train (train.py:9)\n"


def look_of(cores: float, moved: int, program: str = "python3") -> RuntimeFile:
    body = {"activity": {"3": {"cores": cores, "bytes": moved, "program": program}}, "seconds": 4.0}
    return RuntimeFile(EvidenceKind.ACTIVITY, json.dumps(body).encode(), node="gpu-1")


def stacks(frame: str) -> list[RuntimeFile]:
    """Seven ranks wait in a collective, rank 3 stands in this frame."""
    elsewhere = f"{MAIN}    {frame}\n    train (train.py:7)\n"
    texts = dict.fromkeys(range(8), WAITING) | {3: elsewhere}
    return [RuntimeFile(EvidenceKind.STACKS, text.encode(), rank) for rank, text in texts.items()]


PAUSES = [
    ("async_compile (torch/_inductor/async_compile.py:310)", 0.9, 0, "cicc", Work.COMPILE),
    ("backend_compile (jax/_src/compiler.py:240)", 3.9, 0, "python3", Work.COMPILE),
    ("compile_fx (torch/_inductor/compile_fx.py:1500)", 1.0, 0, "python3", Work.COMPILE),
    ("_save (torch/serialization.py:932)", 0.05, 90_000_000, "python3", Work.SAVE),
    ("write_shard (checkpoint/writer.py:88)", 0.3, 40_000_000, "python3", Work.SAVE),
    ("evaluate (eval_loop.py:51)", 1.0, 0, "python3", Work.EVAL),
    ("generate (transformers/generation/utils.py:2200)", 1.0, 0, "python3", Work.EVAL),
    ("build_index (megatron/core/datasets/gpt_dataset.py:400)", 0.8, 5_000_000, "python3", Work.DATA),
    ("tokenize_shard (prepare.py:20)", 12.0, 1_000_000, "python3", Work.DATA),
    ("urlretrieve (download_data.py:30)", 0.02, 900_000, "python3", Work.DATA),
    ("run_gc (trainer.py:70)", 1.0, 0, "python3", Work.OTHER),
    ("forward (model.py:12)", 0.05, 8_000_000, "python3", Work.OTHER),
]
"""Frame, cores, bytes a second, busiest program: the last one reads back what was swapped out."""


@pytest.mark.parametrize(("frame", "cores", "moved", "program", "work"), PAUSES)
def test_a_rank_at_work_is_no_culprit(frame: str, cores: float, moved: int, program: str, work: Work) -> None:
    """It is named with what it does and who waits."""
    [suspect] = report.analyze(report.read_files([*stacks(frame), look_of(cores, moved, program)]), ranks=8).suspects
    assert (suspect.rank, suspect.kind) == (3, SuspectKind.AT_WORK)
    assert suspect.why.startswith(str(work))
    assert "7 ranks wait" in suspect.why


@pytest.mark.parametrize("frame", [pause[0] for pause in PAUSES])
def test_a_rank_that_uses_nothing_is_stuck(frame: str) -> None:
    """In the same frames, without processor time and without bytes, nothing can change: the name of a function that
    compiles or saves is no excuse."""
    [suspect] = report.analyze(report.read_files([*stacks(frame), look_of(0.01, 300)]), ranks=8).suspects
    assert (suspect.rank, suspect.kind) == (3, SuspectKind.STACK)
    assert "neither processor nor disk" in suspect.why


def test_the_program_below_a_rank_tells_more_than_its_frames() -> None:
    """A rank whose main thread waits for a compiler below it compiles."""
    [seen] = parse_activity(look_of(0.9, 0, "ptxas").data)
    assert kind_of_work(seen, ["wait (threading.py:300)"]) is Work.COMPILE


@pytest.mark.parametrize(
    "body", [b'{"activity": 3}', b'{"activity": {"x": {}}}', b'{"activity": {"1": {"cores": "a"}}}']
)
def test_a_forged_look_is_refused(body: bytes) -> None:
    """What cannot be read accuses and excuses nobody."""
    with pytest.raises(BadInput):
        parse_activity(body)


FUTEX, SLEEP, IDLE, BUSY_CORES = "futex_wait_queue", "hrtimer_nanosleep", 0.0, 1.0


@pytest.mark.parametrize(
    ("places", "suspects"),
    [
        ([(FUTEX, IDLE)] * 3 + [(SLEEP, IDLE)], {3: SuspectKind.STACK}),
        ([(FUTEX, IDLE)] * 3 + [("stopped", IDLE)], {3: SuspectKind.STACK}),
        ([(FUTEX, IDLE)] * 3 + [("", BUSY_CORES)], {3: SuspectKind.AT_WORK}),
        ([(FUTEX, IDLE)] * 3 + [("running", IDLE)], {3: SuspectKind.AT_WORK}),
        ([(FUTEX, IDLE)] * 4, {}),
        ([(FUTEX, IDLE)] + [("stopped", IDLE)] * 3, {}),
        ([("", BUSY_CORES)] * 3 + [(FUTEX, IDLE)], {}),
        ([(FUTEX, BUSY_CORES)] * 3 + [(SLEEP, IDLE)], {}),
        ([(FUTEX, IDLE)] * 2 + [(SLEEP, IDLE)], {}),
        ([(FUTEX, IDLE)] * 5 + [(SLEEP, IDLE)] * 2, {}),
    ],
    ids=["sleeps", "stopped", "computes", "starves", "wait", "suspended", "others compute", "loaders", "3", "many"],
)
def test_ranks_without_stacks_are_compared_by_where_they_stand(
    places: list[tuple[str, float]], suspects: dict[int, SuspectKind]
) -> None:
    """Where most wait at one place of the kernel and do nothing, the few that stand elsewhere hold them up."""
    looks = {rank: {"cores": cores, "bytes": 0, "place": place} for rank, (place, cores) in enumerate(places)}
    body = json.dumps({"activity": looks}).encode()
    shown = report.analyze(report.read_files([RuntimeFile(EvidenceKind.ACTIVITY, body)])).suspects
    assert {suspect.rank: suspect.kind for suspect in shown} == suspects


@pytest.mark.parametrize(
    ("text", "place", "kind", "stuck_in"),
    [
        (WAITING, FUTEX, SuspectKind.ABSENT, "all_reduce (torch/distributed/distributed_c10d.py:2501)"),
        (WAITING, "running", SuspectKind.ABSENT, ""),
        (f"{MAIN}    load (data.py:3)\n", SLEEP, SuspectKind.STACK, "load (data.py:3)"),
        (f"{MAIN}    load (data.py:3)\n", "stopped", SuspectKind.STACK, "load (data.py:3)"),
    ],
    ids=["cut off", "spins in a collective", "sleeps", "stopped"],
)
def test_a_rank_that_left_no_dump_is_stuck_where_it_was_seen(
    text: str, place: str, kind: SuspectKind, stuck_in: str
) -> None:
    """In its own code, or in the collective in which the others stand, too: then its node does not answer them."""
    others = [rank for rank in range(8) if rank != 3]
    dumps = [written(dump({"0": range(8)}, [entry("0", 6, order=1)])) for _ in others]
    files = [RuntimeFile(EvidenceKind.FLIGHT_RECORDER, data, rank) for rank, data in zip(others, dumps, strict=True)]
    files += [RuntimeFile(EvidenceKind.STACKS, WAITING.encode(), rank) for rank in others]
    files.append(RuntimeFile(EvidenceKind.STACKS, text.encode(), 3))
    looks = {rank: {"cores": 0.0, "bytes": 0, "place": FUTEX} for rank in others} | {
        3: {"cores": 0.0, "bytes": 0, "place": place}
    }
    files.append(RuntimeFile(EvidenceKind.ACTIVITY, json.dumps({"activity": looks}).encode()))
    [suspect] = report.analyze(report.read_files(files), ranks=8).suspects
    assert (suspect.rank, suspect.kind, suspect.stuck_in) == (3, kind, stuck_in)


def test_where_stacks_are_known_the_kernel_s_word_accuses_nobody_else() -> None:
    """But of a process that was stopped, of which it makes the stack's word surer."""
    places = dict.fromkeys(range(8), FUTEX) | {3: "stopped", 5: SLEEP}
    looks = {rank: {"cores": 0.0, "bytes": 0, "place": place} for rank, place in places.items()}
    file = RuntimeFile(EvidenceKind.ACTIVITY, json.dumps({"activity": looks}).encode())
    [suspect] = report.analyze(report.read_files([*stacks("load (data.py:3)"), file]), ranks=8).suspects
    assert (suspect.rank, suspect.score) == (3, 0.85)
    assert "its process was stopped by a signal" in suspect.why


@pytest.mark.parametrize(
    ("threads", "kinds"),
    [
        ({3: 1.9}, [SuspectKind.AT_WORK]),
        (dict.fromkeys(range(8), 1.0), [SuspectKind.STACK]),
        (dict.fromkeys(range(8), 1.0) | {3: 0.0}, [SuspectKind.STACK]),
    ],
    ids=["tokenizes", "all spin", "the others spin"],
)
def test_threads_are_at_work_where_those_of_the_other_ranks_are_not(
    threads: dict[int, float], kinds: list[SuspectKind]
) -> None:
    """A main thread that waits for a pool is at work; threads of communication spin in every rank."""
    looks = {rank: {"cores": 0.01, "bytes": 300, "threads": threads.get(rank, 0.0)} for rank in range(8)}
    file = RuntimeFile(EvidenceKind.ACTIVITY, json.dumps({"activity": looks}).encode())
    shown = report.analyze(report.read_files([*stacks("wait (threading.py:327)"), file]), ranks=8).suspects
    assert [suspect.kind for suspect in shown] == kinds


@contextmanager
def rank_process(code: str) -> Iterator[dict[int, Process]]:
    """A process of rank 0 that runs this. It and its children end with the test."""
    command = [sys.executable, "-I", "-S", "-c", f"print(flush=True)\n{code}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield {0: Process(process.pid, 0, int(stat_of(f"/proc/{process.pid}/stat")[19]), {})}
        finally:
            os.killpg(process.pid, signal.SIGKILL)


BUSY = "while True: pass"
SLEEPS = "import time; time.sleep(600)"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{BUSY}'])"
THREAD = f"import threading\ndef spin():\n  {BUSY}\nthreading.Thread(target=spin, daemon=True).start()\n{SLEEPS}"
COPIES = "while True: open('/dev/null', 'wb').write(b'x' * 1000000); import time; time.sleep(0.05)"


RECEIVES = """
import socket, threading, time
listener = socket.create_server(("127.0.0.1", 0))
def send():
  while True: connection.sendall(bytes(30000)); time.sleep(0.1)
reader, (connection, _) = socket.create_connection(listener.getsockname()), listener.accept()
threading.Thread(target=send, daemon=True).start()
while True: reader.recv(65536)
"""


@pytest.mark.parametrize(
    ("code", "at_work"),
    [(BUSY, True), (CHILD, True), (COPIES, True), (RECEIVES, True), (SLEEPS, False), (THREAD, False)],
    ids=["computes", "child computes", "moves bytes", "receives bytes", "sleeps", "only another thread spins"],
)
def test_what_processes_do_is_seen_between_two_looks(code: str, at_work: bool) -> None:
    """By the main thread and by children; threads that spin while the main one sleeps count for nothing."""
    with rank_process(code) as by_rank:
        deadline, seen = time.monotonic() + 60, not at_work
        while seen is not at_work and time.monotonic() < deadline:  # a process begins late on a busy machine
            before, started = usages(by_rank), time.monotonic()
            time.sleep(1.0)
            found = evidence_runner.activity(before, usages(by_rank), time.monotonic() - started)
            [look] = parse_activity(zlib.decompress(base64.b64decode(found["data"])))
            seen = look.is_at_work
    assert seen is at_work


def test_a_rank_that_gets_little_of_a_processor_is_at_work() -> None:
    """What it waits for one counts as well: sixteen that share one are all at work."""
    one = f"import os; os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})\n{BUSY}"
    with ExitStack() as stack:
        by_rank = {rank: stack.enter_context(rank_process(one))[0] for rank in range(16)}
        before, started = usages(by_rank), time.monotonic()
        time.sleep(0.5)  # each of them computes or waits for the processor, all the time
        found = evidence_runner.activity(before, usages(by_rank), time.monotonic() - started)
    looks = parse_activity(zlib.decompress(base64.b64decode(found["data"])))
    assert len(looks) == 16
    assert all(look.is_at_work for look in looks)
