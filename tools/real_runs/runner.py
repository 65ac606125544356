"""Runs one scenario with one framework, in a folder of its own, and returns what it printed."""

import os
import queue
import resource
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from re import compile as pattern
from re import escape
from types import FrameType
from typing import IO, Any

import yaml

from tests.ports import free_port
from tools.real_runs import environments
from tools.real_runs.carriers import Line
from tools.real_runs.frameworks import NODES, Framework
from tools.real_runs.launchers import End, Launcher
from tools.real_runs.scenarios import BASE, Scenario, write_inputs

TRAINERS = Path(__file__).parent / "trainers"
LIMIT_SECONDS = int(os.environ.get("REAL_RUNS_SECONDS", "90"))
"""Of one run. Other work on the machine may ask for more."""
LANGUAGES = ("en", "plain-end", "final", "de", "en", "fr", "no-end", "zh")
STYLES = ("iso", "print", "absl", "brackets", "json", "tabs")
HELD_OUT_LANGUAGES = {
    "en": "summary",
    "plain-end": "goodbye",
    "no-end": "metrics",
    "final": "summary",
    "de": "es",
    "fr": "ru",
    "zh": "ja",
}
"""What a framework that is held out says instead: words that no rule was written with."""
_KILL_AFTER = 5.0
_CUT_PATH = pattern(r"(/[^\s\"]*)\.\.\.$")
"""A path in an output that Ray has shortened."""
_ADVERTISED = pattern(r"\]\(https?://[^/)]+")
"""The link of a tip that a framework prints, in Markdown."""

_signals: list[int] = []


def note_signal(number: int, frame: FrameType | None) -> None:
    """Remember a signal to leave after: an exception that a handler raises may be lost in a destructor."""
    _signals.append(number)


def leave_after_signal() -> None:
    """Raises SystemExit when a signal has come."""
    if _signals:
        sys.exit(128 + _signals[0])


@dataclass
class Run:
    """lines: what was printed, in the order of arrival. returncodes: of each process that was started here."""

    lines: list[Line] = field(default_factory=list)
    returncodes: list[int] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    expired: bool = False


def run(framework: Framework, scenario: Scenario, number: int, folder: Path, launcher: Launcher | None = None) -> Run:
    """Runs the scenario in ``folder`` (created); ``number`` picks log style and language where it leaves them open.
    launcher: of a family, in the place of the framework's own."""
    settings = {
        **BASE,
        "log_style": STYLES[number % len(STYLES)],
        "language": LANGUAGES[number % len(LANGUAGES)],
        **framework.settings,
    }
    write_inputs(folder, framework.ranks, settings.get("parts", 1))
    with ExitStack() as stack:
        if scenario.prior is not None:
            _resume_from_prior(framework, scenario, {**settings, **scenario.prior}, folder, launcher)
            settings["resume"] = newest(folder / "ckpt")
        settings |= scenario.settings
        if "kernel" in settings:
            settings["kernel"] = {**settings["kernel"], "rank": framework.fault_rank}
        if framework.held_out and "language" in settings:
            settings["language"] = HELD_OUT_LANGUAGES[settings["language"]]
        for name in scenario.drop:
            del settings[name]
        if scenario.listen:
            settings[scenario.listen] = stack.enter_context(_taken_port())
        if scenario.disk:
            stack.enter_context(_small_disk(folder / "ckpt", scenario.disk))
        _write_settings(folder, settings)
        if scenario.prepare:
            scenario.prepare(folder, framework.fault_rank)
        return _collect(framework, scenario, number, folder, launcher)


def newest(folder: Path) -> str:
    """The checkpoint that was written last, relative to the run's folder."""
    return str(max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns).relative_to(folder.parent))


def _resume_from_prior(
    framework: Framework, scenario: Scenario, settings: dict[str, Any], folder: Path, launcher: Launcher | None
) -> None:
    _write_settings(folder, settings)
    healthy = _collect(framework, Scenario("prior", scenario.truth), 0, folder, launcher)
    if any(healthy.returncodes):
        raise RuntimeError(f"{framework.name}: the run before {scenario.name} failed: {healthy.lines[-3:]}")
    if scenario.cut:
        _cut(folder / newest(folder / "ckpt"))


