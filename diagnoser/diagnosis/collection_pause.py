"""Lets the collector of garbage wait while much is read that stays."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_paused = 0
_was_enabled = True


@contextmanager
def collection_paused() -> Iterator[None]:
    """A stored log becomes hundreds of thousands of objects that all stay, and none of them is garbage: the collector
    would walk them over and over, for half of the time that reading takes. Several threads may be within it.
    """
    global _paused, _was_enabled
    with _lock:
        if not _paused:
            _was_enabled = gc.isenabled()
            gc.disable()
        _paused += 1
    try:
        yield
    finally:
        with _lock:
            _paused -= 1
            if not _paused and _was_enabled:
                gc.enable()
