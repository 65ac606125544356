"""Runs the processes of a planned case and collects what they print, with whose it is and when each ended."""

import json
import os
import queue
import random
import resource
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.environments import TORCH
from tests.ports import free_port
from tools.real_runs import runner
from tools.real_runs.jobs.draw import CARRIERS, FAMILIES, SHARED, Plan

TRAINERS = Path(__file__).parents[1] / "trainers"
_GRACE_SECONDS, _KILL_SECONDS, _LIMIT_SECONDS = 9.0, 3.0, 75.0
"""After a process has failed the others are ended as a launcher does it: SIGTERM, then SIGKILL."""
_EVENT_AFTER = 0.5
"""Share of the steps after which a scheduler ends the job."""


@dataclass(frozen=True, slots=True)
class Line:
    """source: a rank, or the index of a node's agent. of_node: from the node's own journal.

    rank: of the process, where a driver started it (``Job.tag``).
    """

    text: str
    at: float
    source: int
    stream: str
    of_node: bool = False
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class End:
    source: int
    code: int
    at: float


@dataclass
class Run:
    lines: list[Line] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    event_at: float | None = None


def run(plan: Plan, folder: Path) -> Run:
    chance, family, fault = random.Random(plan.seed), FAMILIES[plan.family], plan.row
    steps = family.get("steps", chance.randrange(40, 100)) * fault.get("more_steps", 1)
    noise = chance.sample(SHARED["_noise"], SHARED.get("_noisy", 5))
    settings: dict[str, Any] = {
        "program": family.get("program", "train"), "backend": family["backend"],
        "nodes": plan.nodes, "per_node": plan.per_node, "world": plan.world,
        "logger": plan.logger, "seed": plan.seed, "steps": steps, "folder": str(folder),
        "strike": chance.randrange(steps // 4, steps - 4), "pause_s": chance.uniform(0.02, 0.04),
        "every": chance.choice((1, 5, 20)), "fault": fault, "struck": plan.struck,
        "kernel": "node_line" in CARRIERS[plan.carrier],
        "crash": family.get("crash") or chance.choice(SHARED["_crashes"]),
        "words": plan.words,
        "noise": [(chance.randrange(2, steps), chance.randrange(plan.world), text) for text in noise],
        "all_say_end": family.get("all_say_end", chance.random() < 0.5),
        "peers": _peers(plan), "peers_wait": chance.random() < 0.4 and "peers" not in fault,
        "ports": [free_port() for _ in range(plan.world)],
        "module": family.get("module", "job_backends"), "drives": family.get("drives", ""),
        "bar": family.get("bar", ""), "tries": family.get("tries", 1),
        "on_term": random.Random(plan.seed).choice(SHARED.get("_on_term", ("",))),
        "driver_logger": SHARED.get("_driver_loggers", ("{text}",) * 2)[plan.seed % 2],
    }  # fmt: skip
    code = fault.get("code", "return None").replace("; ", "\n    ")
    (folder / "hooks.py").write_text(f"def on_event(job):\n    {code}\n")
    hosts = "".join(f"127.0.0.1 {name}\n" for name in ("localhost", *plan.nodes))
    (folder / "hosts").write_text(hosts)
    processes = []
    (folder / "job.json").write_text(json.dumps(settings))
    try:
        for words, host, variables in _commands(plan, settings):
            processes.append(_start(words, host, variables, folder, plan))
        return _collect(plan, processes, folder, steps * settings["pause_s"] * _EVENT_AFTER)
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        runner.end_left_over(folder)


def _peers(plan: Plan) -> Sequence[str]:
    """What the other ranks of software that is imitated print when one has gone wrong."""
    harmless = plan.row["type"] == "completed" or len(plan.struck) == plan.world
    return () if harmless else plan.row.get("peers") or FAMILIES[plan.family].get("peers", ())


def _commands(plan: Plan, settings: Mapping[str, Any]) -> list[tuple[list[str], str, dict[str, str]]]:
    """(words, host, variables) of each process to start."""
    carrier, python, job = CARRIERS[plan.carrier], str(TORCH.python), str(TRAINERS / "job.py")
    port = str(settings["ports"][-1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(plan.world)}
    if carrier.get("starts") == "job":
        words = carrier["words"].format(world=plan.world, python=python, job=job)
        return [(shlex.split(words), plan.nodes[0], {})]
    if carrier.get("starts") == "node":
        agent = [str(Path(python).parent / "torchrun"), "--nnodes", str(len(plan.nodes))]
        agent += ["--nproc-per-node", str(plan.per_node), "--master-addr", "127.0.0.1", "--master-port", port]
        agent += ["--tee", "3"] if plan.seed % 3 else []
        return [([*agent, "--node-rank", str(index), job], node, {}) for index, node in enumerate(plan.nodes)]
    return [([python, job], plan.node_of(rank), {**shared, "RANK": str(rank)}) for rank in range(plan.world)]


def _start(
    words: Sequence[str], host: str, variables: Mapping[str, str], folder: Path, plan: Plan
) -> "subprocess.Popen[bytes]":
    """A process on a node of its own as far as it can see: its host name, the hosts that it knows, and a folder."""
    mounts = f"mount --bind {folder}/hosts /etc/hosts"
    environment = {
        "PATH": f"{TORCH.python.parent}:/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        "TP_SOCKET_IFNAME": "lo", "PYTHONPATH": str(TRAINERS),
        "LANG": "C.UTF-8", **variables,
    }  # fmt: skip
    named = ["unshare", "--uts", "--mount", "sh", "-c", f'{mounts} && hostname "$0" && exec "$@"', host, *words]
    return subprocess.Popen(
        named,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    )


def _collect(plan: Plan, processes: Sequence["subprocess.Popen[bytes]"], folder: Path, event_s: float) -> Run:
    arrived: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
    for source, process in enumerate(processes):
        _read_all(source, process, arrived)
    result, began, reading = Run(), time.time(), 2 * len(processes)
    event = plan.row.get("event") if plan.row.get("event") != "lost" else None
    while reading and time.time() < began + _LIMIT_SECONDS:
        _note_ends(result, processes)
        if event and result.event_at is None and len(result.lines) > 25 and time.time() > result.lines[0].at + event_s:
            result.event_at = time.time()
        _halt(result, processes)
        with suppress(queue.Empty):
            line = arrived.get(timeout=0.2)
            reading -= line is None
            result.lines += [line] if line is not None else []
    for process in () if reading else processes:
        process.wait(_GRACE_SECONDS)
    _note_ends(result, processes)
    return result


def _note_ends(result: Run, processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    known = {end.source for end in result.ends}
    for source, process in enumerate(processes):
        if source not in known and process.poll() is not None:
            result.ends.append(End(source, process.returncode, time.time()))


def _halt(result: Run, processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    first = next((end.at for end in result.ends if end.code), None)
    since = result.event_at or (first + _GRACE_SECONDS if first else None)
    if since is None or time.time() < since:
        return
    number = signal.SIGTERM if time.time() < since + _KILL_SECONDS else signal.SIGKILL
    for process in processes:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def _read_all(source: int, process: "subprocess.Popen[bytes]", arrived: "queue.SimpleQueue[Line | None]") -> None:
    for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
        threading.Thread(target=_read, args=(stream, source, name, arrived), daemon=True).start()


def _read(stream: IO[bytes], source: int, name: str, arrived: "queue.SimpleQueue[Line | None]") -> None:
    with stream:
        for raw in stream:
            text, rank = raw.rstrip(b"\n").decode(errors="replace"), None
            if text.startswith("\x01"):
                _, number, text = text.split("\x01", 2)
                rank = int(number)
            arrived.put(Line(text.removeprefix("\0"), time.time(), source, name, text.startswith("\0"), rank))
    arrived.put(None)