def _cut(path: Path) -> None:
    """Halves a file, or of a folder's files the largest, of those with weights where they are known by their suffix."""
    files = [part for part in path.rglob("*") if part.is_file()] if path.is_dir() else [path]
    files = [part for part in files if part.suffix == ".safetensors"] or files
    largest = max(files, key=lambda part: part.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


def _write_settings(folder: Path, settings: dict[str, Any]) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


@contextmanager
def _taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextmanager
def _small_disk(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _commands(
    framework: Framework, scenario: Scenario, number: int, folder: Path, command: list[str] | None = None
) -> list[tuple[list[str], dict[str, str]]]:
    """What is started, and what each adds to the environment. command: of the trainer, where Python does not run it."""
    python, trainer = str(environments.python_of(framework.environment)), str(TRAINERS / framework.trainer)
    command = command or [python, trainer, *scenario.arguments]
    if framework.launcher == "processes":
        return [(command, variables) for variables in _process_variables(framework.ranks)]
    if framework.launcher != "python":
        return [([*_LAUNCHERS[framework.launcher](framework, scenario, number), trainer, *scenario.arguments], {})]
    if not scenario.shell:
        return [(command, {})]
    if scenario.timeout_s:
        command = ["timeout", "--verbose", str(scenario.timeout_s), *command]
    (folder / "run.sh").write_text(
        f'#!/bin/bash\n{shlex.join(command)}\ncode=$?\necho "exit code: $code"\nexit $code\n'
    )
    return [(["bash", "run.sh"], {})]


def _process_variables(ranks: int) -> list[dict[str, str]]:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(ranks)]
    shared = {"NUM_PROCESSES": str(ranks), "COORDINATOR": addresses[0], "WORKERS": ",".join(addresses)}
    return [{**shared, "PROCESS_ID": str(rank)} for rank in range(ranks)]


def _mpirun(framework: Framework, scenario: Scenario, number: int) -> list[str]:
    """Through mpi4py, which aborts the job when a rank raises; each third run has tagged output."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    tags = ["--tag-output"] if number % 3 == 2 else []
    limit = ["--timeout", str(scenario.timeout_s)] if scenario.timeout_s else []
    idle = ["--mca", "mpi_yield_when_idle", "1"]
    python = [str(environments.python_of(framework.environment)), "-m", "mpi4py"]
    return ["mpirun", *root, "--oversubscribe", *idle, *limit, *tags, "-np", str(framework.ranks), *python]


def _torchrun(framework: Framework, scenario: Scenario, number: int) -> list[str]:
    torchrun = environments.python_of(framework.environment).parent / "torchrun"
    return [str(torchrun), "--standalone", "--nproc-per-node", str(framework.ranks)]


def _paddle(framework: Framework, scenario: Scenario, number: int) -> list[str]:
    python = str(environments.python_of(framework.environment))
    return [python, "-m", "paddle.distributed.launch", "--nproc_per_node", str(framework.ranks)]


def _deepspeed(framework: Framework, scenario: Scenario, number: int) -> list[str]:
    launcher = environments.python_of(framework.environment).parent / "deepspeed"
    return [str(launcher), "--num_accelerators", str(framework.ranks), "--master_port", str(free_port())]


def _ray(framework: Framework, scenario: Scenario, number: int) -> list[str]:
    """The driver starts the workers."""
    return [str(environments.python_of(framework.environment))]


_LAUNCHERS: dict[str, Callable[[Framework, Scenario, int], list[str]]] = {
    "mpirun": _mpirun,
    "torchrun": _torchrun,
    "paddle": _paddle,
    "deepspeed": _deepspeed,
    "ray": _ray,
}


def _family_commands(
    framework: Framework, scenario: Scenario, folder: Path, launcher: Launcher
) -> list[tuple[list[str], dict[str, str]]]:
    """The commands of a family's launcher. A single process may be started by a shell script, as others are."""
    words = {
        "python": str(environments.python_of(framework.environment)),
        "bin": str(environments.python_of(framework.environment).parent),
        "tools": str(environments.python_of("classic").parent),
        "booth": str(environments.python_of("booth").parent),
        "npm": str(environments.FOLDER / "npm/node_modules/.bin"),
        "here": str(TRAINERS),
        "folder": str(folder),
    }
    source = TRAINERS / framework.trainer
    program = [word.format(**words) for word in framework.program if word != "{built}"]
    program.append(str(environments.built(source) if "{built}" in framework.program else source))
    command = [*program, *scenario.arguments]
    if framework.ranks == 1 and not launcher.command:
        if scenario.shell and launcher.name == "plain":
            return _commands(replace(framework, launcher="python"), scenario, 0, folder, command)
        return [(command, {"NODE_NAME": NODES[0]})]
    variables = [{**given, "HOOK_RANK": str(framework.fault_rank)} for given in _process_variables(framework.ranks)]
    if not launcher.command:
        return [(command, {**given, "NODE_NAME": NODES[rank]}) for rank, given in enumerate(variables)]
    words |= {"ranks": str(framework.ranks), "quoted": shlex.join(command)}
    words["numbers"] = " ".join(str(rank) for rank in range(framework.ranks))
    words["hosts"] = " ".join(NODES)
    words["nodes"] = ",".join(NODES[: framework.ranks])
    filled = [word.format(**words) for word in launcher.command]
    if filled[-1] == words["numbers"]:
        filled[-1:] = words["numbers"].split()
    if any("{quoted}" in word for word in launcher.command):
        command = []
    elif launcher.only_python:
        command = command[1:]
    shared = {name: value for name, value in variables[0].items() if name != "PROCESS_ID"}
    return [([*filled, *command], {**shared, "NODE_NAME": NODES[0]})]


def _collect(
    framework: Framework, scenario: Scenario, number: int, folder: Path, launcher: Launcher | None = None
) -> Run:
    """Starts the processes, reads all they print, sends the scenario's signal, and ends what outlives the limit."""
    arrived: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
    if launcher is None:
        commands = _commands(framework, scenario, number, folder)
    else:
        commands = _family_commands(framework, scenario, folder, launcher)
    processes = [_start(command, variables, folder, scenario, framework) for command, variables in commands]
    readers = [
        threading.Thread(target=_read, args=(stream, number, name, arrived))
        for number, process in enumerate(processes)
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))
    ]
    for reader in readers:
        reader.start()
    try:
        return _drain(arrived, len(readers), processes, scenario, launcher is not None and launcher.halts)
    finally:
        for process in processes:
            _end(process, signal.SIGKILL)
            process.wait()
        end_left_over(folder)
        for reader in readers:
            reader.join()


