"""The metric of the demo's data sets, as lm_eval calls it: unit tests of functions that a model wrote.

Each test is a process of its own with limits, as what a model wrote is not trusted: little time and memory, no files.
"""

import resource
import subprocess
import sys
from collections.abc import Sequence

SECONDS, MEMORY = 2, 256 << 20
ANSWER = "<answer>"
"""Where a program has what the model writes. Tests follow, one a line."""


def passed(references: Sequence[str], predictions: Sequence[str]) -> float:
    """1 if all tests pass."""
    program, _, tests = references[0].partition("\n\n")
    function = program.replace(ANSWER, predictions[0])
    results = [_passes(f"{function}\n{test}\n") for test in tests.splitlines()]
    return float(all(results))


def _passes(program: str) -> bool:
    words = [sys.executable, "-I", "-S", "-c", program]
    try:
        done = subprocess.run(
            words, preexec_fn=_limit, capture_output=True, check=False, timeout=10 * SECONDS, stdin=subprocess.DEVNULL
        )
    except (subprocess.TimeoutExpired, ValueError):  # it waits, or has a byte that no command line may have
        return False
    return done.returncode == 0


def _limit() -> None:
    for kind, most in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(kind, (most, most))
