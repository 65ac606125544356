"""Which process goes on with its loop, where several print into one stream."""

from collections.abc import Sequence

import pytest

from diagnoser.compress import Compressor, digest
from diagnoser.localize.progress import ProgressTimeline
from diagnoser.model import LineBlock, Stream
from diagnoser.structure.loops import find_loops

_PREFIXES = {
    "learned names of ranks": ("w0> ", "w1> ", "w2> "),
    "learned names of hosts": ("[gpu-a7] ", "[gpu-b7] ", "[gpu-c7] "),
    "pods and their containers": ("llm-worker-0 main ", "llm-worker-1 main ", "llm-worker-2 main "),
    "a parallel shell": ("gpu-04: ", "gpu-05: ", "gpu-06: "),
}


def _log(prefixes: Sequence[str], shape: str, last_steps: Sequence[int]) -> list[str]:
    """A loop of each process, which ends at its own step; the second one raises behind its 40th."""
    lines = [f"{prefix}reading the table of samples" for prefix in prefixes]
    for step in range(1, 120):
        for prefix, last in zip(prefixes, last_steps, strict=True):
            if step <= last:
                lines.append(prefix + shape.format(step, 1 / step))
        if step == 40:
            lines.append(f"{prefixes[1]}Exception: no such column")
    return [*lines, *(f"{prefix}the model is written" for prefix in prefixes[::2])]


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("shape", ["Iteration {}: RSS/n = {:.6f}", "step {} loss {:.4f}"])
@pytest.mark.parametrize("prefixes", _PREFIXES.values(), ids=_PREFIXES)
def test_only_its_own_loop_shows_that_a_process_went_on(prefixes: Sequence[str], shape: str, goes_on: bool) -> None:
    """Others train to their own end beside a process that has died."""
    log = _log(prefixes, shape, (119, 119 if goes_on else 40, 119))
    compressor = Compressor()
    compressor.feed(LineBlock(Stream(), "\n".join(log).encode(), 1))
    evidence = digest(compressor.take()).evidence
    (raised,) = (line for line in evidence.lines if "no such column" in line.text)
    went_on = find_loops(evidence).went_on(raised, 2) or ProgressTimeline(evidence).went_on(raised)
    assert went_on is goes_on