def _drain(
    arrived: "queue.SimpleQueue[Line | None]",
    open_streams: int,
    processes: Sequence[subprocess.Popen[bytes]],
    scenario: Scenario,
    halts: bool = False,
) -> Run:
    """halts: the other processes are ended (SIGTERM) a second after one has failed."""
    result, deadline, stop = Run(), time.monotonic() + LIMIT_SECONDS, scenario.stop
    after = pattern(stop.after) if stop else None
    while open_streams:
        _note_ends(result, processes, halts)
        leave_after_signal()
        try:
            line = arrived.get(timeout=min(0.2, max(0.1, deadline - time.monotonic())))
        except queue.Empty:
            if time.monotonic() < deadline:
                continue
            result.expired, deadline = True, time.monotonic() + _KILL_AFTER
            for process in processes:
                _end(process, signal.SIGKILL)
            continue
        if line is None:
            open_streams -= 1
            continue
        result.lines.append(line)
        if stop and after and after.search(line.text):
            after = None
            time.sleep(1)
            for process in processes:
                _send(process, stop.signal)
    result.returncodes = [process.wait() for process in processes]
    _note_ends(result, processes, halts)
    return result


def _note_ends(result: Run, processes: Sequence[subprocess.Popen[bytes]], halts: bool) -> None:
    """Adds the processes that have ended since, and ends the others where the launcher does so."""
    known = {end.process for end in result.ends}
    for number, process in enumerate(processes):
        code = process.poll()
        if code is not None and number not in known:
            result.ends.append(End(number, code, time.time()))
    first = next((end for end in result.ends if end.code), None)
    if halts and first is not None and time.time() > first.at + 1:
        for process in processes:
            if process.poll() is None:
                _end(process, signal.SIGTERM)


