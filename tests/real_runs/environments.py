"""The environments of the frameworks: a virtual environment for each, outside the tree, from its requirements file."""

import os
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
FOLDER = Path(os.environ.get("REAL_RUNS_FOLDER", Path.home() / ".cache/diagnoser-real-runs"))
_INSTALL_SECONDS = 900
_COMPILED = {
    "deepspeed": "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder; ShareMemCommBuilder().load()",
}
"""What a framework would compile at the start of each run: done once, where a run has no time for it."""


def environments() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in REQUIREMENTS.glob("*.txt")))


def python_of(environment: str) -> Path:
    return FOLDER / environment / "bin/python"


def extensions_of(environment: str) -> Path:
    """Where torch keeps what it compiled."""
    return FOLDER / environment / "extensions"


def install(environment: str) -> None:
    """Creates the environment unless it is there. Raises subprocess.SubprocessError when it cannot be had."""
    folder = FOLDER / environment
    if not (folder / ".installed").exists():
        _create(folder, REQUIREMENTS / f"{environment}.txt")
        (folder / ".installed").touch()
    if environment in _COMPILED and not (folder / ".compiled").exists():
        variables = {"TORCH_EXTENSIONS_DIR": str(extensions_of(environment)), "PATH": f"{folder}/bin:/usr/bin:/bin"}
        build = [str(python_of(environment)), "-c", _COMPILED[environment]]
        subprocess.run(build, env=variables, check=True, timeout=_INSTALL_SECONDS)
        (folder / ".compiled").touch()


def _create(folder: Path, pins: Path) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--requirement", str(pins)], check=True, timeout=_INSTALL_SECONDS)
