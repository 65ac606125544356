"""`ship`: follows log files, through rotation, and goes on where it stopped after a restart."""

from __future__ import annotations

import glob
import json
import os
import re
import signal
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Iterator, Mapping, Sequence
from zlib import crc32

from diagnoser.client.backlog import Segment
from diagnoser.client.launch import Launch, Options, launch_of, nodes_of_job
from diagnoser.client.log_file import FileOffset, LogChunk, read_chunk, read_rotated
from diagnoser.client.run import SOURCE_LENGTH, ServerOptions, say
from diagnoser.client.service import Service, UsageError
from diagnoser.client.shipper import Shipper

SCAN_SECONDS = 5.0
SAVE_SECONDS = 1.0
LOOK_SECONDS = 0.25
LAST_SECONDS = 10.0
"""For the last lines, when this is told to end."""
VERSION = 1
IN_FOLDER = re.compile(r"\.(?:log|out|err|txt)$")
RANK_IN_NAME = re.compile(r"(?:^|[/_.-])rank[_=.-]?(\d{1,6})(?=\D|$)", re.IGNORECASE)
TORCHRUN_NAME = re.compile(r"/attempt_\d+/(\d{1,5})/(?:stdout|stderr)\.log$")
"""Below torchrun's --log-dir; the number is the rank on its node."""


@dataclass(frozen=True)
class ShipOptions:
    """state: file, "" for one of the user's own. once: up to the present end of the files only."""

    server: ServerOptions
    identity: Options
    patterns: tuple[str, ...]
    state: str = ""
    once: bool = False


def ship(options: ShipOptions, environment: Mapping[str, str]) -> int:
    """Ship until SIGTERM or SIGINT, or the end of the files. Returns 0 when all lines are sent. Raises UsageError."""
    state = State.load(_state_file(options, environment))
    stamp = "{}.{}".format(time.strftime("%m%d-%H%M%S"), os.getpid())
    launch = launch_of(environment, options.identity, socket.gethostname(), stamp, ("ship",))
    launch = state.continued(launch)
    files = LogFiles(options.patterns, state, one_node=nodes_of_job(environment) == 1)
    if not list(files.matching()) and options.once:
        raise UsageError("no file is called {}".format(" or ".join(options.patterns)))
    service = Service(options.server.url, options.server.token)
    for caution in service.cautions():
        say(caution)
    shipper = Shipper(service, files, launch, say, time.monotonic, time.time, reports_start=False)
    signals = _caught_signals()
    say("shipping as job {} to {}".format(launch.job, service.url))
    if options.once:
        files.flush()
    is_all_sent = _follow(files, shipper, state, signals)
    files.save(every=0.0)
    service.close()
    return int(not is_all_sent)


def _follow(files: LogFiles, shipper: Shipper, state: State, signals: list[int]) -> bool:
    """Send until the files end, or until a signal; the last lines get some seconds then. Whether all lines are sent."""
    deadline = float("inf")
    while time.monotonic() < deadline:
        if signals and deadline == float("inf"):
            deadline = time.monotonic() + LAST_SECONDS
            if not files.is_ending:
                files.flush()
        wait = shipper.step()
        state.attempt = shipper.attempt
        files.save(every=SAVE_SECONDS)
        if files.is_exhausted and not shipper.failure:
            return True
        time.sleep(min(wait, LOOK_SECONDS))
    return False


def _caught_signals() -> list[int]:
    """Catch SIGTERM and SIGINT: those that came stand in the list."""
    signals: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return signals


