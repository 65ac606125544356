"""Collects evidence of a job that stands still, where it is started: dump files, NCCL RAS, and stacks of its ranks.

The agent reads dump files with it. On a node, in a container, or beside a command that ``run`` has started, it is
started as the text of ``python3 -I -c``, as the user of the job: so it is one file of the standard library, for Python
3.7 and later, and has no rights that the job does not have. It stops no process, and signals only ranks that have
registered for it. Its argument is an object as in ``main``; it prints each finding as one line of JSON, with bounds on
number, bytes and time.
"""

from __future__ import annotations

import base64
import fnmatch
import itertools
import json
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, Callable, Iterator, NamedTuple

FILE_BYTES = 32 << 20
FILES_MAX = 16384
TOTAL_BYTES = 256 << 20
"""Of all dump files of one place, and of all that one node prints (before it is packed)."""
ENTRIES_MAX = 200_000
"""Of all folders that a pattern leads to."""
STACK_BYTES = 1 << 20
RAS_BYTES = 16 << 20
ENVIRON_BYTES = 1 << 20
RANKS_MAX = 256
AT_ONCE = 8
TRIES = 3
"""py-spy reads a process that goes on: it may find a stack half changed."""
PACKED = 6
LOOK_SECONDS = 4.0
"""Between the two looks at what the ranks do: a process at work shows it within a second, and the verdict waits."""
PAGE_BYTES = 4096
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX")
DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables that name the file of a rank's flight recorder, which ends in the rank."""
PROCESSES_MAX = 4096
"""Below one command."""
STACK_SIGNAL = signal.SIGURG
"""Asks a rank for its stack: where nothing handles it, the kernel drops it, and no library uses it."""
ANSWER_SECONDS, ANSWER_LOOKS = 2.0, 20
"""For a rank to write its stack."""
STOPPED, RUNNING = "stopped", "running"
"""In place of a function of the kernel: somebody has sent the process SIGSTOP; it has a processor, or wants one."""
SOCK_DIAG, DIAG_BY_FAMILY, DUMP_REQUEST = 4, 20, 0x301
TCP_INFO, ESTABLISHED = 2, 1
RECEIVED_AT = 128
"""Of Linux's ``sock_diag`` and ``inet_diag``; the place of a count in ``struct tcp_info``."""
STATES = {b"T": STOPPED, b"R": RUNNING}
LOCALHOST = ("localhost", "127.0.0.1", "[::1]", "")


class DumpFile(NamedTuple):
    """One file of a pattern. why: it was not read, because of this."""

    path: str
    data: bytes = b""
    why: str = ""


def words_of(error: OSError) -> str:
    return error.strerror or str(error)


class Bounds:
    """Rest of what may be read."""

    def __init__(self, files: int = FILES_MAX, size: int = TOTAL_BYTES) -> None:
        self.entries, self.files, self.size = ENTRIES_MAX, files, size


def dump_files(root: str, parts: list[str], uid: int, since: float, until: float, bounds: Bounds) -> Iterator[DumpFile]:
    """Files below a folder that the operator named. parts: names or wildcards, from the root to the file.

    What is below the root may be written by the job: no link is followed, and only plain files are read. uid: who must
    own them; -1: nobody knows, and then a file with a second name is left alone. since, until: of their last change, in
    seconds since the epoch. Older and newer ones are of other launches, and passed over without a word.
    """
    try:
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        yield DumpFile(root, why=words_of(error))
        return
    with ExitStack() as stack:
        stack.callback(os.close, handle)
        for place, name, path in walk(handle, parts, root.rstrip("/"), bounds):
            dump_file = read_file(place, name, path, uid, since, until, bounds)
            if dump_file is not None:
                yield dump_file


def walk(handle: int, parts: list[str], path: str, bounds: Bounds) -> Iterator[tuple[int, str, str]]:
    """(folder, name in it, path) of each candidate."""
    for name in sorted(matches(handle, parts[0], bounds)):
        if len(parts) == 1:
            yield handle, name, path + "/" + name
            continue
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
        except OSError:
            continue  # not there yet, or no folder
        with ExitStack() as stack:
            stack.callback(os.close, below)
            yield from walk(below, parts[1:], path + "/" + name, bounds)


