"""`run`: a command as it would run without us, its output and its end shipped, and its diagnosis when it fails."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Collection, Mapping, Sequence

from diagnoser.client import report
from diagnoser.client.backlog import Backlog
from diagnoser.client.checkpoints.report_spool import LISTING_VARIABLE
from diagnoser.client.checkpoints.reporter import deliver
from diagnoser.client.evidence import DUMPS_SECONDS, STACKS_VARIABLE, EvidenceResponder, send_left_dumps
from diagnoser.client.launch import Launch, Options, launch_of
from diagnoser.client.relay import ENDING, Command, exit_as, write_all
from diagnoser.client.service import Service, TokenSource, Unreachable, UsageError
from diagnoser.client.shipper import Shipper

FLUSH_SECONDS = 10.0
"""For the last lines, before the end is reported."""
AWAY_SECONDS = 2.0
"""For a service that does not answer."""
STOPPED_SECONDS = 5.0
"""For everything, when somebody asked the command to end: whoever did kills it soon."""
REPORTS_SECONDS = 60.0
"""For reports of checkpoints that the trainer could not send, before the end is reported."""
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
    backlog = Backlog(time.monotonic, options.spool)
    shipper = _shipper(options, launch, backlog)
    names = sources(launch, options.source, stamp)

    def copy(stream: str, data: bytes) -> None:
        if shipper:
            backlog.add(names[stream], data)

    listing, stacks = _reports_listing(), _stacks_folder()
    try:
        command = Command(words, {**environment, **_for_the_trainer(options, launch, listing, stacks)}, copy)
    except OSError as error:
        _remove(listing, stacks)
        return _not_started(words[0], error)
    began = time.time()
    ranks: set[int] = set()
    if shipper:
        for work in (shipper.run, backlog.spill_forever):
            threading.Thread(target=work, daemon=True).start()
        ranks = _answer_for(options, shipper, backlog, command.pid, stacks)
    status = command.wait()
    command.drain()
    try:
        if shipper:
            _deliver_reports(options, listing, was_stopped=bool(command.stopped_by))
            if status and not command.stopped_by:
                _send_dumps(options, shipper, ranks, environment, began)
            _finish(options, shipper, backlog, status, command.stopped_by)
        for fault in command.faults:
            say(fault)
    except Exception as error:  # whatever is wrong with us is nothing to the command
        say("the end could not be reported: {}: {}".format(type(error).__name__, error))
    _remove(listing, stacks)
    command.leave()
    return exit_as(status)


def _not_started(program: str, error: OSError) -> int:
    """Say why. Returns the exit code that a shell gives."""
    say("{}: {}".format(program, error.strerror))
    if error.errno == errno.ENOENT:
        return 127
    return 126


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


def _answer_for(options: RunOptions, shipper: Shipper, backlog: Backlog, pid: int, stacks: str) -> set[int]:
    """Answer the service when it asks about the ranks of the command; those that are seen are added to the result."""
    service = Service(options.server.url, options.server.token)
    responder = EvidenceResponder(service, shipper, pid, stacks, lambda: backlog.last_added, time.monotonic)
    responder.start()
    return responder.ranks


def _send_dumps(
    options: RunOptions, shipper: Shipper, ranks: Collection[int], environment: Mapping[str, str], began: float
) -> None:
    """Send what the ranks left behind: the verdict on a timeout rests on it."""
    service = Service(options.server.url, options.server.token, DUMPS_SECONDS)
    with suppress(Unreachable):
        send_left_dumps(service, shipper, ranks, environment, began)
    service.close()


def sources(launch: Launch, given: str, stamp: str) -> dict[str, str]:
    """Names of the streams. Lines are counted within a stream, and those of another launch must not be taken for ours:
    only a job id that nobody else has makes the plain names safe."""
    if given:
        return {"stdout": given, "stderr": given + ".stderr"}
    pod = mark = ""
    if launch.pod:
        pod = launch.pod + "."
    if not launch.is_new:
        mark = "@" + stamp
    return {stream: (pod + stream + mark)[-SOURCE_LENGTH:] for stream in STREAMS}


def _finish(options: RunOptions, shipper: Shipper, backlog: Backlog, status: int, stopped_by: int) -> None:
    launch, is_failure = shipper.launch, status != 0
    patience, wait = FLUSH_SECONDS, options.wait
    if stopped_by:
        patience = wait = STOPPED_SECONDS
    event: dict[str, Any] = {}
    if launch.leads or is_failure:
        event = _end(status, stopped_by)
    deadline = time.monotonic() + patience
    shipper.finish(event, patience)
    is_over = _interrupted(deadline, shipper)
    while not shipper.ended.wait(0.05):
        if is_over():
            break
    if not shipper.ended.is_set():
        _say_unsent(shipper, backlog.waiting + backlog.dropped)
        return
    if is_failure:
        _show(options, shipper, wait)
    _tell_losses(shipper, backlog)


def _reports_listing() -> str:
    """Make the file in which a trainer says where it keeps its reports; "" where there is no room for it."""
    try:
        handle, path = tempfile.mkstemp(prefix="diagnoser-reports-")
    except OSError:
        return ""
    os.close(handle)
    return path


def _stacks_folder() -> str:
    """Make the folder in which ranks write their stacks; "" where there is no room for it."""
    try:
        return tempfile.mkdtemp(prefix="diagnoser-stacks-")
    except OSError:
        return ""


def _for_the_trainer(options: RunOptions, launch: Launch, listing: str, stacks: str) -> dict[str, str]:
    """Say in variables what a saver of checkpoints needs to report them, and where stacks may be written.

    launch: what the saver reports them for, whatever names it here.
    listing, stacks: see ``_reports_listing`` and ``_stacks_folder``.
    """
    variables = {LISTING_VARIABLE: listing, STACKS_VARIABLE: stacks, "DIAGNOSER_JOB": launch.job}
    if launch.attempt is not None:
        variables["DIAGNOSER_ATTEMPT"] = str(launch.attempt)
    if options.server.url:
        variables["DIAGNOSER_URL"] = options.server.url
    return variables


def _remove(listing: str, stacks: str) -> None:
    with suppress(OSError):
        os.unlink(listing)
    shutil.rmtree(stacks, ignore_errors=True)


def _deliver_reports(options: RunOptions, listing: str, *, was_stopped: bool) -> None:
    """Send what the trainer could not of its checkpoints: a plan made at its end has to know the newest good one."""
    seconds = REPORTS_SECONDS
    if was_stopped:
        seconds = AWAY_SECONDS
    service = Service(options.server.url, options.server.token, REPORTS_SECONDS)
    try:
        left = deliver(listing, service, seconds)
    finally:
        service.close()
    if left:
        say("{} reports of checkpoints were not sent: the next launch sends them".format(left))


def _say_unsent(shipper: Shipper, lines: int) -> None:
    say("{} lines were not sent: {}".format(lines, shipper.failure or "no time was left"))


def _end(status: int, stopped_by: int) -> dict[str, Any]:
    event: dict[str, Any] = {"kind": "exit"}
    if stopped_by:
        event["reason"] = signal.Signals(stopped_by).name
    if os.WIFSIGNALED(status):
        return {**event, "signal": os.WTERMSIG(status)}
    return {**event, "code": os.WEXITSTATUS(status)}


def _show(options: RunOptions, shipper: Shipper, seconds: float) -> None:
    """One rank speaks for all: what is the same a thousand times helps nobody."""
    url, launch = options.server.url.rstrip("/"), shipper.launch
    page = report.page_of_job(url, launch.job)
    if not launch.leads:
        say("rank {} failed; the diagnosis will be at {}".format(launch.rank, page))
        return
    service = Service(options.server.url, options.server.token)
    is_over = _interrupted(time.monotonic() + seconds, None)
    try:
        diagnosis = report.wait_for_diagnosis(service, launch.job, shipper.attempt, shipper.end_time, seconds, is_over)
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
        width, colour = report.WIDTH, False
        if os.isatty(target):
            width, colour = shutil.get_terminal_size().columns, "NO_COLOR" not in os.environ
        text = report.rendered(diagnosis, report.page_of(url, diagnosis), width, colour=colour)
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
        _say_unsent(shipper, waiting)


def _interrupted(deadline: float, shipper: Shipper | None) -> Callable[[], bool]:
    """Whether to stop waiting: a signal has come (they are held back until we look), or the time is up."""
    began = time.monotonic()

    def is_over() -> bool:
        if signal.sigpending() & ENDING:
            return True
        now = time.monotonic()
        if now > deadline + 1.0:
            return True
        if shipper is None:
            return False
        if not shipper.failure:
            return False
        return now > began + AWAY_SECONDS

    return is_over
