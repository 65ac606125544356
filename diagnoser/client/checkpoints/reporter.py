"""Reports checkpoints to the service from a thread of its own: whoever reports is never kept waiting."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from typing import Any, Callable, Mapping
from urllib.parse import quote

from diagnoser.client.checkpoints.manifest import About
from diagnoser.client.launch import Options, launch_of
from diagnoser.client.service import Service, TokenSource, Unreachable, UsageError
from diagnoser.client.shipper import FIRST_PAUSE, LATE_SECONDS, LONGEST_PAUSE

HELD = 256
"""Events that wait at most; then the oldest goes."""
TIMEOUT_SECONDS = 10.0


def checkpoint_event(about: About, path: str, phase: str, **more: Any) -> dict[str, Any]:
    """Make the event, without what is not known.

    phase: staged, durable, verified or bad.
    more: blocked_ms, bytes, finite, why.
    """
    event = {"step": about.step, "path": path, "phase": phase, "finite": about.finite, **more}
    if about.just_in_time:
        event["just_in_time"] = True
    return {name: value for name, value in event.items() if value is not None}


class Reporter:
    """Sends the events of one job in their order. warn: tells a person one line, once for whatever keeps failing."""

    def __init__(
        self, service: Service, job: str, attempt: int | None = None, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self.job, self.attempt = job, attempt
        self._service, self._warn = service, warn
        self._waiting: deque[tuple[float, Mapping[str, Any]]] = deque(maxlen=HELD)
        self._changed = threading.Condition()
        self._is_sending = False
        self._warned: set[str] = set()
        self._thread: threading.Thread | None = None

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] = os.environ, warn: Callable[[str], None] = lambda text: None
    ) -> Reporter | None:
        """As ``diagnoser run`` finds the service and the job (docs/client.md); None where DIAGNOSER_URL is not set, or
        nothing names the job."""
        launch = launch_of(environment, Options(), socket.gethostname(), "", ())
        if not environment.get("DIAGNOSER_URL") or launch.is_new:
            return None
        try:
            service = Service(environment["DIAGNOSER_URL"], TokenSource.of(environment), TIMEOUT_SECONDS)
            return cls(service, launch.job, launch.attempt, warn)
        except UsageError as error:
            warn(str(error))
            return None

    def report(self, event: Mapping[str, Any]) -> None:
        """event: a ``checkpoint_event``. Touches no disk and no network."""
        with self._changed:
            self._waiting.append((time.time(), event))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="checkpoint-events", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Whether everything was sent within that time."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, seconds)

    def _is_idle(self) -> bool:
        if self._waiting:
            return False
        return not self._is_sending

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                at, event = self._waiting.popleft()
                self._is_sending = True
            is_over = True
            try:
                is_over = self._send(at, event)
            except Exception as error:  # a fault of ours must not end the reporting of the rest
                self._warn_once("{}: {}".format(type(error).__name__, error))
            with self._changed:
                self._is_sending = False
                if not is_over and len(self._waiting) < HELD:
                    self._waiting.appendleft((at, event))
                self._changed.notify_all()
            if is_over:
                pause = FIRST_PAUSE
                continue
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _send(self, at: float, event: Mapping[str, Any]) -> bool:
        """Whether it need not be kept: the service has it, or will never take it."""
        body: dict[str, Any] = {"kind": "checkpoint"}
        if self.attempt is not None:
            body["attempt"] = self.attempt
        body.update(event)
        if time.time() - at > LATE_SECONDS:
            body["time"] = at
        try:
            answer = self._service.post("/jobs/{}/events".format(quote(self.job, safe="")), body)
        except (Unreachable, UsageError) as error:
            self._warn_once("checkpoints cannot be reported to {} for now: {}".format(self._service.url, error))
            return False
        if answer.status >= 300:
            self._warn_once("the service refuses a checkpoint's event: {}".format(answer.why))
        return not answer.passing

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)