def matches(handle: int, part: str, bounds: Bounds) -> list[str]:
    if not any(sign in part for sign in "*?["):
        return [part]
    names = []
    with suppress(OSError), os.scandir(handle) as entries:
        for entry in itertools.islice(entries, max(bounds.entries, 0)):
            bounds.entries -= 1
            if is_hidden(entry.name) and not is_hidden(part):
                continue  # as in a shell
            if fnmatch.fnmatchcase(entry.name, part):
                names.append(entry.name)
    return names


def is_hidden(name: str) -> bool:
    return name[0] == "."


def read_file(
    handle: int, name: str, path: str, uid: int, since: float, until: float, bounds: Bounds
) -> DumpFile | None:
    """None for one that is of no concern."""
    try:
        if not stat.S_ISREG(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
            return DumpFile(path, why="not a plain file")
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
    except FileNotFoundError:
        return None
    except OSError as error:
        return DumpFile(path, why=words_of(error))
    with ExitStack() as stack:
        stack.callback(os.close, opened)
        status = os.fstat(opened)
        if not since <= status.st_mtime < until:
            return None
        if not status.st_size:
            return None
        why = refusal(status, uid, bounds)
        if why:
            return DumpFile(path, why=why)
        try:
            with os.fdopen(os.dup(opened), "rb") as file:
                data = file.read(status.st_size)
        except OSError as error:
            return DumpFile(path, why=words_of(error))
    bounds.files -= 1
    bounds.size -= len(data)
    return DumpFile(path, data)


def refusal(status: os.stat_result, uid: int, bounds: Bounds) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "not a plain file"
    if uid < 0:
        if status.st_nlink != 1:
            return "it has a second name"
    elif status.st_uid != uid:
        return "not a file of the job's user"
    if status.st_size > FILE_BYTES:
        return "larger than %d MiB" % (FILE_BYTES >> 20)
    if bounds.files <= 0 or status.st_size > bounds.size:
        return "more than is read at one time"
    return ""


class Process(NamedTuple):
    """One process of the job. started: ticks since the machine began, which tell it from a later one with its number.
    variables: as it was started with."""

    pid: int
    parent: int
    started: int
    variables: dict[str, str]

    def number(self, name: str) -> int:
        """-1 for what is no rank."""
        value = self.variables.get(name, "")
        return int(value) if is_number(value, 7) else -1


def is_number(text: str, digits: int) -> bool:
    """Tell whether it is a number of at most so many digits."""
    if not text.isdecimal():
        return False
    return len(text) <= digits


def job_processes(job: str) -> list[Process]:
    """Python processes of a job of Slurm's; of no number: all that see the same files as this one, as in a container.

    Only those of the user who runs this can be read."""
    own, node = sandbox("self"), os.environ.get("SLURMD_NODENAME", "")

    def is_wanted(pid: int, variables: dict[str, str]) -> bool:
        if pid == os.getpid():
            return False
        if job:
            return is_of_job(variables, job, node)
        return sandbox(str(pid)) == own

    return python_processes(all_pids(), is_wanted)


def processes_below(root: int) -> list[Process]:
    """Python processes of a command: itself, and what it has started."""
    children = children_of(set())
    tree, level = [], [root]  # type: list[int], list[int]
    while level and len(tree) < PROCESSES_MAX:
        tree += level
        level = [child for pid in level for child in children.get(pid, ())]
    return python_processes(tree[:PROCESSES_MAX], lambda pid, variables: True)


def python_processes(pids: list[int], is_wanted: Callable[[int, dict[str, str]], bool]) -> list[Process]:
    """The first to start come first. is_wanted: asked with the number and the variables of each."""
    processes = []
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            variables = environment_of(pid)
            if is_wanted(pid, variables) and runs_python(pid):
                fields = stat_of("/proc/%d/stat" % pid)
                processes.append(Process(pid, int(fields[1]), int(fields[19]), variables))
    return sorted(processes, key=lambda process: (process.started, process.pid))


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def environment_of(pid: int) -> dict[str, str]:
    with open("/proc/%d/environ" % pid, "rb") as file:
        raw = file.read(ENVIRON_BYTES)
    pairs = (pair.decode("utf-8", "replace").partition("=") for pair in raw.split(b"\0"))
    return {name: value for name, _, value in pairs}


def stat_of(path: str) -> list[bytes]:
    """Fields of a process or thread, from its state on."""
    with open(path, "rb") as file:
        return file.read().rpartition(b")")[2].split()


def is_there(process: Process) -> bool:
    """Tell whether it still runs: another one may have its number by now."""
    try:
        return int(stat_of("/proc/%d/stat" % process.pid)[19]) == process.started
    except (OSError, ValueError, IndexError):
        return False


def is_of_job(variables: dict[str, str], job: str, node: str) -> bool:
    """Tell whether a process with these variables is of a job of Slurm's, on this node."""
    if variables.get("SLURM_JOB_ID") != job:
        return False
    return variables.get("SLURMD_NODENAME", node) == node


def sandbox(process: str) -> str:
    return os.readlink("/proc/%s/ns/mnt" % process)


def runs_python(pid: int) -> bool:
    if "python" in os.path.basename(os.readlink("/proc/%d/exe" % pid)):
        return True
    with open("/proc/%d/maps" % pid, "rb") as file:
        return b"/libpython" in file.read(4 << 20)


def ranks(processes: list[Process]) -> dict[int, Process]:
    """rank -> its process. Launchers may have a rank of their own in the same variable, and workers of a data loader
    have that of the process that they were forked from: so the most telling variable counts, and the first process."""
    with_rank = [process for process in processes if process.number("RANK") >= 0]
    local = [process for process in with_rank if process.number("LOCAL_RANK") >= 0]  # not the launcher's own
    if with_rank:
        return first_of_each(local or with_rank, "RANK")
    for name in RANK_VARIABLES:
        members = [process for process in processes if process.number(name) >= 0]
        steps = [process for process in members if process.number("SLURM_STEP_ID") >= 0]  # not the batch script
        if members:
            return first_of_each(steps or members, name)
    return {}


def first_of_each(members: list[Process], name: str) -> dict[int, Process]:
    by_pid = {process.pid: process for process in members}
    by_rank = {}  # type: dict[int, Process]
    for process in members:
        above, rank = by_pid.get(process.parent), process.number(name)
        if above is None or above.number(name) != rank:
            by_rank.setdefault(rank, process)
    return {rank: by_rank[rank] for rank in sorted(by_rank)[:RANKS_MAX]}


def output_of(argv: list[str], seconds: float, limit: int) -> tuple[int | None, bytes]:
    """(exit code, None where it took too long or printed too much; what it printed). Ends what it has started."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return 127, words_of(error).encode()
    timer = threading.Timer(seconds, end, [process])
    timer.start()
    assert process.stdout is not None
    with process.stdout:
        data = process.stdout.read(limit + 1)
    in_time = timer.is_alive() and len(data) <= limit
    timer.cancel()
    if not in_time:
        end(process)
    code = None  # nobody waits for a process that the kernel does not let go
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(1.0)
    return (code if in_time else None), data[:limit]


def end(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


class Usage(NamedTuple):
    """What a process and its children have used. cpu: seconds. moved: bytes read, written and paged in. by_name:
    seconds of each program. threads: seconds of the rank's other threads. received: bytes of each connection by its
    number. place: as of ``place_of``."""

    cpu: float
    moved: int
    by_name: dict[str, float]
    threads: float
    received: dict[str, int]
    place: str


def usage(pid: int, children: dict[int, list[int]], connections: dict[str, int]) -> Usage:
    """Of the main thread of a rank, and of all threads of its children, such as compilers and loaders of data. Its
    other threads may spin while it waits: they stand apart.

    connections: bytes that each of this machine has received.
    """
    cpu, moved, by_name, received = 0.0, 0, {}, {}  # type: float, int, dict[str, float], dict[str, int]
    todo = [("/proc/%d/task/%d/stat" % (pid, pid), pid)]
    while todo:
        path, member = todo.pop()
        todo += [("/proc/%d/stat" % child, child) for child in children.get(member, ())]
        with suppress(OSError, ValueError, IndexError):
            name, seconds, faults = spent(path)
            cpu += seconds
            moved += faults * PAGE_BYTES + moved_bytes(member)
            by_name[name] = by_name.get(name, 0.0) + seconds
            received.update((number, connections[number]) for number in sockets_of(member) if number in connections)
    return Usage(cpu, moved, by_name, seconds_of_threads(pid), received, place_of(pid))


def seconds_of_threads(pid: int) -> float:
    """Of all threads but the main one."""
    seconds = 0.0
    for name in filter(str(pid).__ne__, names_in("/proc/%d/task" % pid)):
        with suppress(OSError, ValueError, IndexError):
            seconds += spent("/proc/%d/task/%s/stat" % (pid, name))[1]
    return seconds


def names_in(folder: str) -> list[str]:
    """Empty for a folder that cannot be read."""
    with suppress(OSError):
        return os.listdir(folder)
    return []


def sockets_of(pid: int) -> Iterator[str]:
    folder = "/proc/%d/fd" % pid
    for name in names_in(folder):
        with suppress(OSError):
            target = os.readlink(os.path.join(folder, name))
            if target.startswith("socket:["):
                yield target[len("socket:[") : -1]


def received_bytes() -> dict[str, int]:
    """Bytes that each TCP connection of this network has received, by the number of its socket, as ``ss -i`` has them:
    what comes by ``recv`` counts as input of no process. Empty where the kernel does not tell."""
    received = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, AttributeError, struct.error), netlink() as kernel:
            kernel.settimeout(1.0)
            question = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (TCP_INFO - 1), 0, 1 << ESTABLISHED)
            kernel.send(struct.pack("=IHHII", 16 + len(question), DIAG_BY_FAMILY, DUMP_REQUEST, 1, 0) + question)
            for message in iter(lambda: kernel.recv(1 << 20), b""):
                part = dict(connections_in(message))
                received.update(part)
                if not part:
                    break
    return received


def netlink() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG)


def connections_in(message: bytes) -> Iterator[tuple[str, int]]:
    """(number of the socket, bytes received) of each connection in an answer of the kernel; none in its last one."""
    start = 0
    while start + 16 <= len(message):
        length, kind = struct.unpack_from("=IH", message, start)
        if kind != DIAG_BY_FAMILY:
            return
        (number,) = struct.unpack_from("=I", message, start + 16 + 68)
        place = start + 16 + 72
        while place + 4 <= start + length:
            size, attribute = struct.unpack_from("=HH", message, place)
            if attribute == TCP_INFO and size >= 4 + RECEIVED_AT + 8:
                yield str(number), struct.unpack_from("=Q", message, place + 4 + RECEIVED_AT)[0]
            place += max(4, size + 3 & ~3)
        start += max(16, length + 3 & ~3)


def place_of(pid: int) -> str:
    """Where the main thread waits in the kernel: the name of a function, STOPPED or RUNNING; "" where nobody tells."""
    with suppress(OSError, IndexError):
        state = stat_of("/proc/%d/task/%d/stat" % (pid, pid))[0]
        if state in STATES:
            return STATES[state]
        with open("/proc/%d/wchan" % pid, "rb") as file:
            place = file.read(100).decode("ascii", "replace")
        return "" if place == "0" else place
    return ""


def spent(path: str) -> tuple[str, float, int]:
    """(name of the program, seconds of processor time, pages read from the disk) of a process or thread. The time for
    which it waited for a processor counts as well: on a busy node one that works gets few."""
    with open(path, "rb") as file:
        head, _, rest = file.read().rpartition(b")")
    fields = rest.split()
    ticks = int(fields[11]) + int(fields[12])
    seconds = ticks / os.sysconf("SC_CLK_TCK")
    with suppress(OSError, IndexError), open(path[: -len("stat")] + "schedstat", "rb") as file:
        seconds += int(file.read().split()[1]) / 1e9
    return head.partition(b"(")[2].decode("utf-8", "replace"), seconds, int(fields[9])


def moved_bytes(pid: int) -> int:
    with open("/proc/%d/io" % pid, "rb") as file:
        counts = dict(line.split(b": ") for line in file.read().splitlines())
    return int(counts[b"rchar"]) + int(counts[b"wchar"])


def children_of(ranks_pids: set[int]) -> dict[int, list[int]]:
    """parent -> its children, without those that are ranks themselves."""
    children = {}  # type: dict[int, list[int]]
    for pid in all_pids():
        if pid in ranks_pids:
            continue
        with suppress(OSError, ValueError, IndexError):
            children.setdefault(int(stat_of("/proc/%d/stat" % pid)[1]), []).append(pid)
    return children


def usages(by_rank: dict[int, Process]) -> dict[int, Usage]:
    """Of the ranks that still run."""
    children, connections = children_of({process.pid for process in by_rank.values()}), received_bytes()
    return {rank: usage(process.pid, children, connections) for rank, process in by_rank.items() if is_there(process)}


def activity(before: dict[int, Usage], after: dict[int, Usage], seconds: float) -> dict[str, Any]:
    """What each rank did between two looks, a second: cores, those of its other threads, bytes, and the program that
    used most of the cores. Of connections the busiest counts: a rank that answers many others gets little of each.
    place: where it stood in both."""
    shown = {}
    for rank, now in after.items():
        was = before.get(rank, now)
        used = {name: spent - was.by_name.get(name, 0.0) for name, spent in now.by_name.items()}
        busiest = max(used, key=lambda name: used[name], default="")
        received = [count - was.received.get(number, 0) for number, count in now.received.items()]
        shown[str(rank)] = {
            "cores": round(max(0.0, now.cpu - was.cpu) / seconds, 3),
            "threads": round(max(0.0, now.threads - was.threads) / seconds, 3),
            "bytes": int(max(0, now.moved - was.moved, *received) / seconds),
            "program": busiest,
            "place": now.place if now.place == was.place else "",
        }
    first = min(after, default=-1)  # pods of a node must not replace each other's looks
    return finding("activity", json.dumps({"activity": shown, "seconds": round(seconds, 1)}).encode(), first)


def stacks(by_rank: dict[int, Process], seconds: float, folder: str = "") -> Iterator[dict[str, Any]]:
    """folder: as of ``own_stack``, "" where ranks are not asked."""
    program = shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))
    if not by_rank:
        yield {"note": "no Python process of a rank was found"}
        return
    if program is None:
        yield {"note": "py-spy is not installed"}

    def dump(item: tuple[int, Process]) -> dict[str, Any]:
        rank, process = item
        data, why = py_spy(program, process, seconds) if program else (b"", "")
        if not data and folder:
            data = own_stack(process, folder)
        return finding("stacks", data, rank) if data else {"note": "rank %d has no stack: %s" % (rank, why)}

    if program or folder:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from pool.map(dump, by_rank.items())


def py_spy(program: str, process: Process, seconds: float) -> tuple[bytes, str]:
    """(the stack, why there is none)."""
    argv = [program, "dump", "--nonblocking", "--pid", str(process.pid)]
    for _ in range(TRIES):
        code, data = output_of(argv, seconds / TRIES, STACK_BYTES)
        if code == 0 and is_there(process):
            return data, ""
    return b"", "py-spy: " + last_line(data, code)


def own_stack(process: Process, folder: str) -> bytes:
    """The stack that a rank writes when it gets STACK_SIGNAL; b"" where it does not.

    folder: in which a rank that has registered faulthandler for the signal has opened a file, named by its number.
    """
    path = os.path.join(folder, str(process.pid))
    with suppress(OSError, ValueError):
        size = before = os.stat(path).st_size
        if not catches(process.pid, STACK_SIGNAL):
            return b""
        if not is_there(process):
            return b""
        os.kill(process.pid, STACK_SIGNAL)
        for _ in range(ANSWER_LOOKS):
            time.sleep(ANSWER_SECONDS / ANSWER_LOOKS)
            latest, size = size, os.stat(path).st_size
            if before < latest == size:
                break
        with open(path, "rb") as file:
            file.seek(before)
            return file.read(STACK_BYTES)
    return b""


def catches(pid: int, number: int) -> bool:
    with open("/proc/%d/status" % pid, "rb") as file:
        fields = dict(line.split(b":", 1) for line in file.read().splitlines())
    return bool(int(fields[b"SigCgt"], 16) >> (number - 1) & 1)


def ras(by_rank: dict[int, Process], seconds: float) -> dict[str, Any]:
    """Ask NCCL's own monitoring about the whole job. Asked on this machine only, wherever the job listens."""
    program = shutil.which("ncclras")
    if program is None:
        return {"note": "ncclras is not installed"}
    ports = []
    for process in by_rank.values():
        host, _, port = process.variables.get("NCCL_RAS_ADDR", "").rpartition(":")
        if host not in LOCALHOST:
            continue
        if is_number(port, 5):
            ports.append(port)
    argv = [program, "-v", "-t", str(max(int(seconds / 3), 1)), *(("-p", ports[0]) if ports else ())]
    for form in (["-f", "json"], []):  # JSON since NCCL 2.28.7
        code, data = output_of(argv + form, seconds / 2, RAS_BYTES)
        if code == 0 and data:
            return finding("ras", data)
    return {"note": "ncclras: " + last_line(data, code)}


def last_line(data: bytes, code: int | None) -> str:
    lines = data.decode("utf-8", "replace").strip().splitlines()
    ending = "no answer in time" if code is None else "exit code %d" % code
    return lines[-1][:200] if lines else ending


def finding(kind: str, data: bytes, rank: int = -1, name: str = "") -> dict[str, Any]:
    packed = base64.b64encode(zlib.compress(data, PACKED)).decode("ascii")
    return {"kind": kind, "rank": rank, "name": name, "data": packed}


def named_dumps(
    by_rank: dict[int, Process], uid: int, asked: dict[str, Any], bounds: Bounds
) -> Iterator[dict[str, Any]]:
    """The flight recorder of each rank, where its variables name the file."""
    for rank, process in by_rank.items():
        prefixes = {process.variables.get(name, "") for name in DUMP_VARIABLES}
        for prefix in filter(os.path.isabs, prefixes):
            folder, name = os.path.split("%s%d" % (prefix, rank))
            for file in dump_files(folder, [name], uid, asked["since"], asked["until"], bounds):
                yield unread(file) if file.why else finding("flight-recorder", file.data, rank)


def unread(file: DumpFile) -> dict[str, Any]:
    return {"note": "%s: %s" % (file.path, file.why)}


def collect(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    bounds, uid = Bounds(), os.getuid()
    for root, parts in asked["dumps"]:
        for file in dump_files(root, parts, uid, asked["since"], asked["until"], bounds):
            yield unread(file) if file.why else finding("file", file.data, name=file.path)
    if asked.get("below"):
        by_rank = ranks(processes_below(asked["below"]))
        yield from named_dumps(by_rank, uid, asked, bounds)
    else:
        by_rank = ranks(job_processes(asked["job"]))
    before, started = usages(by_rank), time.monotonic()
    if asked["stacks"]:
        yield from stacks(by_rank, asked["seconds"], asked.get("answers", ""))
    if asked["ras"]:
        yield ras(by_rank, asked["seconds"])
    if by_rank:
        time.sleep(max(0.0, LOOK_SECONDS - (time.monotonic() - started)))
        yield activity(before, usages(by_rank), time.monotonic() - started)


def main() -> None:
    """Argument: ``job`` (number, "" in a container) or ``below`` (process of a command), ``dumps`` (root and parts of
    each pattern), ``since``, ``until``, ``stacks``, ``answers`` (folder, see ``own_stack``), ``ras``, ``seconds`` (of
    each program)."""
    for line in collect(json.loads(sys.argv[1])):
        print(json.dumps(line), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
