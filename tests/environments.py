"""Virtual environments of software that is not diagnoser's own, each from a requirements file, outside the tree.

``python -m tests.environments NAME...`` installs some, for the tests that use them. Needs nothing but Python.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INSTALL_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Environment:
    """folder: of the virtual environment. requirements: pins, with hashes or without. target: of make, which installs
    it. needs: what has to be there for that, beside the package index. options: further words of pip.
    """

    folder: Path
    requirements: Path
    target: str = "tools"
    needs: str = ""
    options: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    @property
    def missing(self) -> str:
        """Why a test cannot use it; "" when it can."""
        return (
            "" if self._is_installed() else f"no {self.folder} with {self.requirements.name}: see `make {self.target}`"
        )

    def install(self) -> None:
        """Creates it, unless it is there as its requirements now are. Raises subprocess.SubprocessError where a package
        cannot be had."""
        if self._is_installed():
            return
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", self.folder], check=True)
        pip = (str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.options)
        subprocess.run([*pip, "--requirement", self.requirements], check=True, timeout=INSTALL_SECONDS)
        self._stamp.write_text(self._digest())

    @property
    def _stamp(self) -> Path:
        return self.folder / ".installed"

    def _is_installed(self) -> bool:
        return self._stamp.exists() and self._stamp.read_text() == self._digest()

    def _digest(self) -> str:
        return hashlib.sha256(self.requirements.read_bytes()).hexdigest()


_PINS = Path(__file__).parents[1] / "requirements"
_TOOLS = Path(os.environ.get("TOOLS_FOLDER", Path.home() / ".cache/diagnoser-test-tools"))
TORCH = Environment(
    Path(os.environ.get("TORCH_FOLDER", Path.home() / ".cache/diagnoser-test-torch")),
    _PINS / "torch.txt",
    "torch",
    "pip must find torch's CPU build (requirements/torch.txt names it), for CPython 3.11 on x86-64; PYTHON says which "
    "Python is used.",
)
ENGINES = Environment(
    Path(os.environ.get("ENGINES_FOLDER", Path.home() / ".cache/diagnoser-test-engines")),
    _PINS / "engines.txt",
    "engines",
)
OPENCOMPASS = Environment(
    Path(os.environ.get("OPENCOMPASS_FOLDER", Path.home() / ".cache/diagnoser-test-opencompass")),
    _PINS / "opencompass.txt",
    "opencompass",
)
SMOLLM = Environment(
    Path(os.environ.get("SMOLLM_FOLDER", Path.home() / ".cache/diagnoser-test-smollm")),
    _PINS / "smollm.txt",
    "engines",
    options=("--no-deps",),
)
MOTO = Environment(_TOOLS / "moto", _PINS / "moto.txt")
OIDC = Environment(_TOOLS / "oidc", _PINS / "oidc.txt")
SCHEMATHESIS = Environment(_TOOLS / "schemathesis", _PINS / "schemathesis.txt")
TANSU = Environment(_TOOLS / "tansu", _PINS / "tansu.txt")
MCP = Environment(_TOOLS / "mcp", _PINS / "mcp.txt")
MANIFESTS = Environment(_TOOLS / "manifests", _PINS / "manifests.txt")
SBOM = Environment(_TOOLS / "sbom", _PINS / "sbom.txt", "sbom")
WORKFLOWS = Environment(_TOOLS / "workflows", _PINS / "workflows.txt")
SHIPPERS = Environment(
    Path(os.environ.get("SHIPPERS_FOLDER", Path.home() / ".cache/diagnoser-test-shippers")) / "python",
    _PINS / "shippers.txt",
    "shippers",
)
ENVIRONMENTS = {
    "torch": TORCH,
    "engines": ENGINES,
    "opencompass": OPENCOMPASS,
    "smollm": SMOLLM,
    "shippers": SHIPPERS,
    "moto": MOTO,
    "oidc": OIDC,
    "schemathesis": SCHEMATHESIS,
    "tansu": TANSU,
    "mcp": MCP,
    "manifests": MANIFESTS,
    "sbom": SBOM,
    "workflows": WORKFLOWS,
}


def main(names: Sequence[str]) -> None:
    """What cannot be had is said, and is no failure: the tests that need it skip."""
    for name in names:
        environment = ENVIRONMENTS[name]
        try:
            environment.install()
        except (subprocess.SubprocessError, OSError) as error:
            sys.stderr.write(
                f"no {name} in {environment.folder}: {error}\nThe tests that use it will skip. {environment.needs}\n"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
