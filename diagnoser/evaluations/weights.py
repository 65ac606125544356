"""The weights of a checkpoint in shared memory: copied once on a node, however many trials read them there.

Loading is most of what an evaluation waits for, and trials of one node load the same file at the same time. Whoever
comes first copies; the others wait for that, and read. Locks are ``flock``, which the kernel takes back from a process
that is killed, so that no copy is ever held by nobody:

    KEY.lock   held while the copy is made or removed
    KEY.use    held, shared, by each reader: their number is the reference count
    KEY/       the copy; KEY.json, written last, has the sizes and checksums of its files

Standard library only: it runs on nodes. ``python -m diagnoser.evaluations.weights FOLDER [CHECKPOINT...]`` drops copies
that nobody reads: all of them, or those of a run that is over, and with them what killed runs have left.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import sys
import time
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

CHUNK = 8 << 20
KEEP_SECONDS = 900.0
"""How long a copy that nobody reads waits for the next reader."""


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """folder: in shared memory, of this user alone; "" for no copies. reserve: share of the memory that stays free.
    rate: bytes a second that are read from the storage, 0 for as fast as it goes."""

    folder: str = ""
    reserve: float = 0.1
    rate: float = 0.0


def default_folder() -> str:
    return f"/dev/shm/diagnoser-weights-{os.getuid()}"  # noqa: S108 - refused unless it is this user's alone


@dataclass(frozen=True, slots=True)
class Weights:
    """path: where to read them. reason: why that is the original; "" for a copy. seconds: that the copy took, or its
    maker was waited for. fd: keeps the copy while any process has it open; -1 where there is none."""

    path: str
    reason: str = ""
    seconds: float = 0.0
    fd: int = -1


class _Refused(Exception):
    """The original is to be read; the text says why."""


@contextmanager
def weights(checkpoint: str, limits: CopyLimits, clock: Callable[[], float] = time.monotonic) -> Iterator[Weights]:
    """A copy of the checkpoint (a file or a folder), or where that cannot be, the checkpoint itself. Never raises."""
    begun = clock()
    with ExitStack() as stack:
        try:
            path, fd = _acquired(checkpoint, limits, stack)
            found = Weights(path, "", clock() - begun, fd)
        except _Refused as refused:
            found = Weights(checkpoint, str(refused), clock() - begun)
        except OSError as error:
            found = Weights(checkpoint, f"{error.strerror or error}", clock() - begun)
        yield found


def sweep(folder: str, keep_seconds: float = KEEP_SECONDS, checkpoints: Collection[str] | None = None) -> list[str]:
    """Remove copies that nobody reads, has read for ``keep_seconds``, and is about to. checkpoints: these alone. Their
    checkpoints. Whatever a killed process left half-made goes at once."""
    removed = []
    for lock in sorted(Path(folder).glob("*.lock")):
        if lock.stem == _SPACE:
            continue
        checkpoint = _swept(lock, keep_seconds, checkpoints)
        if checkpoint is not None:
            removed.append(checkpoint)
    return removed


def drop(folder: str, checkpoints: Collection[str]) -> list[str]:
    """Remove copies of these checkpoints, and of any that nobody has read for ``KEEP_SECONDS``."""
    return [*sweep(folder, 0.0, checkpoints), *sweep(folder)]


_SPACE = "space"


def _acquired(checkpoint: str, limits: CopyLimits, stack: ExitStack) -> tuple[str, int]:
    """(path of the copy, descriptor that keeps it). Raises _Refused, OSError."""
    if not limits.folder:
        raise _Refused("copies are off")
    source = Path(checkpoint)
    if not checkpoint or not source.exists():
        raise _Refused("not a file or folder of this node")
    folder = _own_folder(limits.folder)
    files = _files(source)
    copy = folder / _key(source, files)
    with _locked(copy.with_suffix(".lock")):
        if not _is_whole(copy):
            _remove(copy)
            _copy(source, files, copy, limits)
        use = os.open(copy.with_suffix(".use"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, use)
        os.utime(use)
        fcntl.flock(use, fcntl.LOCK_SH)
    return str(copy / source.name), use


def _own_folder(path: str) -> Path:
    """Anybody may write to /dev/shm: a folder that another user made there is not trusted."""
    folder = Path(path)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or found.st_mode & 0o022:
        raise _Refused(f"{path} is not a folder that only this user may write to")
    return folder


_Files = dict[str, tuple[int, int]]
"""Path below the checkpoint, "" for a checkpoint that is one file -> (size, time of its last change)."""


def _files(source: Path) -> _Files:
    if source.is_file():
        return {"": _version(source)}
    files: _Files = {}
    for path in sorted(source.rglob("*")):
        if path.is_file():
            files[str(path.relative_to(source))] = _version(path)
    return files


def _version(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _key(source: Path, files: _Files) -> str:
    """Another one once a file of the checkpoint has changed."""
    return hashlib.sha256(repr((str(source.resolve()), sorted(files.items()))).encode()).hexdigest()[:24]


@contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[int]:
    """Raises BlockingIOError where another process has it and this one shall not wait."""
    kind = fcntl.LOCK_EX
    if not wait:
        kind |= fcntl.LOCK_NB
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, kind)
            if _is_there(lock, path):
                yield lock
                return
        finally:
            os.close(lock)


def _is_there(opened: int, path: Path) -> bool:
    """False for a file that was removed, and perhaps made anew, between opening and locking it."""
    try:
        return os.fstat(opened).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _is_whole(copy: Path) -> bool:
    manifest = _manifest(copy)
    if manifest is None:
        return False
    for name, size, _ in manifest["files"]:
        if not (copy / name).is_file():
            return False
        if (copy / name).stat().st_size != size:
            return False
    return True


def _manifest(copy: Path) -> dict[str, list[tuple[str, int, int]]] | None:
    try:
        found: dict[str, list[tuple[str, int, int]]] = json.loads(copy.with_suffix(".json").read_text())
        return found
    except (OSError, ValueError):
        return None


def _copy(source: Path, files: _Files, copy: Path, limits: CopyLimits) -> None:
    """Raises _Refused, OSError, and leaves nothing then."""
    try:
        _take_space(source, files, copy, limits)
        pace = _Pace(limits.rate)
        written = []
        for name, (size, _) in files.items():
            place = f"{source.name}/{name}".rstrip("/")
            checksum = _copy_file(source / name, copy / place, pace)
            if (_checksum(copy / place), (copy / place).stat().st_size) != (checksum, size):
                raise _Refused(f"the copy of {name or source.name} differs from it")
            written.append((place, size, checksum))
        if _files(source) != files:
            raise _Refused("the checkpoint changed while it was copied")
        text = json.dumps({"checkpoint": str(source), "files": written})
        draft = copy.with_suffix(".draft")
        draft.write_text(text)
        draft.replace(copy.with_suffix(".json"))
    except BaseException:
        _remove(copy)
        raise


def _take_space(source: Path, files: _Files, copy: Path, limits: CopyLimits) -> None:
    """The files get their memory before their content, under one lock: of two copies at once, the second one sees what
    the first one takes."""
    need = sum(size for size, _ in files.values())
    with _locked(copy.with_name(f"{_SPACE}.lock")):
        if need > free_memory(copy.parent, limits.reserve):
            sweep(str(copy.parent), 0.0)
        free = free_memory(copy.parent, limits.reserve)
        if need > free:
            raise _Refused(f"{need} bytes, and {max(0, free)} of memory may be taken")
        for name, (size, _) in files.items():
            path = copy / f"{source.name}/{name}".rstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                if size:
                    os.posix_fallocate(file.fileno(), 0, size)


def free_memory(folder: Path, reserve: float) -> int:
    """Bytes that a copy may take: of the file system, of the machine, and of the control group that pays for it."""
    system = os.statvfs(folder)
    memory = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(memory[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    bounds = [system.f_bavail * system.f_frsize, available, *_of_groups()]
    return min(bounds) - int(reserve * total)


def _of_groups() -> Iterator[int]:
    """Read the free memory of this process's control group and of those above it that have a limit (version 2)."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        group = Path("/sys/fs/cgroup") / next(line[3:] for line in lines if line.startswith("0::")).lstrip("/")
        for place in (group, *group.parents):
            limit = place / "memory.max"
            if limit.is_file() and (text := limit.read_text().strip()) != "max":
                used = int((place / "memory.current").read_text())
                stats = dict(map(str.split, (place / "memory.stat").read_text().splitlines()))
                yield int(text) - used + int(stats.get("inactive_file", 0))


