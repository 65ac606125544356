"""Logs that take long to read, without their size."""

import threading

import pytest

from diagnoser.compress import AttemptLog
from diagnoser.diagnosis import log_indexes
from diagnoser.logview.log_index import LogIndex


def hold_logs(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Every log counts as large, and none is read before the event is set."""
    may_read, read = threading.Event(), log_indexes._indexed

    def held(log: AttemptLog) -> tuple[LogIndex, int]:
        may_read.wait()
        return read(log)

    monkeypatch.setattr(log_indexes, "READ_AT_ONCE", -1)
    monkeypatch.setattr(log_indexes, "_indexed", held)
    return may_read
