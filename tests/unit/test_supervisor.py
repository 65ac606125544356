"""The parent of the service's processes."""

import signal
from types import SimpleNamespace

import pytest

from diagnoser.supervisor import Supervisor


def test_a_service_that_was_paused_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause Python may answer with a number that is no signal: only SIGTERM and SIGINT end the service."""
    received = iter([SimpleNamespace(si_signo=740_670_432), SimpleNamespace(si_signo=signal.SIGTERM)])
    monkeypatch.setattr(signal, "sigtimedwait", lambda *_: next(received))
    assert Supervisor(["api"]).run([])
    assert next(received, None) is None
