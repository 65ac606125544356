"""`checkpoint verify|list|latest|resume|prune`: on any node that sees the files, without a GPU and without torch.

Exit codes: 0 it is so; 1 it is damaged, or there is none; 2 the options cannot be used; 3 it is not complete.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any, Callable, Mapping

from diagnoser.client.checkpoints.reporter import Reporter, checkpoint_event
from diagnoser.client.checkpoints.verification import (
    THREADS,
    NoCheckpoint,
    State,
    Verification,
    find,
    latest,
    prunable,
    remove,
    resume,
    verify,
)
from diagnoser.client.service import Service, UsageError

CODES = {State.VERIFIED: 0, State.COMPLETE: 0, State.DAMAGED: 1, State.INCOMPLETE: 3}
NONE_FOUND = 1
BAR_WIDTH = 32
REDRAW_SECONDS = 0.1
REPORT_SECONDS = 30.0
WHY_LENGTH = 500

_FOLDER = "Folder that holds checkpoints."
_ABOUT = {
    "verify": (
        "Read a checkpoint and compare its checksums.",
        "Read every file of a checkpoint and compare it with the checksums of its manifests. Exit code 0: verified; 1: "
        "damaged; 3: it was never completed.",
    ),
    "list": (
        "List the checkpoints of a folder.",
        "List the checkpoints of a folder, the newest first, by names and sizes alone: nothing is read.",
    ),
    "latest": (
        "Print the newest checkpoint that a run may go on from.",
        "Print the path of the newest complete checkpoint whose loss was finite. What was saved just in time is read "
        "before it is chosen. Exit code 1: there is none.",
    ),
    "resume": (
        "Print the checkpoint that this launch goes on from.",
        "As latest --verified; but where a recovery plan names a checkpoint (DIAGNOSER_CHECKPOINT), print that one if "
        "it verifies, else the newest verified one of an earlier step. What was saved after the way back goes before "
        "both. Exit code 1: there is none.",
    ),
    "prune": (
        "Remove what is older than the newest verified checkpoints.",
        "Name the complete checkpoints that are older than the newest that verify now. Nothing is removed without "
        "--delete, and nothing while fewer than --keep verify. Saves that were killed a day earlier go, too.",
    ),
}
"""Short and long description of each action."""

Commands = Any
"""What argparse calls ``_SubParsersAction``, which has parameters since Python 3.9 only at run time."""


def add_parsers(commands: Commands) -> argparse.ArgumentParser:
    """The parser of `verify`, which may be given options of the service."""
    made: dict[str, argparse.ArgumentParser] = {}
    for name, (short, about) in _ABOUT.items():
        made[name] = commands.add_parser(name, help=short, description=about)
        metavar, path = ("PATH", "Directory of the checkpoint.") if name == "verify" else ("DIR", _FOLDER)
        made[name].add_argument("path", metavar=metavar, help=path)
    made["verify"].add_argument("--report", action="store_true", help="Report the outcome to the service.")
    made["latest"].add_argument(
        "--verified", action="store_true", help="Read it first, and go on to the next if it is damaged."
    )
    made["latest"].add_argument("--before", type=int, metavar="STEP", help="Only checkpoints of earlier steps.")
    made["prune"].add_argument(
        "--keep", type=number_from_1, default=3, metavar="N", help="How many must verify, and stay."
    )
    made["prune"].add_argument("--delete", action="store_true", help="Remove them.")
    for name, command in made.items():
        if name != "list":
            command.add_argument(
                "--threads", type=number_from_1, default=THREADS, metavar="N", help="Threads that read."
            )
        command.add_argument("--json", action="store_true", help="Print JSON.")
    return made["verify"]


def main(options: argparse.Namespace, service: Callable[[], Service]) -> int:
    """The exit code. service: raises UsageError where none is named. Raises UsageError."""
    if not os.path.exists(options.path):
        raise UsageError("{} does not exist".format(options.path))
    if not os.path.isdir(options.path):
        raise UsageError("{} is a file: name its directory".format(options.path))
    return ACTIONS[options.action](options, service)


def _verify(options: argparse.Namespace, service: Callable[[], Service]) -> int:
    inside = find(options.path)
    if inside and inside[0].path != os.path.abspath(options.path):
        raise UsageError("{} is a folder of checkpoints: name one, {}".format(options.path, inside[0].path))
    started = time.monotonic()
    with _Bar() as bar:
        found = verify(options.path, options.threads, bar.draw)
    seconds = time.monotonic() - started
    if options.json:
        _print(json.dumps({**as_json(found), "seconds": round(seconds, 3)}))
    else:
        _print(_row(found))
        for fault in found.faults:
            _print("  {}".format(fault))
        if found.unlisted:
            _print("  {} files are in no manifest, {} for one".format(len(found.unlisted), found.unlisted[0]))
    if options.report:
        _report(found, options, service())
    return CODES[found.state]


def _list(options: argparse.Namespace, service: Callable[[], Service]) -> int:
    found = find(options.path)
    if options.json:
        _print(json.dumps(list(map(as_json, found))))
    else:
        for each in found:
            _print(_row(each))
    if not found:
        _say("{} holds no checkpoint with a manifest".format(options.path))
    return 0


def _latest(options: argparse.Namespace, service: Callable[[], Service]) -> int:
    with _Bar() as bar:
        found = latest(
            options.path, options.before, verified=options.verified, threads=options.threads, progress=bar.draw
        )
    return _chosen(found, options, "no checkpoint of {} can be used".format(options.path))


def _resume(options: argparse.Namespace, service: Callable[[], Service]) -> int:
    named, why = os.environ.get("DIAGNOSER_CHECKPOINT", ""), "no checkpoint of {} can be used".format(options.path)
    found = None
    try:
        with _Bar() as bar:
            found = resume(options.path, threads=options.threads, progress=bar.draw)
    except NoCheckpoint as error:
        why = str(error)
    if found and named and found.path != os.path.join(os.path.abspath(options.path), named):
        _say("the plan goes back to {}; this launch goes on from {}".format(named, found.path))
    return _chosen(found, options, why)


def _chosen(found: Verification | None, options: argparse.Namespace, why: str) -> int:
    if found is None:
        if options.json:
            _print("null")
        else:
            _say(why)
        return NONE_FOUND
    if options.json:
        _print(json.dumps(as_json(found)))
    else:
        _print(found.path)
    return 0


def _prune(options: argparse.Namespace, service: Callable[[], Service]) -> int:
    kept, old = prunable(options.path, options.keep, options.threads)
    fate = "may go  "
    if options.delete:
        fate = "removed "
        for found in old:
            remove(found)
    if options.json:
        paths = {"kept": [found.path for found in kept], "old": [found.path for found in old]}
        _print(json.dumps({**paths, "removed": options.delete}))
        return 0
    for found in kept:
        _print("stays    {}".format(found.path))
    for found in old:
        _print("{} {}".format(fate, found.path))
    if len(kept) < options.keep:
        _print("{} of {} verify: nothing may go".format(len(kept), options.keep))
    return 0


ACTIONS: Mapping[str, Callable[[argparse.Namespace, Callable[[], Service]], int]] = {
    "verify": _verify,
    "list": _list,
    "latest": _latest,
    "resume": _resume,
    "prune": _prune,
}


def as_json(found: Verification) -> dict[str, Any]:
    about: dict[str, Any] = {"completed": None}
    if found.completion is not None:
        written = found.completion
        about = {**asdict(written.about), "run": written.run, "bytes": written.size, "completed": written.completed}
    return {
        "path": found.path,
        "state": found.state.value,
        **about,
        "faults": [fault._asdict() for fault in found.faults],
        "unlisted": list(found.unlisted),
    }


def _report(found: Verification, options: argparse.Namespace, service: Service) -> None:
    """Raises UsageError where the job is not known, or the service cannot be reached."""
    completion, job = found.completion, options.job
    if completion is not None:
        job = job or completion.about.job
    if completion is None or not job:
        raise UsageError("nothing says which job {} is of: name it with --job".format(found.path))
    about = completion.about
    failures: list[str] = []
    reporter = Reporter(service, job, options.attempt or about.attempt, failures.append)
    if found.state is State.VERIFIED:
        event = checkpoint_event(about, found.path, "verified", bytes=completion.size)
    else:
        event = checkpoint_event(about, found.path, "bad", why=found.why[:WHY_LENGTH])
    reporter.report(event)
    is_sent = reporter.flush(REPORT_SECONDS)
    if failures:
        raise UsageError(failures[0])
    if not is_sent:
        raise UsageError("the service does not answer")


def _row(found: Verification) -> str:
    completion = found.completion
    if completion is None:
        return "{:10s} {}".format(found.state.value, found.path)
    about = completion.about
    when = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(completion.completed))
    fields = ["step {}".format(about.step), when, _bytes(completion.size)]
    if about.finite is False:
        fields.append("loss is not finite")
    elif about.loss is not None:
        fields.append("loss {:.4g}".format(about.loss))
    if about.just_in_time:
        fields.append("just in time")
    return "{:10s} {}".format(found.state.value, "  ".join([*fields, found.path]))


def _bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return "{:.3g} {}".format(size, unit)
        size /= 1000
    return "{:,.2f} TB".format(size)


class _Bar:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self) -> None:
        self._started = self._drawn = time.monotonic()
        self._is_shown = sys.stderr.isatty()

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            sys.stderr.write("\r\033[K")

    def draw(self, read: int, size: int) -> None:
        now = time.monotonic()
        if not self._is_shown:
            return
        if now < self._drawn + REDRAW_SECONDS:
            return
        self._drawn = now
        share, rate = read / max(1, size), read / max(1e-9, now - self._started)
        bar = "#" * int(share * BAR_WIDTH)
        left = (size - read) / max(1.0, rate)
        sys.stderr.write(
            "\r\033[K[{:{}}] {:3.0%} of {}, {}/s, {:.0f} s left".format(
                bar, BAR_WIDTH, share, _bytes(size), _bytes(rate), left
            )
        )
        sys.stderr.flush()


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def _say(text: str) -> None:
    sys.stderr.write("diagnoser: {}\n".format(text))


def number_from_1(text: str) -> int:
    number = 0
    if text.isdigit():
        number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("{} is no number from 1".format(text))
    return number
