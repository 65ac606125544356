"""Finds checkpoints that were already bad when they were written: empty ones, and files shorter than they say.

Checksums prove that a file still is what was written, and nothing about what was written. Three formats say how long
they are, so that a saver that was cut off shows without torch, and without reading the weights:

- torch.save and numpy's .npz: a ZIP archive, whose directory stands at its end;
- safetensors: a header with the offset at which the last tensor ends;
- torch.distributed.checkpoint: ``.metadata``, with file, offset and length of every piece.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from types import MappingProxyType
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

METADATA = ".metadata"
METADATA_BYTES = 1 << 30
HEADER_BYTES = 100 << 20
"""Longest header of a safetensors file, as that library reads it."""
_ZIP_START = b"PK\x03\x04"


class Defect(NamedTuple):
    """Why a file cannot hold a checkpoint. file: below the directory, "" for the whole of it. why: for a person."""

    file: str
    why: str

    def __str__(self) -> str:
        return "{}: {}".format(self.file, self.why).lstrip(": ")


def find_defects(directory: str, names: Sequence[str]) -> list[Defect]:
    """Check the files of a checkpoint by what they say of themselves.

    directory: of the checkpoint.
    names: its files, below the directory.
    """
    sizes = {}
    for name in names:
        try:
            sizes[name] = os.stat(os.path.join(directory, name)).st_size
        except OSError as error:
            return [Defect(name, str(error.strerror))]
    if not any(sizes.values()):
        return [Defect("", "the save wrote nothing")]
    defects = [defect for name in names for defect in _defects_of(os.path.join(directory, name), name)]
    for name in names:
        if os.path.basename(name) == METADATA:
            defects += _defects_of_metadata(directory, name)
    return defects


def _defects_of(path: str, name: str) -> Iterator[Defect]:
    check = _check_for(path, name)
    if check is None:
        return
    try:
        why = check(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error, zipfile.BadZipFile) as error:
        why = "it cannot be read: {}".format(error)
    if why:
        yield Defect(name, why)


def _check_for(path: str, name: str) -> Callable[[str], str] | None:
    if name.endswith(".safetensors"):
        return _why_no_safetensors
    with open(path, "rb") as file:
        start = file.read(len(_ZIP_START))
    if start == _ZIP_START:
        return _why_no_archive
    return None


def _why_no_archive(path: str) -> str:
    if zipfile.is_zipfile(path):
        return ""
    return "it ends before its directory: the save was cut off"


def _why_no_safetensors(path: str) -> str:
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(size, HEADER_BYTES):
            return "it ends within its header: the save was cut off"
        header = json.loads(file.read(length).decode("utf-8"))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    needed = 8 + length + max(ends, default=0)
    if size < needed:
        return _too_short(size, needed)
    return ""


def _too_short(size: int, needed: int) -> str:
    return "{:,} bytes, but its tensors need {:,}".format(size, needed)


# --- torch.distributed.checkpoint ---


class _Inert:
    """Stands for any class that a pickle names: it holds what it is given, and runs nothing."""

    fields: Mapping[str, Any] = MappingProxyType({})
    """Of a dataclass; those that are None may be left out."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.fields = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Take no entries of a subclass of dict."""

    def append(self, value: Any) -> None:
        """Take no items of a subclass of list."""

    def extend(self, values: Any) -> None:
        """Take no items of a subclass of list."""


class _InertUnpickler(pickle.Unpickler):
    """Reads a pickle without importing anything: no name in it leads to code."""

    def find_class(self, module: str, name: str) -> Any:
        return type(name, (_Inert,), {"__module__": module})


def _defects_of_metadata(directory: str, name: str) -> list[Defect]:
    path = os.path.join(directory, name)
    if os.stat(path).st_size > METADATA_BYTES:
        return [Defect(name, "it is too large to be read")]
    try:
        with open(path, "rb") as file:
            metadata = _InertUnpickler(file).load()
        stored = {_identity(index): info for index, info in metadata.fields["storage_data"].items()}
        needed = list(_needed_pieces(metadata.fields["state_dict_metadata"]))
        return [*_missing_pieces(name, needed, stored), *_short_files(path, stored.values())]
    except Exception as error:  # a pickle that was cut off raises almost anything
        return [Defect(name, "it cannot be read: {}: {}".format(type(error).__name__, error))]


def _identity(index: Any) -> tuple[str, Any]:
    """Return the name and the offsets of a piece, as torch finds it."""
    return str(index.fields["fqn"]), _offsets(index.fields.get("offset"))


def _offsets(size: Any) -> Any:
    """Return the numbers of a torch.Size; None where a value has none."""
    if size is None:
        return None
    return tuple(size.values[0])


def _needed_pieces(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what must be stored: each chunk of a tensor, and each other value as a whole."""
    for fqn, value in values.items():
        if "chunks" not in value.fields:
            yield str(fqn), None
            continue
        for chunk in value.fields["chunks"]:
            yield str(fqn), _offsets(chunk.fields["offsets"])


def _missing_pieces(
    name: str, needed: Sequence[tuple[str, Any]], stored: Mapping[tuple[str, Any], Any]
) -> Iterator[Defect]:
    if not needed:
        yield Defect(name, "it names no tensor and no value")
        return
    missing = [fqn for fqn, offsets in needed if (fqn, offsets) not in stored]
    if missing:
        yield Defect(name, "{} of {} pieces were never written, first {}".format(len(missing), len(needed), missing[0]))


def _short_files(path: str, infos: Iterable[Any]) -> Iterator[Defect]:
    """Yield the files that end before their last piece does."""
    ends: dict[str, int] = {}
    for info in infos:
        file = str(info.fields["relative_path"])
        ends[file] = max(ends.get(file, 0), int(info.fields["offset"]) + int(info.fields["length"]))
    for file, needed in sorted(ends.items()):
        try:
            size = os.stat(os.path.join(os.path.dirname(path), file)).st_size
        except OSError as error:
            yield Defect(file, str(error.strerror))
            continue
        if size < needed:
            yield Defect(file, _too_short(size, needed))
