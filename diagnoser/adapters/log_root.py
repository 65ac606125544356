"""Opens log files below one folder; no path leaves it, neither through ``..`` nor through symbolic links."""

import os
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from diagnoser.model.errors import BadInput, LogRefusal, LogRefused

PATH_LENGTH = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class LogRoot:
    """given: the folder as configured, which paths may begin with. real: the same with symbolic links resolved."""

    given: PurePosixPath
    real: PurePosixPath

    def open(self, path: str) -> BinaryIO:
        """A plain, non-empty file, open for reading. Raises LogRefused."""
        parts = self._below(path)
        with ExitStack() as stack:
            try:
                folder = _close_with(stack, os.open(self.real, _FOLDER))
                for name in parts[:-1]:
                    folder = _close_with(stack, os.open(name, _FOLDER, dir_fd=folder))
                handle = os.open(parts[-1], _FILE, dir_fd=folder)
            except OSError as error:
                raise _refused(error) from None
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise LogRefused(LogRefusal.NOT_REGULAR, "not a plain file")
            if not status.st_size:
                raise LogRefused(LogRefusal.EMPTY_FILE, "the file is empty yet")
        except LogRefused:
            os.close(handle)
            raise
        return os.fdopen(handle, "rb")

    def _below(self, path: str) -> tuple[str, ...]:
        if any((not path.startswith("/"), "\0" in path, len(path) > PATH_LENGTH)):
            raise LogRefused(LogRefusal.INVALID_PATH, "log_path must be an absolute path")
        target = PurePosixPath(path)
        if ".." not in target.parts:
            for root in (self.given, self.real):
                if root in target.parents:
                    return target.relative_to(root).parts
        raise LogRefused(LogRefusal.OUTSIDE_ROOT, "log_path is not below the folder that this service may read")


def log_root(folder: Path) -> LogRoot:
    """Raises BadInput when there is no such folder."""
    if not folder.is_absolute() or not folder.is_dir():
        raise BadInput(f"DIAGNOSER_FT_LAUNCHER_LOG_ROOT: {folder} is not the absolute path of a folder")
    return LogRoot(PurePosixPath(os.path.normpath(folder)), PurePosixPath(folder.resolve()))


def _close_with(stack: ExitStack, handle: int) -> int:
    stack.callback(os.close, handle)
    return handle


def _refused(error: OSError) -> LogRefused:
    if isinstance(error, FileNotFoundError):
        return LogRefused(LogRefusal.NOT_FOUND, "there is no such file")
    if isinstance(error, PermissionError):
        return LogRefused(LogRefusal.NOT_READABLE, "the file may not be read")
    return LogRefused(LogRefusal.NOT_REGULAR, "a symbolic link, or not a folder, on the way")
