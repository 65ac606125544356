"""Real ranks save with ``torch.distributed.checkpoint``, one is killed in each phase, and others load what is chosen.

python -m tests.checkpoint_ranks FOLDER, where torch and numpy are; prints what came of each case as JSON. torch is
imported once, and ranks are forks of this process.
"""

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path

import torch
import torch._dynamo  # torch imports it, and the next, where it first saves: once is enough for all forks
import torch.distributed.checkpoint._fsspec_filesystem
from torch import distributed
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from diagnoser.client.checkpoints import Checkpointer, latest, verify
from tests.checkpoint_trainer import KillSwitch

RANKS, LOADERS = 3, 2
ROWS, COLUMNS = 60, 512
TIMEOUT = timedelta(seconds=60)
RANKS_SECONDS = 1.0
REDUCTIONS = 50
CASES: tuple[tuple[str, int, str], ...] = (
    ("nobody is killed", 0, "never"),
    ("a rank does not come", 2, "absent"),
    ("a rank writes its shard", 1, "open __1_0.distcp"),
    ("rank 0 writes the metadata", 0, "open .metadata"),
    ("a rank sums its shard", 2, "read __2_0.distcp"),
    ("a rank writes its manifest", 1, "open manifest-00001.json"),
    ("rank 0 completes", 0, "rename COMPLETE.json"),
)  # fmt: skip
_numbers = count()


class KillAt(KillSwitch):
    """Kills this process before the first operation of that name, once it is armed."""

    def __init__(self, folder: str, name: str) -> None:
        super().__init__(folder, 0)
        self._name, self.is_armed = name, False

    def operation(self, name: str) -> None:
        if self.is_armed and name.startswith(self._name):
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    outcomes: dict[str, list[dict[str, object]]] = {}
    for kind, cases in (("save", CASES[:3]), ("async_save", CASES)):
        root = folder / kind
        root.mkdir()
        for number, (name, victim, operation) in enumerate(cases):
            first = 10 * (number + 1)
            codes = forked(folder, RANKS, partial(train, root, first, kind, victim, operation))
            found = latest(str(root))
            step = found.completion.about.step if found and found.completion else None
            outcome = {"case": name, "codes": codes, "expected": first + (operation == "never"), "chosen": step}
            outcomes.setdefault(kind, []).append(outcome)
        outcomes[kind].append({"loaded": forked(folder, LOADERS, partial(load, root))})
    found = latest(str(folder / "save"))
    assert found is not None
    shard = Path(found.path) / "__1_0.distcp"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    after = latest(str(folder / "save"))
    damaged = {
        "faulty": [fault.file for fault in verify(found.path).faults],
        "went back": after is not None and after.path != found.path,
    }
    sys.stdout.write(json.dumps({**outcomes, "damaged": damaged}) + "\n")


def weights(step: int) -> torch.Tensor:
    return torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS) + step


def train(root: Path, first: int, kind: str, victim: int, operation: str, rank: int) -> None:
    """Saves twice; in the second save the victim is killed, and what becomes of the others is theirs."""
    switch = KillAt(str(root), operation if rank == victim else "never")
    mesh = init_device_mesh("cpu", (RANKS,))
    with Checkpointer(root, rank=rank, ranks=RANKS, ranks_seconds=RANKS_SECONDS) as checkpointer:
        for step in (first, first + 1):
            state = {"weights": distribute_tensor(weights(step), mesh, [Shard(0)]), "step": step}
            if step > first and rank == victim and operation == "absent":
                os._exit(0)
            switch.is_armed = step > first
            if kind == "save":
                pending = checkpointer.save(step, partial(_save, state), loss=1.0)
            else:
                pending = checkpointer.async_save(step, state, loss=1.0)
                for _ in range(REDUCTIONS):  # the training goes on meanwhile, and its ranks talk, too
                    distributed.all_reduce(torch.ones(1))
            pending.result(TIMEOUT.total_seconds())
            distributed.barrier()  # as steps are: rank 0 has completed before a victim can be killed


def load(root: Path, rank: int) -> None:
    """What is chosen is what was saved, on another number of ranks."""
    found = latest(str(root))
    assert found is not None
    assert found.completion is not None
    mesh = init_device_mesh("cpu", (LOADERS,))
    state = {"weights": distribute_tensor(torch.zeros(ROWS, COLUMNS), mesh, [Shard(0)]), "step": 0}
    dcp.load(state, checkpoint_id=found.path)
    assert state["step"] == found.completion.about.step
    assert torch.equal(state["weights"].full_tensor(), weights(found.completion.about.step))


def forked(folder: Path, ranks: int, act: Callable[[int], None]) -> list[int]:
    """Exit codes, negative for signals."""
    store, children = folder / f"store-{next(_numbers)}", []
    for rank in range(ranks):
        if child := os.fork():
            children.append(child)
            continue
        code = 1
        try:
            method = f"file://{store}"
            distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=ranks, timeout=TIMEOUT)
            act(rank)
            code = 0
        except BaseException as error:
            sys.stderr.write(f"rank {rank}: {type(error).__name__}: {str(error)[:200]}\n")
        finally:
            os._exit(code)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _save(state: dict[str, object], path: str) -> None:
    dcp.save(state, checkpoint_id=path)


if __name__ == "__main__":
    main()
