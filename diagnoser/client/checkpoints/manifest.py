"""What a checkpoint's directory holds beside the checkpoint: who writes it, a manifest a rank, and COMPLETE.json.

A directory counts only when COMPLETE.json is whole. It is renamed into place after the manifests of all ranks, which it
names with their checksums; they name every file with its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Iterable, Mapping

from diagnoser.client.checkpoints.checksums import ALGORITHM, PIECE_BYTES, FileSum, regular
from diagnoser.client.checkpoints.contents import Defect

VERSION = 1
COMPLETE = "COMPLETE.json"
CLAIM = "writer-{:05d}.json"
MANIFEST = "manifest-{:05d}.json"
OURS = re.compile(r"(?:COMPLETE|(?:writer|manifest)-\d{5,})\.json(?:\.new)?\Z")
OWN_DIRECTORY = re.compile(r"step-\d{10,}-[0-9a-f]{8}(?:-jit)?(?:-\d+)?\Z")
"""Directories that ``Checkpointer`` names itself."""
JSON_BYTES = 256 << 20
_LAST_SECOND = 1 << 37
"""A time that every machine can show."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("step", "ranks", "launch", "sequence", "size"), (int,)),
    **dict.fromkeys(("run", "job", "rollback"), (str,)),
    "attempt": (int, type(None)),
    "completed": (int, float),
    "loss": (int, float, type(None)),
}
ROLLBACK_VARIABLES = ("CHECKPOINT", "CHECKPOINT_STEP", "SKIP_FROM", "SKIP_TO")


class TwoWriters(Exception):
    """Another process writes, or has written, to this directory."""


class NotWhole(Exception):
    """A file of ours is missing, or is not what was written."""

    def __init__(self, file: str, why: str) -> None:
        self.defect = Defect(file, why)
        super().__init__(str(self.defect))


@dataclass(frozen=True)
class Writer:
    """run: what all ranks of one launch share, and no other launch has. boot: of the machine. started: by the kernel's
    clock, so that another process with the same number is another."""

    run: str
    host: str
    pid: int
    boot: str
    started: str

    @classmethod
    def this(cls, run: str) -> Writer:
        return cls(run, socket.gethostname(), os.getpid(), _boot(), _started(os.getpid()))

    def is_same_process(self, other: Writer) -> bool:
        return (self.host, self.pid, self.boot, self.started) == (other.host, other.pid, other.boot, other.started)

    def __str__(self) -> str:
        return "{0.host}, process {0.pid}".format(self)

    @property
    def is_gone(self) -> bool:
        """Known only of a process on this machine, since it was started."""
        if not self.boot:
            return False
        if (self.host, self.boot) != (socket.gethostname(), _boot()):
            return False
        return _started(self.pid) != self.started


@dataclass(frozen=True)
class About:
    """What is known of a checkpoint. loss: None when not known or not finite. finite: None when no loss was given.
    parameters: of the run, as its owner names them; JSON. rollback: what a recovery plan named to the launch that saved
    it, "" for none. launch: its number in the folder, from 1. sequence: how many saves it had begun; both order
    checkpoints without a clock."""

    step: int
    ranks: int
    loss: float | None = None
    finite: bool | None = None
    just_in_time: bool = False
    job: str = ""
    attempt: int | None = None
    parameters: Mapping[str, Any] | None = None
    rollback: str = ""
    launch: int = 0
    sequence: int = 0


