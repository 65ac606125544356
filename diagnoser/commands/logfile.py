"""Reads log files for the commands: plain, compressed or from a pipe, with a progress bar for large files."""

import os
import stat
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from io import BufferedReader, RawIOBase
from itertools import chain, filterfalse
from pathlib import Path
from typing import Any, cast

import zstandard

from diagnoser.adapters import files
from diagnoser.commands import render
from diagnoser.commands.terminal import complain, err
from diagnoser.compress import AttemptLog, baseline
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import Baseline, Diagnosis, Event, EventKind, Evidence, Facts, RuntimeFile
from diagnoser.model.errors import BadInput, os_reason
from diagnoser.model.taxonomy import Category

SILENT_SECONDS = 2.0
"""What takes longer gets a progress bar."""
HEAD = 64 << 10
"""Bytes looked at to tell text from what is none."""
BINARY_SHARE = 0.08
"""Of bytes that say nothing, as of what is packed or encrypted, 0.098 are control characters."""
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\x1b"))
"""What no log prints. Progress bars write carriage returns and backspaces, colours begin with escape."""
_PACKED = {b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip", b"7z\xbc\xaf": "7-Zip"}
_TAR = 257
"""Where the name of the format stands in the first header of an archive."""
_NO_RUNS = Baseline()
_PIECE = 1024
"""Bytes that are unpacked at a time: a piece that is damaged is lost, and none becomes too large for the memory."""


def read_log(analyzer: LogAnalyzer, path: Path, quiet: bool = False) -> AttemptLog:
    """Raises BadInput when it is empty or no text, or cannot be read."""
    return _read_log(analyzer, path, quiet)[0]


def _read_log(analyzer: LogAnalyzer, path: Path, quiet: bool = False) -> tuple[AttemptLog, str]:
    """The log, and what is wrong with its file, "" for nothing. Raises BadInput."""
    with opened(path) as (log, size), bar(path, size, quiet=quiet) as on_bytes:
        _check_text(log.peek(HEAD), _name(path))
        return analyzer.read(log, on_bytes), getattr(log.raw, "damage", "")


def diagnosed(
    analyzer: LogAnalyzer,
    path: Path,
    nodes: Sequence[tuple[str, Path]] = (),
    known: Baseline = _NO_RUNS,
    dumps: Sequence[RuntimeFile] = (),
    exit_code: int | None = None,
) -> tuple[AttemptLog, Facts, Diagnosis]:
    """The log of a file, what people say about it, and the verdict of the rules.

    nodes: name and log of nodes that the job ran on. known: clean runs of the same job. dumps: of its ranks.
    exit_code: that the run ended with, None where it is not known. Raises BadInput.
    """
    log, damage = _read_log(analyzer, path)
    events = () if exit_code is None else (Event(EventKind.EXIT, 0.0, code=exit_code),)
    logs = _read_nodes(analyzer, log.evidence, nodes)
    facts = Facts(node_logs=logs, baseline=known, nodes=tuple(logs), runtime=tuple(dumps), events=events)
    diagnosis = analyzer.analyze(log, facts)
    if damage:
        diagnosis = replace(diagnosis, notes=(f"The file {damage}.", *diagnosis.notes))
    return log, facts, diagnosis


def clean_runs(analyzer: LogAnalyzer, paths: Sequence[Path] | None) -> Baseline:
    """The baseline of log files, or of all files in folders. A log that shows a failure is reported and left out.

    Raises BadInput.
    """
    if not paths:
        return _NO_RUNS
    runs = []
    for file in _files_of(paths):
        log = read_log(analyzer, file)
        verdict = analyzer.diagnose_with_node_logs(log.evidence, Facts())
        if verdict.category not in (Category.NONE, Category.UNKNOWN):
            complain(f"diagnoser: {file} is no clean run ({verdict.type}), so it is left out of the baseline")
        elif run := baseline.clean_run(log.delta, str(file)):
            runs.append(run)
    if not runs:
        raise BadInput("--baseline names no clean run")
    return Baseline(tuple(runs))


def _files_of(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from filterfalse(Path.is_dir, sorted(path.iterdir()))
        else:
            yield path


def dumps(folders: Sequence[Path] | None) -> list[RuntimeFile]:
    """The dumps of ranks in folders, by the rank that a file's name ends in. What is none is reported and left out.

    Raises BadInput for a folder without any.
    """
    return list(chain.from_iterable(map(_dumps_in, folders or ())))


def _dumps_in(folder: Path) -> list[RuntimeFile]:
    if not folder.is_dir():
        raise BadInput(f"{folder} is no folder")
    from diagnoser.hang import flight_recorder, report

    readable = list[RuntimeFile]()
    for name in report.current(path.name for path in folder.iterdir() if path.is_file()):
        path = folder / name
        try:
            data = files.content(path, flight_recorder.BYTES_MAX)
            file = RuntimeFile(report.kind_of(data), data, flight_recorder.rank_of_file(path.name))
            report.check(file)
        except BadInput as error:
            complain(f"left out: {path}: {error}")
        else:
            readable.append(file)
    if not readable:
        raise BadInput(f"{folder} holds no flight-recorder dump, RAS answer or stack dump")
    return readable


def node_logs(options: Sequence[str] | None) -> list[tuple[str, Path]]:
    pairs = []
    for option in options or ():
        node, _, file = option.partition("=")
        if not node or not Path(file).name:
            raise BadInput("--node-log needs NODE=FILE, as in --node-log gpu-17=gpu-17.dmesg")
        pairs.append((node, Path(file)))
    return pairs


def _read_nodes(analyzer: LogAnalyzer, evidence: Evidence, nodes: Sequence[tuple[str, Path]]) -> dict[str, list[bytes]]:
    """Time stamps without a year take it from the job's log."""
    near, logs = max((line.time for line in evidence.lines), default=0.0), dict[str, list[bytes]]()
    for node, path in nodes:
        with opened(path) as (log, _):
            logs.setdefault(node, []).append(analyzer.node_log(node, log, near))
    return logs


@contextmanager
def opened(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    """The log, decompressed, and its size on disk in bytes (0: unknown).

    Raises BadInput when it cannot be read, also when reading fails half way.
    """
    name = _name(path)
    if str(path) == "-" and not cast(object, sys.stdin):
        raise BadInput(f"{name} is closed")
    try:
        with nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb") as raw:
            log, size = _decompressed(cast(BufferedReader, raw), name)
            _skip_hole(log)
            yield log, size
    except OSError as error:
        raise BadInput(f"cannot read {name}: {os_reason(error)}") from None


def _skip_hole(log: BufferedReader) -> None:
    """Pass over the zeros that a truncation leaves in front of the lines of a writer that does not append."""
    while head := log.peek(HEAD):
        zeros = len(head) - len(head.lstrip(b"\0"))
        log.read(zeros)
        if zeros < len(head):
            return


def _name(path: Path) -> str:
    if str(path) == "-":
        return "standard input"
    return str(path)


def _decompressed(raw: BufferedReader, name: str) -> tuple[BufferedReader, int]:
    """Unpack by the first bytes; the name does not count."""
    head = raw.peek(6)[:6]
    if head.startswith(b"\x1f\x8b"):
        return BufferedReader(_Unpacked(raw, partial(zlib.decompressobj, 31), name), HEAD), 0
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return BufferedReader(_Unpacked(raw, zstandard.ZstdDecompressor().decompressobj, name), HEAD), 0
    for magic, kind in _PACKED.items():
        if head.startswith(magic):
            raise BadInput(f"{name} is packed with {kind}, which is not read: unpack it first")
    if name.endswith((".gz", ".zst")) and head:
        complain(f"diagnoser: {name} is not compressed, whatever its name says: it is read as text")
    status = os.fstat(raw.fileno())
    if not stat.S_ISREG(status.st_mode):
        return raw, 0
    return raw, status.st_size


class _Unpacked(RawIOBase):
    """Unpacks what was packed in one part or in several, and ends where that is damaged or cut off.

    decoder: makes one for a part. damage: what is wrong with the file, "" while nothing is. Raises BadInput where no
    text can be had.
    """

    def __init__(self, packed: BufferedReader, decoder: Callable[[], Any], name: str) -> None:
        self._packed, self._new, self._name = packed, decoder, name
        self._decoder, self._rest, self._read = decoder(), b"", 0
        self._text = memoryview(b"")
        self.damage = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text and not self.damage:
            piece, self._rest = self._rest or self._packed.read(_PIECE), b""
            if not self._packed.peek(1):  # byte by byte at the end of the file, so that all of its text is had
                piece, self._rest = piece[:1], piece[1:]
            if self._decoder.eof:  # behind a part: another one, or zeros that fill a block of a tape
                piece = piece.lstrip(b"\0")
                if not (piece or self._rest or self._packed.peek(1)):
                    return 0
                self._decoder = self._new() if piece else self._decoder
            self._unpack(piece)
        count = min(len(buffer), len(self._text))
        buffer[:count], self._text = self._text[:count], self._text[count:]
        return count

    def _unpack(self, piece: bytes) -> None:
        if self._decoder.eof:
            return
        why, text = "is cut off", b""
        try:
            text = self._decoder.decompress(piece)
        except (zlib.error, zstandard.ZstdError) as error:
            piece, why = b"", f"is damaged ({error})"
        if self._decoder.eof:
            self._rest = self._decoder.unused_data + self._rest
        self._text, self._read = memoryview(text), self._read + len(text)
        if not piece:
            if not self._read:
                raise BadInput(f"cannot read {self._name}: it {why}")
            self.damage = f"{why} behind {self._read:,} bytes of text, which were read"
            complain(f"diagnoser: {self._name} {self.damage}")


def _check_text(head: bytes, name: str) -> None:
    """Some broken bytes are common in a log; a core dump, a checkpoint or a picture is none. Raises BadInput."""
    if not head:
        raise BadInput(f"{name} is empty")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadInput(f"{name} is UTF-16: write it as UTF-8 first (iconv -f utf-16 -t utf-8)")
    if head.startswith(b"ustar", _TAR):
        raise BadInput(f"{name} is an archive of several files (tar): unpack it first")
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if controls > BINARY_SHARE * len(head):
        raise BadInput(f"{name} is no text: {controls / len(head):.0%} of its first bytes are control characters")


@contextmanager
def bar(path: Path, size: int, *, quiet: bool = False) -> Iterator[render.OnBytes]:
    """Show a progress bar on standard error where reading takes long, on a terminal. It counts from the begin: most
    logs are read before anybody would look for it. size: 0 where it is not known."""
    if quiet or not err.is_interactive:
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=err, transient=True)
    task = progress.add_task(path.name, total=size or None)
    timer = threading.Timer(SILENT_SECONDS, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield partial(progress.advance, task)
    finally:
        timer.cancel()
        timer.join()
        progress.stop()
