"""An archive in a folder, for one machine or a file system that all replicas mount."""

import asyncio
import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.ports import ArchivedObject

T = TypeVar("T")
_PARTIAL = ".partial-"
"""Begins the name of a file that is being written; no part of a key begins so."""


class FolderArchive:
    """``ports.Archive``. Each object is a file below the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, key: str, data: bytes) -> None:
        await _in_thread(lambda: self._put(self._folder / key, data))

    async def get(self, key: str, start: int, size: int) -> bytes | None:
        def read() -> bytes | None:
            with suppress(FileNotFoundError), (self._folder / key).open("rb") as file:
                file.seek(start)
                return file.read(size)
            return None

        return await _in_thread(read)

    async def delete(self, keys: Collection[str]) -> None:
        def work() -> None:
            for key in keys:
                path = self._folder / key
                path.unlink(missing_ok=True)
                with suppress(OSError):  # until one that holds something else
                    for folder in path.parents[: len(Path(key).parts) - 1]:
                        folder.rmdir()

        await _in_thread(work)

    async def objects(self, after: str, limit: int) -> list[ArchivedObject]:
        """List objects in order of the parts of their keys."""
        walked = _walk(self._folder, tuple(after.split("/")) if after else ())

        def work() -> list[ArchivedObject]:
            objects: list[ArchivedObject] = []
            for path in walked:
                if len(objects) == limit:
                    break
                with suppress(FileNotFoundError):
                    key = path.relative_to(self._folder).as_posix()
                    objects.append(ArchivedObject(key, path.stat().st_mtime))
            return objects

        return await _in_thread(work)

    def _put(self, path: Path, data: bytes) -> None:
        """The name appears with the whole object behind it, and is durable."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=_PARTIAL, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(partial).replace(path)
        except OSError:
            Path(partial).unlink(missing_ok=True)
            raise
        for folder in (path.parent, *path.parent.parents[: len(path.parent.relative_to(self._folder).parts)]):
            _sync(folder)


def folder_archive(folder: Path) -> FolderArchive:
    """Makes the folder. Raises BadInput when it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written to")
    except OSError as error:
        raise BadInput(f"DIAGNOSER_ARCHIVE: {error}") from error
    return FolderArchive(folder)


def _walk(folder: Path, after: tuple[str, ...]) -> Iterator[Path]:
    """Files whose parts come behind ``after``, in order. Partial ones are among them: a crash left them, and whoever
    sweeps finds that nobody knows them."""
    head, rest = (after[0], after[1:]) if after else ("", ())
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name < head:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder / entry.name, rest if entry.name == head else ())
        elif entry.name > head:
            yield folder / entry.name


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


async def _in_thread(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise Unavailable(f"archive: {error}") from error