@dataclass(frozen=True)
class Manifest:
    rank: int
    run: str
    about: About
    files: tuple[FileSum, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Completion:
    """manifests: SHA-256 of each rank's, by rank. completed: seconds since the epoch. size: of all files, in bytes."""

    run: str
    about: About
    completed: float
    size: int
    manifests: tuple[str, ...]


def rollback_of(environment: Mapping[str, str]) -> str:
    """What a recovery plan names to a launch: another for each plan that goes back. A scheduler that requeues the job
    keeps these variables."""
    named = (environment.get("DIAGNOSER_" + name, "") for name in ROLLBACK_VARIABLES)
    return " ".join(named).strip()


def claim(directory: str, rank: int, writer: Writer, *, again: bool = False) -> None:
    """This rank writes here, and no other process as this rank. again: this process may have claimed it before. Raises
    TwoWriters, OSError."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, CLAIM.format(rank))
    text = json.dumps(asdict(writer)).encode()
    for _ in range(2):
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            _take_over(directory, rank, writer, again=again)
            continue
        with os.fdopen(handle, "wb") as file:
            file.write(text)
        return
    raise TwoWriters("{} is claimed again and again".format(path))


def check_claim(directory: str, rank: int, writer: Writer) -> None:
    """Raises TwoWriters where the directory is no longer this process's."""
    try:
        owner = _writer(os.path.join(directory, CLAIM.format(rank)))
    except (OSError, ValueError, TypeError):
        owner = None
    if owner is None:
        raise TwoWriters("{}: rank {} is now written by nobody that is known".format(directory, rank))
    if owner != writer:
        raise TwoWriters("{}: rank {} is now written by {}".format(directory, rank, owner))


def write_manifest(directory: str, manifest: Manifest) -> None:
    """Raises OSError."""
    write_durably(directory, MANIFEST.format(manifest.rank), _sealed(asdict(manifest)))


def write_completion(directory: str, run: str, manifests: Mapping[int, Manifest], completed: float) -> Completion:
    """manifests: of all ranks. finite: only if it is so on every rank that gave a loss. Raises OSError, NotWhole."""
    about = manifests[0].about
    losses = {manifest.about.finite for manifest in manifests.values()} - {None}
    finite = None
    if losses:
        finite = False not in losses
    sums = []
    for rank in range(about.ranks):
        with _opened(directory, MANIFEST.format(rank)) as file:
            sums.append(hashlib.sha256(file.read(JSON_BYTES)).hexdigest())
    about = About(**{**asdict(about), "finite": finite})
    size = sum(manifest.size for manifest in manifests.values())
    completion = Completion(run, about, completed, size, tuple(sums))
    write_durably(directory, COMPLETE, _sealed(asdict(completion)))
    return completion


def read_completion(directory: str) -> Completion:
    """Raises NotWhole."""
    body, _ = _read(directory, COMPLETE)
    try:
        about = About(**body.pop("about"))
        completion = Completion(about=about, **{**body, "manifests": tuple(body["manifests"])})
        _check_fields({**vars(completion), **vars(about)})
    except (TypeError, KeyError) as error:
        raise NotWhole(COMPLETE, "it cannot be understood: {}".format(error)) from None
    if len(completion.manifests) != about.ranks:
        raise NotWhole(COMPLETE, "it names {} of {} ranks".format(len(completion.manifests), about.ranks))
    return completion


def read_manifest(directory: str, rank: int, checksum: str = "") -> Manifest:
    """checksum: SHA-256 that it must have, "" for any. Raises NotWhole."""
    name = MANIFEST.format(rank)
    body, found = _read(directory, name)
    if checksum not in ("", found):
        raise NotWhole(name, "it is another than {} names".format(COMPLETE))
    try:
        files = tuple(map(FileSum.of, body["files"]))
        manifest = Manifest(int(body["rank"]), str(body["run"]), About(**body["about"]), files)
    except (TypeError, KeyError, ValueError) as error:
        raise NotWhole(name, "it cannot be understood: {}".format(error)) from None
    outside = [file.name for file in files if os.path.isabs(file.name) or ".." in file.name.split("/")]
    if outside or manifest.rank != rank:
        raise NotWhole(name, "it is of rank {} and names {}".format(manifest.rank, outside or "its own files"))
    return manifest


def _check_fields(values: Mapping[str, Any]) -> None:
    """Raises TypeError for what cannot be ordered or shown: the file may be of any program."""
    wrong = [name for name, types in _TYPES.items() if not isinstance(values[name], types)]
    if not wrong and not 0 <= values["completed"] < _LAST_SECOND:
        wrong = ["completed"]
    if wrong:
        raise TypeError("{} is {!r}".format(wrong[0], values[wrong[0]]))


def data_files(directory: str) -> list[str]:
    """Names below the directory, without those of ours."""
    names = []
    for folder, _, files in os.walk(directory):
        names += [os.path.relpath(os.path.join(folder, name), directory) for name in files]
    return sorted(name for name in names if not OURS.match(name))


def write_durably(directory: str, name: str, data: bytes) -> None:
    """Whole or not at all, also after a loss of power. Raises OSError."""
    path = os.path.join(directory, name)
    with open(path + ".new", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)
    sync_folders(directory)


def sync_folders(directory: str, names: Iterable[str] = ()) -> None:
    """The names of files are as durable as their content. names: of files below the directory. Raises OSError."""
    inner = {os.path.join(directory, os.path.dirname(name)) for name in names}
    for folder in (*inner, directory, os.path.dirname(os.path.abspath(directory))):
        handle = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # some network file systems cannot sync a folder
                os.fsync(handle)
        finally:
            os.close(handle)


def _sealed(body: Mapping[str, Any]) -> bytes:
    whole = {"version": VERSION, "algorithm": ALGORITHM, "piece_bytes": PIECE_BYTES, **body}
    text = json.dumps(whole, sort_keys=True)
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), **whole}, sort_keys=True).encode() + b"\n"


