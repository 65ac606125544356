"""Small jobs that are made to hang, and what is true of them."""

import errno
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

import orjson

from tests.environments import TORCH

TRAINER = Path(__file__).parent / "trainer.py"
PATIENCE_SECONDS = 300.0
"""Until a run stands still, on a machine that is busy with other things."""
SIZES = (4, 8, 16)
_EAGER = ("R", "D")
"""States of a thread that wants to run."""
_SETTLING_STEPS = 5
"""Until all others have called the collective in which they wait: a data loader is three batches ahead of its rank."""
_LOOKS, _LOOK_SECONDS = 5, 0.1
LABEL = "label.json"
STEP_SECONDS = 0.01
"""Of a run that only its own runtime is asked about."""


class HangKind(StrEnum):
    ASLEEP = "asleep"
    STOPPED = "stopped"  # by SIGSTOP
    OTHER_COLLECTIVE = "other_collective"
    OTHER_SIZE = "other_size"
    ENDED_EARLY = "ended_early"
    DATA_LOADER = "data_loader"  # waits for a shard that does not come
    OTHER_ORDER = "other_order"  # calls two groups in another order: a deadlock
    SLOW = "slow"
    MISSED_BARRIER = "missed_barrier"
    NETWORK_CUT = "network_cut"  # its link goes down


@dataclass(frozen=True, slots=True)
class HangCase:
    """culprit: the rank that holds up the others."""

    kind: HangKind
    ranks: int
    culprit: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.ranks}-{self.culprit}"


@dataclass(frozen=True, slots=True)
class HangLabel:
    """shown: whether most of the other ranks left a dump; a run that gloo ends with an abort leaves none. nodes: of the
    ranks, where a scheduler placed them."""

    kind: HangKind
    ranks: int
    culprit: int
    shown: bool
    nodes: dict[int, str]

    def write(self, folder: Path) -> None:
        nodes = {str(rank): node for rank, node in self.nodes.items()}
        content = {"kind": self.kind, "ranks": self.ranks, "culprit": self.culprit, "shown": self.shown, "nodes": nodes}
        (folder / LABEL).write_bytes(orjson.dumps(content))

    @staticmethod
    def read(folder: Path) -> "HangLabel":
        content = orjson.loads((folder / LABEL).read_bytes())
        nodes = {int(rank): node for rank, node in content["nodes"].items()}
        return HangLabel(HangKind(content["kind"]), content["ranks"], content["culprit"], content["shown"], nodes)


Launcher = Callable[[HangCase, Path], HangLabel]
"""Makes one run hang. The folder is new, and gets the evidence and the label."""


def cases() -> list[HangCase]:
    """Each kind with each number of ranks; the culprit differs."""
    sizes = enumerate((kind, ranks) for kind in HangKind for ranks in SIZES)
    return [HangCase(kind, ranks, random.Random(place).randrange(ranks), place) for place, (kind, ranks) in sizes]


def missing(case: HangCase) -> str:
    """Why it cannot be run here; "" when it can."""
    if case.kind is HangKind.NETWORK_CUT and not (os.geteuid() == 0 and all(map(shutil.which, ("ip", "nsenter")))):
        return "a network of its own for one rank needs root, iproute2 and nsenter"
    return TORCH.missing


def command(case: HangCase, folder: Path, step_seconds: float = STEP_SECONDS) -> list[str]:
    given = (folder, case.kind, case.ranks, case.culprit, case.seed, step_seconds)
    return [str(TORCH.python), str(TRAINER), *map(str, given)]


def prepare(case: HangCase, folder: Path) -> None:
    folder.mkdir(parents=True)
    for rank in range(case.ranks):
        os.mkfifo(folder / f"ask_{rank}")


