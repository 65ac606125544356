"""Reads rules, prompts and policy from the operator's folder, or else the bundled ones."""

from pathlib import Path

from diagnoser.model.errors import BadInput, os_reason

_PACKAGE = Path(__file__).resolve().parents[1]


def bundled(name: str) -> Path:
    """The folder ``rules`` or ``prompts`` that belongs to this code: inside the wheel, or at the top of a checkout."""
    packed = _PACKAGE / "bundled" / name
    return packed if packed.is_dir() else _PACKAGE.parent / name


def texts(folder: Path, pattern: str) -> dict[str, str]:
    """Relative path -> text of every file below ``folder`` that matches ``pattern``. Raises BadInput."""
    if not folder.is_dir():
        raise BadInput(f"no such folder: {folder}")
    return {path.relative_to(folder).as_posix(): text(path) for path in sorted(folder.glob(pattern))}


def text(path: Path) -> str:
    """The file as text. Raises BadInput when it cannot be read."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise BadInput(f"cannot read {path}: {os_reason(error)}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"cannot read {path}: {error}") from None


def content(path: Path, most: int) -> bytes:
    """The file, or its first ``most`` + 1 bytes, by which a larger one is known. Raises BadInput."""
    try:
        with path.open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {os_reason(error)}") from None