def _read(directory: str, name: str) -> tuple[dict[str, Any], str]:
    """Read what was sealed, and the SHA-256 of the whole file. Raises NotWhole."""
    with _opened(directory, name) as file:
        data = file.read(JSON_BYTES)
    try:
        body = json.loads(data.decode("utf-8"))
        checksum = body.pop("sha256")
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise NotWhole(name, "it is no manifest") from None
    if hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest() != checksum:
        raise NotWhole(name, "its own checksum does not hold")
    known = (body.pop("version", 0), body.pop("algorithm", ""), body.pop("piece_bytes", 0))
    if known != (VERSION, ALGORITHM, PIECE_BYTES):
        raise NotWhole(name, "a form that this version does not know: {}".format(known))
    return body, hashlib.sha256(data).hexdigest()


def _opened(directory: str, name: str) -> Any:
    try:
        return open(os.path.join(directory, name), "rb", opener=regular)
    except FileNotFoundError:
        raise NotWhole(name, "missing") from None
    except OSError as error:
        raise NotWhole(name, str(error)) from None


def _take_over(directory: str, rank: int, writer: Writer, *, again: bool) -> None:
    """Remove the claim of a process that is gone, and what it completed. again: of ``writer``'s as well. Raises
    TwoWriters for any other."""
    path = os.path.join(directory, CLAIM.format(rank))
    try:
        owner: Writer | None = _writer(path)
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError):
        owner = None  # cut off while it was written: nobody knows by whom
    if not _may_be_removed(owner, writer, again=again):
        who = owner or "an unknown process"
        raise TwoWriters("{} is written by {}; if that is gone, remove {}".format(directory, who, path))
    for name in (COMPLETE, MANIFEST.format(rank), CLAIM.format(rank)):  # first what makes it count
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))


def _may_be_removed(owner: Writer | None, writer: Writer, *, again: bool) -> bool:
    if owner is None:
        return False
    if again and owner.is_same_process(writer):
        return True
    return owner.is_gone


def _writer(path: str) -> Writer:
    with open(path, encoding="utf-8", opener=regular) as file:
        return Writer(**json.load(file))


def _started(pid: int) -> str:
    """When the process started, in ticks since the start of the machine; "" when there is none."""
    try:
        with open("/proc/{}/stat".format(pid), encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        if fields[0] in "ZX":
            return ""
        return fields[19]
    except (OSError, IndexError):
        return ""


def _boot() -> str:
    """Another at each start of the machine; "" when not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