class _Pace:
    """Sleeps so that no more than ``rate`` bytes a second go through, 0 for any number."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._begun = time.monotonic()
        self._done = 0

    def passed(self, size: int) -> None:
        self._done += size
        if self._rate:
            time.sleep(max(0.0, self._begun + self._done / self._rate - time.monotonic()))


def _copy_file(source: Path, target: Path, pace: _Pace) -> int:
    """Its checksum (CRC-32)."""
    checksum = 0
    with source.open("rb", buffering=0) as reader, target.open("r+b", buffering=0) as writer:
        while data := reader.read(CHUNK):
            checksum = zlib.crc32(data, checksum)
            view = memoryview(data)
            while view:
                view = view[writer.write(view) :]
            pace.passed(len(data))
    return checksum


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb", buffering=0) as reader:
        while data := reader.read(CHUNK):
            checksum = zlib.crc32(data, checksum)
    return checksum


def _remove(copy: Path) -> None:
    copy.with_suffix(".json").unlink(missing_ok=True)  # first: what is half removed is not whole
    copy.with_suffix(".draft").unlink(missing_ok=True)
    shutil.rmtree(copy, ignore_errors=True)


def _swept(lock: Path, keep_seconds: float, checkpoints: Collection[str] | None) -> str | None:
    """Remove a copy unless it is read, or may be soon. Returns its checkpoint, None where it stays."""
    copy = lock.with_suffix("")
    try:
        with _locked(lock, wait=False):
            manifest, checkpoint = _manifest(copy), ""
            if manifest:
                checkpoint = str(manifest["checkpoint"])
                if checkpoints is not None and checkpoint not in checkpoints:
                    return None
                if not _is_idle(copy.with_suffix(".use"), keep_seconds):
                    return None
            _remove(copy)
            copy.with_suffix(".use").unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
            return checkpoint
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.ENOENT):
            return None
        raise


def _is_idle(use: Path, keep_seconds: float) -> bool:
    """The lock is taken for a look only: whoever wants to read waits for the lock of the copy, which we have."""
    try:
        reader = os.open(use, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(reader, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return time.time() - os.fstat(reader).st_mtime >= keep_seconds
    except BlockingIOError:
        return False
    finally:
        os.close(reader)


if __name__ == "__main__":
    folder, *named = sys.argv[1:]
    dropped = drop(folder, named) if named else sweep(folder, 0.0)
    for gone in dropped:
        sys.stdout.write(f"dropped the copy of {gone}\n")