class State:
    """What must survive a restart: the job and attempt, and how far each file was sent."""

    def __init__(self, path: Path, job: str = "", attempt: int | None = None) -> None:
        self.path, self.job, self.attempt = path, job, attempt
        self.offsets: dict[str, FileOffset] = {}
        self.is_changed = False

    @classmethod
    def load(cls, path: Path) -> State:
        """A missing or unreadable file is the state of one that begins now."""
        state = cls(path)
        try:
            stored = json.loads(path.read_text("utf-8"))
            if stored["version"] == VERSION:
                state.job, state.attempt = stored["job"], stored["attempt"]
                state.offsets = {name: FileOffset(**offset) for name, offset in stored["files"].items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            say("{} cannot be read, so all files are read from their beginning: {}".format(path, error))
        return state

    def continued(self, launch: Launch) -> Launch:
        """The launch under the names that it had before a restart."""
        if self.job and launch.is_new:
            launch = replace(launch, job=self.job, attempt=self.attempt)
        if (launch.job, launch.attempt) == (self.job, None):
            launch = replace(launch, attempt=self.attempt)
        self.job, self.attempt = launch.job, launch.attempt
        return launch

    def save(self) -> None:
        files = {name: asdict(offset) for name, offset in self.offsets.items()}
        body = {"version": VERSION, "job": self.job, "attempt": self.attempt, "files": files}
        draft = self.path.with_suffix(".new")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_text(json.dumps(body), "utf-8")
            draft.replace(self.path)
        except OSError as error:
            say("{} cannot be written, so a restart begins anew: {}".format(self.path, error.strerror))
        self.is_changed = False


class LogFiles:
    """The lines of all files that match, each file in turn. ``shipper.Lines``."""

    def __init__(self, patterns: Sequence[str], state: State, *, one_node: bool) -> None:
        self._patterns = patterns
        self._state = state
        self._one_node = one_node
        self._turn: list[str] = []
        self._files: list[str] = []
        self._scanned = self._saved = float("-inf")
        self._taken: tuple[str, LogChunk[FileOffset]] | None = None
        self.is_ending = False
        self.is_exhausted = False

    def take(self, *, newest: bool = False) -> Segment | None:
        """The next lines of the file whose turn it is."""
        self._scan()
        for _ in range(len(self._turn)):
            path = self._turn.pop(0)
            self._turn.append(path)
            chunk = self._next(path)
            if chunk:
                self._taken = (path, chunk)
                lines = chunk.offset.lines - chunk.first
                rank = self.rank_of(path)
                return Segment(source_of(path), chunk.first, lines, chunk.body, len(chunk.body), rank=rank)
        self.is_exhausted = self.is_ending
        return None

    def done(self, segment: Segment) -> None:
        if self._taken:
            path, chunk = self._taken
            self._state.offsets[path] = chunk.offset
            self._state.is_changed, self._taken = True, None

    lose = done

    def put_back(self, segment: Segment) -> None:
        self._taken = None  # it is read again

    def flush(self) -> None:
        """Mark the files as ended: a last line without its end counts as well."""
        self.is_ending, self._scanned = True, float("-inf")

    def save(self, every: float) -> None:
        now = time.monotonic()
        if self._state.is_changed and now >= self._saved + every:
            self._saved = now
            self._state.save()

    def matching(self) -> Iterator[str]:
        """List absolute paths. A file that a rotation left behind matches many a pattern, but is the past of another
        file.
        """
        plain = {os.path.abspath(pattern) for pattern in self._patterns if not glob.has_magic(pattern)}
        found: list[str] = []
        for pattern in self._patterns:
            if os.path.isdir(pattern):
                names = sorted(glob.glob(os.path.join(glob.escape(pattern), "**"), recursive=True))
                found += [name for name in names if IN_FOLDER.search(name)]
            else:
                found += sorted(glob.glob(pattern, recursive=True))
        paths = sorted({os.path.abspath(name) for name in found if os.path.isfile(name)})
        for path in paths:
            is_past = any(path.startswith((other + ".", other + "-")) for other in paths)
            if path in plain or not is_past:
                yield path

    def rank_of(self, path: str) -> int:
        """Read the rank from a file's name; -1 when the name does not tell."""
        named = RANK_IN_NAME.findall(path)
        if named:
            return int(named[-1])
        if not self._one_node:
            return -1
        below_torchrun = TORCHRUN_NAME.search(path)
        if below_torchrun is None:
            return -1
        return int(below_torchrun[1])

    def _scan(self) -> None:
        now = time.monotonic()
        if now < self._scanned + SCAN_SECONDS:
            return
        self._scanned, before = now, set(self._files)
        self._files = list(self.matching())
        self._turn = [path for path in self._turn if path in self._files]
        # Lines without a time count as printed when they arrive: the file that was written last ends the story.
        self._turn += sorted((path for path in self._files if path not in before), key=_written)

    def _next(self, path: str) -> LogChunk[FileOffset] | None:
        offset = self._state.offsets.get(path, FileOffset())
        try:
            return read_rotated(path, offset) or read_chunk(path, offset, rest=self.is_ending)
        except OSError:
            return None  # gone, or not readable yet: the next look may find it


def _written(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def source_of(path: str) -> str:
    """The path, which no two files of a node share; of one that is long, or no UTF-8, its end, and a checksum of it
    all."""
    shown = os.fsencode(path).decode("utf-8", "replace")
    if shown == path and len(path) <= SOURCE_LENGTH:
        return path
    mark = "{:08x}...".format(crc32(os.fsencode(path)))
    return mark + shown[len(mark) - SOURCE_LENGTH :]


def _state_file(options: ShipOptions, environment: Mapping[str, str]) -> Path:
    if options.state:
        return Path(options.state)
    home = environment.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    key: list[Any] = [os.getcwd(), options.patterns, options.identity.job, environment.get("SLURM_JOB_ID", "")]
    return Path(home) / "diagnoser" / "ship-{:08x}.json".format(crc32(json.dumps(key).encode()))
