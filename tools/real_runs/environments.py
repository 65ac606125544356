"""The environments of the frameworks: one for each requirements file."""

import os
import shlex
import shutil
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
    ".adb": "gnatmake -q -g -gnata -o {program} {source}",
    ".cc": "mpicxx -O1 -g -w -o {program} {source}",
    ".cpp": "g++ -O1 -g -w -o {program} {source}",
    ".cs": "mcs -debug -out:{program} {source}",
    ".cxx": "g++ -std=c++17 -O1 -w -I/usr/include/eigen3 -o {program} {source} -lspdlog -lfmt -pthread",
    ".f90": "gfortran -O1 -g -fbacktrace -fcheck=all -o {program} {source}",
    ".go": "go build -o {program} {source}",
    ".hs": "ghc -v0 -O1 -o {program} {source}",
    ".ml": "ocamlopt -w -a -g -o {program} unix.cmxa {source}",
    ".rs": "rustc --edition=2021 -O -o {program} {source}",
}
"""Of trainers by the suffix of their source: .cc for programs over MPI, .cxx for those with Eigen and spdlog."""


def built(source: Path) -> Path:
    """The program of a source file, compiled when the file is newer, from a copy: compilers leave files beside it."""
    program = FOLDER / "built" / source.stem
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        folder = program.parent / "sources" / source.stem
        folder.mkdir(parents=True, exist_ok=True)
        command = _COMPILERS[source.suffix].format(program=program, source=shutil.copy(source, folder))
        subprocess.run(shlex.split(command), cwd=folder, check=True, timeout=_INSTALL_SECONDS)
    return program


def _environment(name: str) -> Environment:
    return Environment(FOLDER / name, REQUIREMENTS / f"{name}.txt")
