"""Reports checkpoints to the service from a thread of its own: whoever reports is never kept waiting."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Callable, Mapping, Sequence
from urllib.parse import quote

from diagnoser.client.checkpoints.manifest import About
from diagnoser.client.checkpoints.report_spool import (
    LISTING_VARIABLE,
    PendingReport,
    ReportSpool,
    is_report_file,
    read_reports,
)
from diagnoser.client.launch import Options, launch_of
from diagnoser.client.service import Answer, Service, TokenSource, Unreachable, UsageError
from diagnoser.client.shipper import FIRST_PAUSE, LATE_SECONDS, LONGEST_PAUSE

STAGED = "staged"
HELD = 256
"""Reports that wait in memory at most; then the oldest goes."""
TIMEOUT_SECONDS = 60.0
"""For one answer: the thread waits for nobody else, and a busy service is slow."""
LISTING_BYTES = 64 << 10
SLOW_SECONDS = 0.5
"""For an answer, from which on reports of one checkpoint are joined."""


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
    """Sends the reports of one job, in the order of its checkpoints, from a thread of its own.

    service: where they go.
    job, attempt: that saves; None for the newest attempt.
    warn: gets one line for a person, once for whatever keeps failing.
    """

    def __init__(
        self, service: Service, job: str, attempt: int | None = None, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self.job, self.attempt = job, attempt
        self._service, self._warn = service, warn
        self._waiting: deque[PendingReport] = deque(maxlen=HELD)
        self._is_slow = False
        self._changed = threading.Condition()
        self._is_sending = False
        self._warned: set[str] = set()
        self._thread: threading.Thread | None = None
        self._spool: ReportSpool | None = None

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

    def spool_to(self, spool: ReportSpool, *, takes_over: bool) -> None:
        """Keep reports on the disk until they are sent; the first spool stays.

        takes_over: send what earlier processes left in the folder, too.
        """
        if self._spool is not None:
            return
        self._spool = spool
        left = spool.take_over() if takes_over else []
        listing = os.environ.get(LISTING_VARIABLE)
        if listing:
            with suppress(OSError), open(listing, "a", encoding="utf-8") as file:
                file.writelines(path + "\n" for path in spool.paths)
        if left:
            with self._changed:
                self._add(left)

    def report(self, event: Mapping[str, Any]) -> None:
        """Report a checkpoint; touches no network, and the disk only for what is more than staged.

        event: a ``checkpoint_event``.
        """
        report = PendingReport(self.job, self.attempt, time.time(), event)
        with self._changed:
            if event.get("phase") != STAGED:
                self._write_down(report)
            self._add([report])

    def flush(self, seconds: float) -> bool:
        """Wait until everything was sent; False when it was not within that time."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, seconds)

    def _add(self, reports: Sequence[PendingReport]) -> None:
        """Let reports wait for the thread. The caller holds the lock."""
        self._waiting.extend(reports)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoint-events", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _write_down(self, report: PendingReport) -> None:
        if self._spool is None:
            return
        try:
            self._spool.append(report)
        except OSError as error:
            self._warn_once("reports of checkpoints are kept in memory only: {}".format(error))

    def _is_idle(self) -> bool:
        if self._waiting:
            return False
        return not self._is_sending

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            report = self._next()
            began = time.monotonic()
            is_over = True
            try:
                is_over = self._send(report)
            except Exception as error:  # an error of ours must not end the reporting of the rest
                self._warn_once("{}: {}".format(type(error).__name__, error))
            self._is_slow = not is_over or time.monotonic() - began > SLOW_SECONDS
            with self._changed:
                self._is_sending = False
                if not is_over and len(self._waiting) < HELD:
                    self._waiting.appendleft(report)
                if self._spool is not None and self._is_idle():
                    self._spool.clear()
                self._changed.notify_all()
            if is_over:
                pause = FIRST_PAUSE
                continue
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _next(self) -> PendingReport:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting))
            self._is_sending = True
            report = self._waiting.popleft()
            if self._is_slow:
                report = self._joined(report)
            return report

    def _joined(self, report: PendingReport) -> PendingReport:
        """Join a report with the later ones of its checkpoint: a slow service needs to hear the last phase only."""
        others: deque[PendingReport] = deque(maxlen=HELD)
        for later in self._waiting:
            if later.checkpoint == report.checkpoint:
                report = report.followed_by(later)
            else:
                others.append(later)
        self._waiting = others
        return report

    def _send(self, report: PendingReport) -> bool:
        """Whether it need not be kept: the service has it, or will never take it."""
        try:
            answer = send_report(self._service, report, time.time())
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


def send_report(service: Service, report: PendingReport, now: float) -> Answer:
    """Send one report. now: seconds since the epoch. Raises Unreachable, UsageError."""
    body: dict[str, Any] = {"kind": "checkpoint"}
    if report.attempt is not None:
        body["attempt"] = report.attempt
    body.update(report.event)
    if now - report.at > LATE_SECONDS:
        body["time"] = report.at
    return service.post("/jobs/{}/events".format(quote(report.job, safe="")), body)


def deliver(listing: str, service: Service, seconds: float) -> int:
    """Send what a trainer that ended could not, and return how many reports are left.

    listing: file in which it named its spools; it may be missing.
    seconds: for all of it; a service that does not answer ends it at once.
    """
    try:
        with open(listing, encoding="utf-8") as file:
            spools = file.read(LISTING_BYTES).splitlines()
    except OSError:
        return 0
    deadline = time.monotonic() + seconds
    left = 0
    for path in filter(is_report_file, dict.fromkeys(spools)):
        waiting: dict[Any, PendingReport] = {}
        for report in read_reports(path):
            before = waiting.get(report.checkpoint, report)
            waiting[report.checkpoint] = before.followed_by(report)
        for key, report in reversed(list(waiting.items())):  # the newest decides where a plan goes back to
            if time.monotonic() > deadline or not _is_sent(service, report):
                break
            del waiting[key]
        left += len(waiting)
        if not waiting:
            with suppress(OSError):
                os.unlink(path)
    return left


def _is_sent(service: Service, report: PendingReport) -> bool:
    try:
        return not send_report(service, report, time.time()).passing
    except (Unreachable, UsageError):
        return False
