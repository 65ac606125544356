"""Sends lines that wait, and the start and end of a run: one request at a time, patiently, in its own thread."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Protocol
from urllib.parse import quote

from diagnoser.client.backlog import LINGER_SECONDS, Segment
from diagnoser.client.launch import Launch
from diagnoser.client.service import Answer, Service, Unreachable, UsageError

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
REFUSED_PAUSE = 60.0
"""After a refused token: somebody has to do something first."""
LATE_SECONDS = 5.0
"""An event that could not be sent for longer than this carries its own time; else the service's clock counts."""


@dataclass
class Waiting:
    """What ``Shipper.finish`` waits for. at: seconds since the epoch. deadline: monotonic; then the end is reported
    whatever lines there still are."""

    event: dict[str, Any]
    at: float
    deadline: float


class Lines(Protocol):
    """Where the lines come from; ``Backlog``, for one."""

    def take(self, *, newest: bool = False) -> Segment | None: ...
    def done(self, segment: Segment) -> None: ...
    def put_back(self, segment: Segment) -> None: ...
    def lose(self, segment: Segment) -> None: ...
    def flush(self) -> None: ...


class Refused(Exception):
    """The service took the request for good or for now not. pause: seconds until another try."""

    def __init__(self, why: str, pause: float) -> None:
        super().__init__(why)
        self.pause = pause


@dataclass(eq=False)
class Shipper:
    """Ships the lines of one launch. reports_start: whether this is where the launch begins. clock: monotonic seconds;
    wall: seconds since the epoch. warn: tells a person one line, once for whatever keeps failing."""

    service: Service
    lines: Lines
    launch: Launch
    warn: Callable[[str], None]
    clock: Callable[[], float]
    wall: Callable[[], float]
    reports_start: bool = True

    def __post_init__(self) -> None:
        self._began = self.wall()
        self._pause = FIRST_PAUSE
        self._again = 0.0
        self._is_introduced = False
        self._ending: Waiting | None = None
        self._warned: set[str] = set()
        self._woken = threading.Event()
        self.attempt = self.launch.attempt
        self.failure = ""
        self.reported: dict[str, Any] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        """For ever; a daemon thread."""
        while True:
            try:
                wait = self.step()
            except Exception as error:  # a fault of ours must not end the shipping of the rest
                wait = self._failed("{}: {}".format(type(error).__name__, error), 0.0)
            self._woken.wait(wait)
            self._woken.clear()

    def step(self) -> float:
        """At most one request of lines. Seconds until there may be something to do."""
        now = self.clock()
        if now < self._again:
            return self._again - now
        try:
            if not self._is_introduced:
                self._introduce()
            wait = self._advance()
            self._pause, self.failure = FIRST_PAUSE, ""
            return wait
        except (Unreachable, UsageError) as error:
            return self._failed(str(error), 0.0)
        except Refused as error:
            return self._failed(str(error), error.pause)

    def finish(self, event: dict[str, Any], flush_seconds: float) -> None:
        """Nothing more is added to the backlog. event: of the end, reported after the lines or ``flush_seconds``, then
        ``ended`` is set. {} where somebody else reports the end."""
        self.lines.flush()
        self._ending = Waiting(event, self.wall(), self.clock() + flush_seconds)
        self._again = 0.0
        self._woken.set()

    def close(self) -> None:
        self.service.close()

    @property
    def end_time(self) -> str:
        """Give the time of the end as the service noted it (ISO 8601); "" before it did."""
        event = self.reported.get("event")
        if not isinstance(event, dict):
            return ""
        return str(event.get("time") or "")

    def _advance(self) -> float:
        unreported = None
        if not self.ended.is_set():
            unreported = self._ending
        if unreported is not None and self.clock() >= unreported.deadline:
            self._report(unreported)
            return 0.0
        segment = self.lines.take(newest=self._ending is not None)  # the last lines tell most about an end
        if segment is None:
            if unreported is not None:
                self._report(unreported)
            return LINGER_SECONDS
        self._send(segment)
        return 0.0

    def _introduce(self) -> None:
        """Finds out which attempt this is, and reports that it began."""
        path, launch = "/jobs/" + quote(self.launch.job, safe=""), self.launch
        if self.attempt is None:
            self.attempt = _next_attempt(self._checked(self.service.get(path), also=(403, 404)))
        if launch.leads and self.reports_start:
            self._report_start(path)
        self._is_introduced = True

    def _report_start(self, path: str) -> None:
        launch = self.launch
        if launch.name:  # a token may be too narrow for it
            self._checked(self.service.post("/jobs", {"id": launch.job, "name": launch.name}), also=(400, 403))
        answer = self._checked(self.service.post(path + "/events", self._event({"kind": "started"}, self._began)))
        if self.attempt is None:
            self.attempt = answer.fields().get("attempt")

    def _report(self, ending: Waiting) -> None:
        if ending.event:
            path = "/jobs/" + quote(self.launch.job, safe="") + "/events"
            self.reported = self._checked(self.service.post(path, self._event(ending.event, ending.at))).fields()
        self.ended.set()

    def _event(self, event: Mapping[str, Any], at: float) -> dict[str, Any]:
        body: dict[str, Any] = {**self._place(), **event}
        if self.wall() - at > LATE_SECONDS:
            body["time"] = at
        return body

    def _place(self) -> dict[str, Any]:
        place: dict[str, Any] = {}
        if self.attempt is not None:
            place["attempt"] = self.attempt
        if self.launch.node:
            place["node"] = self.launch.node
        if self.launch.rank >= 0:
            place["rank"] = self.launch.rank
        return place

    def _send(self, segment: Segment) -> None:
        if not segment.body:
            self.lines.lose(segment)
            return
        query = {"job": self.launch.job, "source": segment.source, "offset": segment.first, **self._place()}
        if segment.rank >= 0:
            query["rank"] = segment.rank
        try:
            answer = self.service.post_lines(query, segment.body, packed=segment.packed)
            if answer.status in (400, 413, 415, 422):
                self.lines.done(segment)
                self._warn_once("refused", "the service refuses some lines: {}".format(answer.why))
                return
            self._checked(answer)
        except BaseException:
            self.lines.put_back(segment)
            raise
        self.lines.done(segment)

    def _checked(self, answer: Answer, also: tuple[int, ...] = ()) -> Answer:
        """Raises Refused."""
        if answer.status < 300:
            return answer
        if answer.status in also:
            return answer
        if answer.refuses_token:
            raise Refused("it refuses the token: {}".format(answer.why), REFUSED_PAUSE)
        raise Refused(answer.detail or "it answers {}".format(answer.status), min(answer.retry_after, REFUSED_PAUSE))

    def _failed(self, why: str, pause: float) -> float:
        """Others fail at the same moment: they must not all come back at the same moment."""
        self.failure = why
        text = "nothing can be sent to {} for now: {}. Lines are kept and sent later".format(self.service.url, why)
        self._warn_once("failed", text)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        wait = max(pause, self._pause) * random.uniform(0.7, 1.3)  # noqa: S311
        if self._ending is not None:
            wait = min(wait, 1.0)
        self._again = self.clock() + wait
        return wait

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self.warn(text)


def _next_attempt(answer: Answer) -> int | None:
    """The attempt after one that has ended, else the one under way. None: a token that may not read leaves it to the
    service."""
    if answer.status == 403:
        return None
    attempts: list[dict[str, Any]] = []
    if answer.status == 200:
        attempts = answer.fields().get("attempts", attempts)
    if not attempts:
        return 1
    last = max(attempts, key=lambda attempt: int(attempt["number"]))
    return int(last["number"]) + (last.get("ended") is not None)
