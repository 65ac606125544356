"""A last save when the scheduler asks the process to end, or when a peer has failed, by ranks whose state is whole."""

from __future__ import annotations

import math
import os
import signal
import threading
from typing import Any, Callable

from diagnoser.client.checkpoints.manifest import TwoWriters
from diagnoser.client.checkpoints.saver import Checkpointer, PendingCheckpoint


class JustInTime:
    """Around a training loop, in the main thread::

        with JustInTime(checkpointer, save) as guard:
            for step, batch in enumerate(batches):
                loss = forward_and_backward(batch)
                guard.updating()
                optimizer.step()
                guard.finished(step, loss.item())

    save: writes the state into the directory that it is given, and needs no peer (``torch.save``, not a collective).
    replicated: every rank has the whole state, so that the first that comes saves it; else each rank saves its part,
    and it counts only when all did.

    SIGTERM is acted on in ``finished``; then the process ends as it would have. An exception that leaves the block is
    acted on unless it came between ``updating`` and ``finished``, which is known only where the loop calls both. What
    is saved is the last finished step, and only where its loss was finite. A handler that was there before is called
    first.
    """

    def __init__(self, checkpointer: Checkpointer, save: Callable[[str], object], *, replicated: bool = True) -> None:
        self._checkpointer, self._save, self._replicated = checkpointer, save, replicated
        self._step, self._loss = -1, math.nan
        self._is_updating: bool | None = None
        self._is_asked_to_end = self._is_saved = False
        self._handler: Any = signal.SIG_DFL
        self.saved: PendingCheckpoint | None = None

    def __enter__(self) -> JustInTime:
        if threading.current_thread() is threading.main_thread():  # no other thread may set a handler
            self._handler = signal.signal(signal.SIGTERM, self._asked_to_end)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        wants_save = self._is_asked_to_end
        if error is not None:
            wants_save = self._is_updating is not None
        if wants_save:
            self._save_now()
        if self._handler is None:
            return
        if signal.getsignal(signal.SIGTERM) == self._asked_to_end:
            signal.signal(signal.SIGTERM, self._handler)
            self._end()

    def updating(self) -> None:
        """Parameters change from here on: what fails before ``finished`` leaves a state that nobody should keep."""
        self._is_updating = True

    def finished(self, step: int, loss: float) -> None:
        """Call it between two steps, when parameters, optimizer and counters agree.

        loss: as a number, not a tensor of a GPU.
        """
        self._step, self._loss = step, loss
        if self._is_updating:
            self._is_updating = False
        if self._is_asked_to_end:
            self._save_now()
            self._end()

    def _asked_to_end(self, number: int, frame: Any) -> None:
        self._is_asked_to_end = True
        if callable(self._handler):
            self._handler(number, frame)

    def _end(self) -> None:
        """As without us: a handler of somebody else has been called already."""
        if self._is_asked_to_end and self._handler == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def _has_state_to_save(self) -> bool:
        if self._is_saved:
            return False
        if self._is_updating:
            return False  # the weights are of two steps
        if self._step < 0:
            return False  # no step has ended yet
        return math.isfinite(self._loss)

    def _save_now(self) -> None:
        if not self._has_state_to_save():
            return
        self._is_saved = True
        checkpointer = self._checkpointer.for_last_save(replicated=self._replicated)
        try:
            self.saved = checkpointer.save(self._step, self._save, loss=self._loss, just_in_time=True)
            self.saved.result()
        except TwoWriters:
            return  # another rank saves the same
        except Exception:
            return  # it is reported, does not count, and must not hide why the run ends
        finally:
            checkpointer.close()
