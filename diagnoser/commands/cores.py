"""Does the same work for several files on several cores."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, cast

from diagnoser.model.errors import BadInput

T = TypeVar("T")

_work: Callable[[Path], object] | None = None
"""What the processes do: they are forked with it, so that rules and settings need not be sent."""


def each_on_a_core(work: Callable[[Path], T], paths: Sequence[Path], *, alone: bool) -> Iterator[T]:
    """The result for each file, in their order, as it is there. alone: in this process, where work has a connection."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if alone or min(cores, len(paths)) < 2 or Path("-") in paths:
        yield from map(work, paths)
        return
    # A single file needs none of it.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    global _work
    _work = work
    with ProcessPoolExecutor(min(cores, len(paths)), multiprocessing.get_context("fork")) as pool:
        try:
            yield from cast(Iterator[T], pool.map(_do, paths))
        except BrokenProcessPool:
            raise BadInput("a process was killed, perhaps for want of memory: give one file at a time") from None


def _do(path: Path) -> object:
    assert _work is not None
    return _work(path)
