"""Runs whose ranks print into files of their own, without times, and of which one crashes: by seed, always the same."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from diagnoser.model import LineBlock, Stream

START = 1_790_000_000.0
FRAMES = (
    "Traceback (most recent call last):",
    '  File "/workspace/train.py", line 211, in <module>',
    "    main(parse_args())",
    '  File "/workspace/train.py", line 187, in main',
    "    loss = train_step(model, batch)",
    '  File "/workspace/trainer/loop.py", line 92, in train_step',
    "    out = model(batch)",
)
EXCEPTIONS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 1.01 GiB is free. Including non-PyTorch memory, this process has 78.08 GiB memory in use.",
    "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "KeyError: 'labels'",
    "ValueError: Expected input batch_size (16) to match target batch_size (15).",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/shards/train-00417.tar'",
    "IndexError: list index out of range",
    "AssertionError: sequence length 4097 exceeds the maximum of 4096",
    "OSError: [Errno 28] No space left on device: '/scratch/ckpt/step_800/optim.pt'",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x1024 and 2048x512)",
)
CUT_OFF = (
    "torch.distributed.DistBackendError: NCCL error in: /torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, "
    "remote process exited or there was a network error, NCCL version 2.27.3",
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by "
    "peer [10.0.0.7]:31412",
)
STEPS = (
    "step {step} | loss {loss:.4f} | lr 3.0e-04",
    " iteration {step:8d}/   20000 | consumed samples: {samples:12d} | lm loss: {loss:.6E} | grad norm: 1.042 |",
    "{{'loss': {loss:.4f}, 'grad_norm': 1.118, 'learning_rate': 0.0003, 'step': {step}}}",
    "[trainer] step={step} loss={loss:.3f} tokens/s=10412",
)
PEERS = ("train on a little", "hang", "are cut off")


@dataclass(frozen=True)
class CrashedRun:
    """logs: the lines of each rank, whose number is the index. rank: the one that crashed. exits: whether an event
    tells that the run has ended."""

    seed: int
    logs: tuple[tuple[str, ...], ...]
    rank: int
    exits: bool

    def alone(self) -> bytes:
        """The log of the rank that crashed."""
        return _text([line.encode() for line in self.logs[self.rank]])

    def bodies(self) -> list[LineBlock]:
        """What a shipper that takes the files in turn sends, in order of arrival: 10 to 200 lines of one file each."""
        files = {stream_of(rank): tuple(map(str.encode, lines)) for rank, lines in enumerate(self.logs)}
        return shipped(files, random.Random(self.seed + 1))


def crashed_run(seed: int) -> CrashedRun:
    """A run of 2 to 16 ranks; size, fault, place of the fault, and how the others end are drawn by the seed."""
    draw = random.Random(seed)
    count, exception, form = draw.randint(2, 16), draw.choice(EXCEPTIONS), draw.choice(STEPS)
    rank, last, peers = draw.randrange(count), draw.randint(5, 300), draw.choice(PEERS)
    logs = []
    for number in range(count):
        loss = 9.0
        lines = [f"[rank{number}] initializing torch distributed, world size {count}", "loading tokenizer"]
        more = draw.randint(0, 3) if number != rank and peers != "hang" else 0
        for step in range(1, last + more + 1):
            loss = max(1.5, loss * 0.995 + draw.uniform(-0.01, 0.01))
            lines.append(form.format(step=step, loss=loss, samples=step * 512))
        if number == rank:
            lines += [*FRAMES, exception]
        elif peers == "are cut off" and draw.random() < 0.8:
            lines += [*FRAMES, draw.choice(CUT_OFF)]
        logs.append(tuple(lines))
    return CrashedRun(seed, tuple(logs), rank, exits=draw.random() < 0.5)


def shipped(files: Mapping[Stream, Sequence[bytes]], draw: random.Random, start: float = START) -> list[LineBlock]:
    """The lines of each file in bodies of 10 to 200, the files in an order that is drawn, a moment apart."""
    left = {stream: list(_cut(lines, draw)) for stream, lines in files.items()}
    blocks, now = [], start
    numbers = dict.fromkeys(left, 1)
    while left:
        stream = draw.choice(sorted(left))
        body = left[stream].pop(0)
        now += draw.uniform(0.01, 2.0)
        blocks.append(LineBlock(stream, _text(body), numbers[stream], received=now))
        numbers[stream] += len(body)
        if not left[stream]:
            del left[stream]
    return blocks


def stream_of(rank: int) -> Stream:
    """As `diagnoser ship` names the file of a rank."""
    return Stream(f"/logs/rank{rank}.log", "", rank)


def _cut(lines: Sequence[bytes], draw: random.Random) -> Iterator[Sequence[bytes]]:
    begin = 0
    while begin < len(lines):
        end = begin + draw.randint(10, 200)
        yield lines[begin:end]
        begin = end


def _text(lines: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)
