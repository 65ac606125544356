"""What the ranks of a node print in a run that one of its GPUs ends, each to a file of its own."""

from dataclasses import dataclass
from pathlib import Path

JOB, NODE, BROKEN = "llm-7b", "gpu-017", 5
"""BROKEN: the rank whose GPU fails."""
STEPS = 60
HEALTHY = 4
"""The other rank of the node."""
_FAILURE = """\
[rank5]: Traceback (most recent call last):
[rank5]:   File "/app/train.py", line 214, in <module>
[rank5]:     main()
[rank5]:   File "/app/train.py", line 187, in main
[rank5]:     loss.backward()
[rank5]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 648, in backward
[rank5]:     torch.autograd.backward(
[rank5]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered
[rank5]: Search for `cudaErrorECCUncorrectable' in the CUDA runtime API documentation for more information.
"""
_TIMEOUT = """\
[rank4]:[E1118 03:24:31.427958829 ProcessGroupNCCL.cpp:685] [Rank 4] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=88412, OpType=ALLREDUCE, NumelIn=67379200, NumelOut=67379200, Timeout(ms)=600000) ran for 600076 \
milliseconds before timing out.
[rank4]:[E1118 03:24:31.427958829 ProcessGroupNCCL.cpp:744] [Rank 4] To avoid data inconsistency, we are taking the \
entire process down.
"""


@dataclass(frozen=True)
class FailingRun:
    """Its files below ``folder``, which grow in two parts: a shipper meets the second in the middle of its work."""

    folder: Path

    def path(self, rank: int) -> Path:
        return self.folder / JOB / f"rank-{rank}.log"

    def begin(self) -> int:
        """The first half of the steps. Returns how many lines there are now.

        The first line of each file is its own: a collector takes files that begin alike for one.
        """
        half = _steps(1, STEPS // 2)
        return self._write({rank: f"> rank {rank} of 8 uses cuda:{rank % 2}\n{half}" for rank in (HEALTHY, BROKEN)})

    def fail(self) -> int:
        """The rest, with the failure. Returns how many lines that adds."""
        rest = _steps(STEPS // 2 + 1, STEPS)
        return self._write({BROKEN: rest + _FAILURE, HEALTHY: rest + _TIMEOUT})

    def _write(self, texts: dict[int, str]) -> int:
        for rank, text in texts.items():
            self.path(rank).parent.mkdir(parents=True, exist_ok=True)
            with self.path(rank).open("a") as file:
                file.write(text)
        return sum(text.count("\n") for text in texts.values())


def _steps(first: int, last: int) -> str:
    return "".join(
        f"[2026-11-18 03:{step // 60:02}:{step % 60:02}] iteration {step:8}/   50000 | lm loss: {7 - step / 50:.4f} | "
        f"elapsed time per iteration (ms): {900 + step % 7}.2 |\n"
        for step in range(first, last + 1)
    )
