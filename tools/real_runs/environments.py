"""The environments of the frameworks: one for each requirements file."""

import os
import subprocess
from pathlib import Path

from tests.environments import Environment

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
    return _environment(environment).python


def extensions_of(environment: str) -> Path:
    """Where torch keeps what it compiled."""
    return FOLDER / environment / "extensions"


def install(environment: str) -> None:
    """Creates the environment unless it is there. Raises subprocess.SubprocessError when it cannot be had."""
    _environment(environment).install()
    folder = FOLDER / environment
    if environment in _COMPILED and not (folder / ".compiled").exists():
        variables = {"TORCH_EXTENSIONS_DIR": str(extensions_of(environment)), "PATH": f"{folder}/bin:/usr/bin:/bin"}
        build = [str(python_of(environment)), "-c", _COMPILED[environment]]
        subprocess.run(build, env=variables, check=True, timeout=_INSTALL_SECONDS)
        (folder / ".compiled").touch()


_COMPILERS = {
    ".cc": ("mpicxx", "-O1", "-g", "-w", "-o"),
    ".cpp": ("g++", "-O1", "-g", "-w", "-o"),
    ".f90": ("gfortran", "-O1", "-g", "-fbacktrace", "-fcheck=all", "-o"),
    ".go": ("go", "build", "-o"),
    ".rs": ("rustc", "--edition=2021", "-O", "-o"),
}
"""Of trainers by the suffix of their source; programs over MPI end in .cc."""


def built(source: Path) -> Path:
    """The program of a source file, compiled when the file is newer."""
    program = FOLDER / "built" / source.stem
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([*_COMPILERS[source.suffix], program, source], check=True, timeout=_INSTALL_SECONDS)
    return program


def _environment(name: str) -> Environment:
    return Environment(FOLDER / name, REQUIREMENTS / f"{name}.txt")
