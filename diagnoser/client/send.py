"""`send`: hands a finished log to the service and prints its diagnosis."""

from __future__ import annotations

import gzip
import os
import time
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Iterator

from diagnoser.client import report
from diagnoser.client.backlog import LINE_BYTES, Segment
from diagnoser.client.launch import Launch, Options, launch_of
from diagnoser.client.run import ServerOptions, say, show
from diagnoser.client.service import Service, UsageError
from diagnoser.client.shipper import Shipper

AWAY_SECONDS = 30.0
"""After so long without an answer from the service it is given up."""
PACKED = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zX": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}


@dataclass(frozen=True)
class SendOptions:
    """file: "-" for standard input. code: that the run ended with, None when it is not known. wait: in seconds."""

    server: ServerOptions
    identity: Options
    file: str
    code: int | None = None
    wait: float = 60.0
    as_json: bool = False


@dataclass(frozen=True)
class SentLog:
    """What the service has taken. failure: why it has not taken everything, else "". ended: the service's own time of
    the end, ISO 8601, "" where it gave none."""

    launch: Launch
    lines: int
    attempt: int | None = None
    ended: str = ""
    failure: str = ""


def send(options: SendOptions) -> int:
    """0 when there is a diagnosis, whatever it says. Raises UsageError for a log that cannot be read."""
    service = Service(options.server.url, options.server.token)
    for caution in service.cautions():
        say(caution)
    sent = hand_over(service, options)
    if sent.failure:
        say("given up: {}".format(sent.failure))
        return 1
    if not sent.lines:
        raise UsageError("{} is empty".format(options.file))
    url = options.server.url.rstrip("/")
    try:
        diagnosis = report.wait_for_diagnosis(
            service, sent.launch.job, sent.attempt, sent.ended, options.wait, lambda: False
        )
    except report.NoDiagnosis as error:
        say(
            "{} lines were sent, no diagnosis to show ({}): look at {}".format(
                sent.lines, error, report.page_of_job(url, sent.launch.job)
            )
        )
        return 1
    show(diagnosis, url, as_json=options.as_json, target=1)
    return 0


def hand_over(service: Service, options: SendOptions) -> SentLog:
    """Send all of the log, and that the run has ended. Raises UsageError for a log that cannot be read."""
    stamp = "{}.{}".format(time.strftime("%m%d-%H%M%S"), os.getpid())
    name = "log"
    if options.file != "-":
        name = os.path.basename(options.file)
    launch = launch_of({}, options.identity, "", stamp, (name,))
    source = "stdout"
    if not launch.is_new:
        source = "{}@{}".format(name, stamp)[-100:]
    with _opened(options.file) as log:
        lines = LinesOfLog(log, source)
        shipper = Shipper(service, lines, launch, say, time.monotonic, time.time)
        event: dict[str, Any] = {"kind": "exit"}
        if options.code is not None:
            event["code"] = options.code
        shipper.finish(event, float("inf"))
        if not _send_all(shipper):
            return SentLog(launch, lines.sent, failure=str(shipper.failure))
    return SentLog(launch, lines.sent, shipper.attempt, shipper.end_time)


def _send_all(shipper: Shipper) -> bool:
    """Step until all is sent; False when the service was away for too long."""
    away_since = 0.0
    while not shipper.ended.is_set():
        wait = shipper.step()
        if not shipper.failure:
            away_since = 0.0
            continue
        if not away_since:
            away_since = time.monotonic()
        if time.monotonic() > away_since + AWAY_SECONDS:
            return False
        if not shipper.ended.is_set():
            time.sleep(wait)
    return True


class LinesOfLog:
    """The lines of one log from its beginning to its end. ``shipper.Lines``."""

    def __init__(self, log: IO[bytes], source: str) -> None:
        self._log = log
        self._source = source
        self._rest = b""
        self._waiting: Segment | None = None
        self.sent = 0

    def take(self, *, newest: bool = False) -> Segment | None:
        """Raises UsageError when the log cannot be read to its end."""
        if self._waiting is None:
            try:
                data = self._log.read(LINE_BYTES)
            except (OSError, EOFError, zlib.error) as error:
                raise BrokenLog("the log cannot be read to its end: {}".format(error)) from None
            whole = self._rest + data
            end = len(whole)
            if data and end < 2 * LINE_BYTES:
                end = whole.rfind(b"\n") + 1
            body, self._rest = whole[:end], whole[end:]
            if not body:
                if not data:
                    return None
                return self.take()
            lines = body.count(b"\n") + (not body.endswith(b"\n"))
            self._waiting = Segment(self._source, self.sent, lines, body, len(body))
        return self._waiting

    def done(self, segment: Segment) -> None:
        self.sent, self._waiting = self.sent + segment.lines, None

    lose = done

    def put_back(self, segment: Segment) -> None:
        pass

    def flush(self) -> None:
        pass


class BrokenLog(Exception):
    """A log that ends in the middle of its compressed data; the message names it."""


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    """Unpacked, if its first bytes say gzip, whatever its name is. Raises UsageError."""
    file: str | int = name
    if name == "-":
        file = 0  # standard input
    try:
        raw = open(file, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UsageError("{} cannot be read: {}".format(name, error.strerror)) from None
    with raw:
        head = raw.peek(4)[:4]
        for magic, kind in PACKED.items():
            if head.startswith(magic):
                raise UsageError(
                    "{} is packed with {}: unpack it, as in `{} -dc {} | ... send -`".format(name, kind, kind, name)
                )
        if head.startswith(b"\x1f\x8b"):
            yield gzip.GzipFile(fileobj=raw)  # type: ignore[misc]
        else:
            yield raw