def run(case: HangCase, folder: Path) -> HangLabel:
    """The case as processes of this machine. folder: new, gets the evidence and the label."""
    prepare(case, folder)
    with (folder / "output.log").open("wb") as output:
        job = subprocess.Popen(command(case, folder), stdout=output, stderr=output, start_new_session=True)
    try:
        return collect(case, folder)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def collect(
    case: HangCase,
    folder: Path,
    step_seconds: float = STEP_SECONDS,
    node_of: Callable[[int], str] | None = None,
) -> HangLabel:
    """Waits until the run stands still, asks each rank for its evidence, and labels it. node_of: of a rank."""
    wait = _Wait(case, folder)
    wait.until("held up", (folder / "held").exists)
    time.sleep(_SETTLING_STEPS * step_seconds)
    pids = {rank: int((folder / f"pid_{rank}").read_text()) for rank in range(case.ranks)}
    still = [pid for rank, pid in pids.items() if not (case.kind is HangKind.SLOW and rank == case.culprit)]
    wait.until("still", lambda: _stand_still(still))
    for rank, pid in pids.items():
        if _state(pid) == "T":
            _dump_of_py_spy(folder / f"stack_{rank}.txt", pid)
        elif _ask(folder / f"ask_{rank}"):
            wait.until(f"answered by rank {rank}", partial(_has_answered, folder / f"stack_{rank}.txt", pid))
    others = [rank for rank in pids if rank != case.culprit]
    shown = 2 * sum((folder / f"_dump_{rank}").exists() for rank in others) > len(others)
    label = HangLabel(
        case.kind, case.ranks, case.culprit, shown, {rank: node_of(rank) for rank in pids} if node_of else {}
    )
    label.write(folder)
    return label


class _Wait:
    """For events; PATIENCE_SECONDS are for all of them."""

    def __init__(self, case: HangCase, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.deadline = time.monotonic() + PATIENCE_SECONDS

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        while not holds():
            if time.monotonic() > self.deadline:
                output = "".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
                raise AssertionError(f"{self.case.name} was not {what}\n{output}")
            time.sleep(_LOOK_SECONDS)


def _stand_still(pids: Iterable[int]) -> bool:
    """Whether no main thread has run while, time after time, each thread that wanted to had its turn.

    How fast the machine is does not matter. gloo's own threads look around a hundred times a second.
    """
    mains = [Path(f"/proc/{pid}") for pid in pids]
    before = list(map(_switches, mains))
    for _ in range(_LOOKS):
        threads = [thread for main in mains for thread in main.glob("task/*")]
        waiting = {thread: _switches(thread) for thread in threads if _state_of(thread) in _EAGER}
        while waiting:
            time.sleep(_LOOK_SECONDS)
            waiting = {
                thread: count
                for thread, count in waiting.items()
                if _state_of(thread) in _EAGER and _switches(thread) == count
            }
        time.sleep(_LOOK_SECONDS)
        if list(map(_switches, mains)) != before or any(_state_of(main) in _EAGER for main in mains):
            return False
    return True


def _state(pid: int) -> str:
    """Letters of the states of all threads, "T" for a process that was stopped, "" for one that is gone."""
    letters = {_state_of(thread) for thread in Path(f"/proc/{pid}/task").glob("*")}
    return "".join(sorted(letters - {"", "Z", "X"}))


def _state_of(thread: Path) -> str:
    """A letter, "" for one that is gone."""
    with suppress(OSError):
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _switches(thread: Path) -> str:
    """How often it has begun or ceased to run."""
    with suppress(OSError):
        lines = (thread / "status").read_text().splitlines()
        return "".join(line for line in lines if "ctxt_switches" in line)
    return ""


def _has_answered(path: Path, pid: int) -> bool:
    return path.exists() or _is_gone(pid)


def _is_gone(pid: int) -> bool:
    return not _state(pid)


def _ask(pipe: Path) -> bool:
    """Whether a rank reads the pipe, and so will answer."""
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return False
        raise
    return True


def _dump_of_py_spy(path: Path, pid: int) -> None:
    """The stack of a process that cannot answer. Without the right to look into it there is none."""
    program = str(TORCH.python.parent / "py-spy")
    done = subprocess.run([program, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, check=False)
    if done.returncode == 0:
        path.write_bytes(done.stdout)
