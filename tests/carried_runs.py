"""Small runs of several ranks that fail, in the formats of real launchers: each line with the rank that prints it."""

from collections.abc import Mapping
from dataclasses import dataclass

from diagnoser.accuracy.scoring import Label
from tests.carriers import LabelledRun, SpokenLine, spoken

RANKS = 4
NODES = {0: "gpu-11", 1: "gpu-11", 2: "gpu-14", 3: "gpu-14"}


@dataclass(frozen=True)
class Fault:
    """message: the exception line of the rank that fails. end: what the launcher says at last, "" for a plain exit."""

    type: str
    category: str
    message: str
    rank: int
    recovery: str = "notify_user"
    end: str = ""


FAULTS: Mapping[str, Fault] = {
    "key": Fault("key_error", "script", "KeyError: 'labels'", 2),
    "type": Fault("type_error", "script", "TypeError: collate() takes 1 positional argument but 2 were given", 1),
    "index": Fault("index_error", "script", "IndexError: list index out of range", 3),
    "attribute": Fault("attribute_error", "framework", "AttributeError: 'NoneType' object has no attribute 'shape'", 2),
    "zero": Fault("zero_division_error", "framework", "ZeroDivisionError: float division by zero", 0),
    "file": Fault(
        "file_not_found_error", "script", "FileNotFoundError: [Errno 2] No such file or directory: '/data/s3.bin'", 3
    ),
    "permission": Fault(
        "permission_error", "script", "PermissionError: [Errno 13] Permission denied: '/data/s2.bin'", 2
    ),
    "import": Fault("import_error", "script", "ModuleNotFoundError: No module named 'flash_attn'", 1),
    "name": Fault("name_error", "script", "NameError: name 'micro_batch' is not defined", 3),
    "memory": Fault(
        "out_of_memory_error",
        "framework",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a capacity of 79.15 GiB"
        " of which 312.19 MiB is free.",
        2,
    ),
    "assertion": Fault("assertion_error", "framework", "AssertionError: sequence is longer than the table", 1),
    "segfault": Fault("segmentation_fault", "framework", "", 3, end="Segmentation fault (core dumped)"),
}


def run(name: str) -> LabelledRun:
    """A run under ``srun --label``, with its truth."""
    fault = FAULTS[name]
    said: list[tuple[int | None, str]] = [(None, "+ srun --label --ntasks-per-node=2 python -u train.py --steps 400")]
    said += [(rank, f"rank {rank} on node {NODES[rank]} (local rank {rank % 2})") for rank in range(RANKS)]
    for step in range(1, 9):
        said += [(rank, f"step {step}/400 loss {3.1 - step / 9:.4f}") for rank in range(RANKS)]
    other = (fault.rank + 1) % RANKS
    raised = _traceback(fault.message) if fault.message else []
    said += [(fault.rank, line) for line in raised]
    said.append((other, "step 9/400 loss 2.1000"))
    exit_line = fault.end or "Exited with exit code 1"
    said.append((None, f"srun: error: {NODES[fault.rank]}: task {fault.rank}: {exit_line}"))
    said.append((None, "srun: launch/slurm: _step_signal: Terminating StepId=71.0"))
    said += [
        (None, f"srun: error: {NODES[rank]}: task {rank}: Terminated") for rank in range(RANKS) if rank != fault.rank
    ]
    said.append((None, "srun: Force Terminated StepId=71.0"))
    texts = [text for _, text in said]
    root = fault.message or f"srun: error: {NODES[fault.rank]}: task {fault.rank}: {exit_line}"
    label = Label(
        id=name,
        category=fault.category,
        type=fault.type,
        root_lines=(texts.index(root) + 1,),
        root_text=root,
        recovery=fault.recovery,
        node=NODES[fault.rank],
        rank=fault.rank,
    )
    return LabelledRun(label, tuple(_spoken(rank, text, number) for number, (rank, text) in enumerate(said)))


def _traceback(message: str) -> list[str]:
    return [
        "Traceback (most recent call last):",
        '  File "/srv/llm/train.py", line 91, in <module>',
        "    main()",
        '  File "/srv/llm/train.py", line 70, in main',
        "    loss = step(next(batches))",
        '  File "/srv/llm/data.py", line 33, in __next__',
        "    return self.read(self.index)",
        message,
    ]


def _spoken(rank: int | None, text: str, number: int) -> SpokenLine:
    whole = text if rank is None else f"{rank}: {text}"
    return spoken(whole, text, rank, None if rank is None else NODES[rank], number)
