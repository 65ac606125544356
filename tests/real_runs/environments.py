"""The environments of the frameworks: a virtual environment for each, outside the tree, from its requirements file."""

import os
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
FOLDER = Path(os.environ.get("REAL_RUNS_FOLDER", Path.home() / ".cache/diagnoser-real-runs"))
_INSTALL_SECONDS = 900


def environments() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in REQUIREMENTS.glob("*.txt")))


def python_of(environment: str) -> Path:
    return FOLDER / environment / "bin/python"


def install(environment: str) -> None:
    """Creates the environment unless it is there. Raises subprocess.SubprocessError when it cannot be had."""
    folder, pins = FOLDER / environment, REQUIREMENTS / f"{environment}.txt"
    if (folder / ".installed").exists():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--requirement", str(pins)], check=True, timeout=_INSTALL_SECONDS)
    (folder / ".installed").touch()
