"""The environments of the frameworks: one for each requirements file."""

import os
from pathlib import Path

from tests.environments import Environment

REQUIREMENTS = Path(__file__).parent / "requirements"
FOLDER = Path(os.environ.get("REAL_RUNS_FOLDER", Path.home() / ".cache/diagnoser-real-runs"))


def environments() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in REQUIREMENTS.glob("*.txt")))


def python_of(environment: str) -> Path:
    return _environment(environment).python


def install(environment: str) -> None:
    """Creates the environment unless it is there. Raises subprocess.SubprocessError when it cannot be had."""
    _environment(environment).install()


def _environment(name: str) -> Environment:
    return Environment(FOLDER / name, REQUIREMENTS / f"{name}.txt")