def _start(
    command: list[str], variables: dict[str, str], folder: Path, scenario: Scenario, framework: Framework
) -> "subprocess.Popen[bytes]":
    def limit() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where this runs in the background
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if scenario.memory_gb:
            resource.setrlimit(resource.RLIMIT_AS, (scenario.memory_gb << 30,) * 2)

    temporary = _temporary(folder)
    temporary.mkdir(exist_ok=True)
    temporary.chmod(0o1777)
    folder_of_python = environments.python_of(framework.environment).parent
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    environment = {
        **kept,
        "PATH": f"{folder_of_python}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(folder),
        "TMPDIR": str(temporary),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "RAY_enable_worker_prestart": "0",  # Ray gives a node 30 s to start, which a busy machine may need
        "RAY_prestart_worker_first_driver": "0",
        "RAY_worker_niceness": "0",
        "PYTENSOR_FLAGS": f"base_compiledir={environments.FOLDER}/bayes/compiled",
        "CRASH": str(framework.settings.get("crash", "uncaught")),
        "TORCH_EXTENSIONS_DIR": str(environments.extensions_of(framework.environment)),
        **variables,
    }
    return subprocess.Popen(  # the trainer's own limits are set between fork and exec: no thread runs yet
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=limit,
    )


def _temporary(folder: Path) -> Path:
    """Where a run's software leaves what it does not clean up: beside the run's folder, and removed with it."""
    return folder.parent / "tmp"


def _read(stream: IO[bytes], process: int, name: str, arrived: "queue.SimpleQueue[Line | None]") -> None:
    with stream:
        for line in stream:
            arrived.put(Line(line.rstrip(b"\n").decode(errors="replace"), time.time(), process, name))
    arrived.put(None)


def _end(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """A signal to the process and all that it started: they are a session of their own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def end_left_over(folder: Path) -> None:
    """Ends what a launcher has put into sessions of their own and left: known by the run's folder as its home."""
    home = b"HOME=" + os.fsencode(folder)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if home in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)


def _send(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """As a terminal does for Ctrl-C, and as kill(1) does for all else."""
    if number is signal.SIGINT:
        _end(process, number)
    else:
        process.send_signal(number)


def shown(lines: Sequence[Line], folder: Path, run_name: str, host: str) -> list[Line]:
    """The lines without a path or host of this machine, one for one."""
    paths = [
        (str(_temporary(folder)), "/tmp"),
        (str(folder), f"/data/runs/{run_name}"),
        (str(TRAINERS), "/workspace/train"),
        (str(environments.FOLDER / "built"), "/opt/site/bin"),
        (str(environments.FOLDER), "/opt/envs"),
        (str(Path(sys.base_prefix).resolve()), "/usr"),
        (sys.base_prefix, "/usr"),
        (str(Path.home()), "/home/user"),
    ]
    own_host = pattern(rf"\b{escape(socket.gethostname())}\b")
    return [Line(own_host.sub(host, _replace(line.text, paths)), line.at, line.process, line.stream) for line in lines]


def _in_json(path: str) -> str:
    """A path as PHP writes it in JSON."""
    return path.replace("/", "\\/")


def _replace(text: str, paths: Sequence[tuple[str, str]]) -> str:
    for real, placeholder in paths:
        text = text.replace(real, placeholder).replace(_in_json(real), _in_json(placeholder))
    cut = _CUT_PATH.search(text)
    if cut and any(real.startswith(cut[1]) for real, _ in paths):
        text = text[: cut.start(1)] + "/workspace" + text[cut.end(1) :]
    return _ADVERTISED.sub("](https://example.org", text)
