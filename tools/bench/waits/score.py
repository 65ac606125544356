"""Runs the unit tests of generated functions, each in a process of its own with limits.

score.py SAMPLES SCORES --test SECONDS

A test takes a wait of known length besides, as tests of larger programs would take CPU time.
"""

import argparse
import json
import os
import resource
import signal
import time
from pathlib import Path

SECONDS, MEMORY = 2, 256 << 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("samples", type=Path)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--test", type=float, required=True)
    given = parser.parse_args()
    found = [json.loads(line) for path in sorted(given.samples.iterdir()) for line in path.read_text().splitlines()]
    passed = sum(passes(f"{sample['code']}\n{sample['test']}\n", given.test) for sample in found)
    given.scores.write_text(json.dumps({"pass@1": passed / len(found), "samples": len(found)}))


def passes(program: str, seconds: float) -> bool:
    """What a model wrote is not trusted: no files to write, little time and memory."""
    child = os.fork()
    if not child:
        run(program)
    time.sleep(seconds)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def run(program: str) -> None:
    """Ends the process: with 0 where the test passes."""
    try:
        signal.alarm(10 * SECONDS)
        for kind, most in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, 0)):
            resource.setrlimit(kind, (most, most))
        exec(compile(program, "sample", "exec"), {})
    except BaseException:
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
