"""`run`: a command as it would run without us, its output and its end shipped, and its diagnosis when it fails."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

from diagnoser.client import report
from diagnoser.client.backlog import Backlog
from diagnoser.client.launch import Launch, Options, launch_of
from diagnoser.client.relay import ENDING, Command, exit_as, write_all
from diagnoser.client.service import Service, TokenSource, UsageError
from diagnoser.client.shipper import Shipper

FLUSH_SECONDS = 10.0
"""For the last lines, before the end is reported."""
AWAY_SECONDS = 2.0
"""For a service that does not answer."""
STOPPED_SECONDS = 5.0
"""For everything, when somebody asked the command to end: whoever did kills it soon."""
STREAMS = ("stdout", "stderr")
SOURCE_LENGTH = 100


@dataclass(frozen=True)
class ServerOptions:
    url: str
    token: TokenSource


@dataclass(frozen=True)
class RunOptions:
    """wait: seconds for a diagnosis. spool: folder, "" for the usual one of temporary files. source: what the streams
    are called, "" for names that no other launch has."""

    server: ServerOptions
    identity: Options
    wait: float = 30.0
    spool: str = ""
    source: str = ""
    as_json: bool = False


def run(options: RunOptions, words: Sequence[str], environment: Mapping[str, str]) -> int:
    """The command's exit code. Where a signal ended it, the same signal ends this process."""
    stamp = "{}.{}".format(time.strftime("%m%d-%H%M%S"), os.getpid())
    launch = launch_of(environment, options.identity, socket.gethostname(), stamp, words)
    backlog = Backlog(time.monotonic, options.spool or None)
    shipper = _shipper(options, launch, backlog)
    names = sources(launch, options.source, stamp)

    def copy(stream: str, data: bytes) -> None:
        if shipper:
            backlog.add(names[stream], data)

    try:
        command = Command(words, environment, copy)
    except OSError as error:
        say("{}: {}".format(words[0], error.strerror))
        return 127 if error.errno == errno.ENOENT else 126
    if shipper:
        for work in (shipper.run, backlog.spill_forever):
            threading.Thread(target=work, daemon=True).start()
    status = command.wait()
    command.drain()
    try:
        if shipper:
            _finish(options, shipper, backlog, status, was_stopped=command.was_stopped)
        for fault in command.faults:
            say(fault)
    except Exception as error:  # whatever is wrong with us is nothing to the command
        say("the end could not be reported: {}: {}".format(type(error).__name__, error))
    command.leave()
    return exit_as(status)


def say(text: str) -> None:
    """One line on standard error, which may be closed."""
    with suppress(OSError):
        write_all(2, "diagnoser: {}\n".format(report.printable(text)).encode("utf-8", "replace"))


def _shipper(options: RunOptions, launch: Launch, backlog: Backlog) -> Shipper | None:
    """Make the shipper; None when nothing can be shipped: the command runs all the same."""
    if not options.server.url:
        say("nothing is shipped: name the service with --server or DIAGNOSER_URL")
        return None
    try:
        service = Service(options.server.url, options.server.token)
    except UsageError as error:
        say("nothing is shipped: {}".format(error))
        return None
    for caution in service.cautions():
        say(caution)
    return Shipper(service, backlog, launch, say, time.monotonic, time.time)


def sources(launch: Launch, given: str, stamp: str) -> dict[str, str]:
    """Names of the streams. Lines are counted within a stream, and those of another launch must not be taken for ours:
    only a job id that nobody else has makes the plain names safe."""
    if given:
        return {"stdout": given, "stderr": given + ".stderr"}
    pod = launch.pod + "." if launch.pod else ""
    mark = "" if launch.is_new else "@" + stamp
    return {stream: (pod + stream + mark)[-SOURCE_LENGTH:] for stream in STREAMS}


def _finish(options: RunOptions, shipper: Shipper, backlog: Backlog, status: int, *, was_stopped: bool) -> None:
    launch, is_failure = shipper.launch, status != 0
    patience = STOPPED_SECONDS if was_stopped else FLUSH_SECONDS
    deadline = time.monotonic() + patience
    shipper.finish(_end(status) if launch.leads or is_failure else {}, patience)
    is_over = _interrupted(deadline, shipper)
    while not shipper.ended.wait(0.05) and not is_over():
        pass
    if not shipper.ended.is_set():
        say(
            "{} lines were not sent: {}".format(
                backlog.waiting + backlog.dropped, shipper.failure or "no time was left"
            )
        )
        return
    if is_failure:
        _show(options, shipper, STOPPED_SECONDS if was_stopped else options.wait)
    _tell_losses(shipper, backlog)


def _end(status: int) -> dict[str, Any]:
    if os.WIFSIGNALED(status):
        return {"kind": "exit", "signal": os.WTERMSIG(status)}
    return {"kind": "exit", "code": os.WEXITSTATUS(status)}


def _show(options: RunOptions, shipper: Shipper, seconds: float) -> None:
    """One rank speaks for all: what is the same a thousand times helps nobody."""
    url, launch = options.server.url.rstrip("/"), shipper.launch
    page = report.page_of_job(url, launch.job)
    if not launch.leads:
        say("rank {} failed; the diagnosis will be at {}".format(launch.rank, page))
        return
    service = Service(options.server.url, options.server.token)
    since = ((shipper.reported or {}).get("event") or {}).get("time") or ""
    deadline = time.monotonic() + seconds
    try:
        diagnosis = report.wait_for_diagnosis(
            service, launch.job, shipper.attempt, since, seconds, _interrupted(deadline, None)
        )
    except report.NoDiagnosis as error:
        say("no diagnosis to show ({}): look at {}".format(error, page))
    else:
        show(diagnosis, url, as_json=options.as_json, target=2)
    finally:
        service.close()


def show(diagnosis: dict[str, Any], url: str, *, as_json: bool, target: int) -> None:
    """To a file descriptor; with colours if it is a terminal."""
    if as_json:
        text = json.dumps(diagnosis) + "\n"
    else:
        is_terminal = os.isatty(target)
        width = shutil.get_terminal_size().columns if is_terminal else report.WIDTH
        page = report.page_of(url, diagnosis)
        text = report.rendered(diagnosis, page, width, colour=is_terminal and "NO_COLOR" not in os.environ)
    write_all(target, text.encode("utf-8", "replace"))


def _tell_losses(shipper: Shipper, backlog: Backlog) -> None:
    if backlog.dropped:
        say(
            "{} lines were dropped: they came faster than they could be sent, and the spool was full".format(
                backlog.dropped
            )
        )
    if backlog.disk_fault:
        say("the spool could not be written: {}".format(backlog.disk_fault))
    waiting = backlog.waiting
    if waiting:
        say("{} lines were not sent: {}".format(waiting, shipper.failure or "no time was left"))


def _interrupted(deadline: float, shipper: Shipper | None) -> Callable[[], bool]:
    """Whether to stop waiting: a signal has come (they are held back until we look), or the time is up."""
    began = time.monotonic()

    def is_over() -> bool:
        if signal.sigpending() & ENDING:
            return True
        now = time.monotonic()
        is_away = shipper is not None and shipper.failure and now > began + AWAY_SECONDS
        return bool(is_away) or now > deadline + 1.0

    return is_over
