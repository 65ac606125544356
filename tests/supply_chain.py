"""What the service is made of, and what is known against it: by cyclonedx-py, pip-licenses and pip-audit.

``python -m tests.supply_chain sbom FOLDER`` writes FOLDER/sbom.cdx.json (CycloneDX 1.6) and FOLDER/licences.md;
``... audit`` asks the advisory databases of PyPI and OSV about every pin. The programs have their own environment.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.environments import SBOM

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "requirements" / "runtime.txt"
SERVICES = ("pypi", "osv")
UNREACHABLE = 3
"""Exit code where no database answered: nothing is known, which is not the same as nothing found."""


def names() -> list[str]:
    """Of the packages that the image installs."""
    return re.findall(r"^([a-z0-9][\w.-]*)==", PINS.read_text(), re.MULTILINE)


def sbom(folder: Path) -> None:
    """Versions, hashes and addresses as the lock has them; licences as the installed packages have them."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ("--output-reproducible", "--of", "JSON", "--pyproject", str(ROOT / "pyproject.toml"))
    _run("cyclonedx_py", "requirements", str(PINS), *options, "-o", str(folder / "sbom.cdx.json"))
    _run(
        "piplicenses", "--python", sys.executable, "--packages", *names(), "--from", "mixed", "--format", "markdown",
        "--with-urls", "--output-file", str(folder / "licences.md"),
    )  # fmt: skip


def audit() -> int:
    """0: nothing known, 1: something is, UNREACHABLE: no database could be asked."""
    for service in SERVICES:
        # Strict: a package that the database could not be asked about must not count as sound.
        options = (
            "--strict",
            "--requirement",
            str(PINS),
            "--require-hashes",
            "--disable-pip",
            "--progress-spinner",
            "off",
        )
        command = [str(SBOM.python), "-m", "pip_audit", *options, "--vulnerability-service", service]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0 or "known vulnerabilit" in done.stdout + done.stderr:
            sys.stdout.write(done.stdout + done.stderr)
            return done.returncode
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        sys.stderr.write(f"the database {service} can not be asked: {reason[:200]}\n")
    return UNREACHABLE


def _run(module: str, *options: str) -> None:
    subprocess.run([str(SBOM.python), "-W", "ignore", "-m", module, *options], check=True)


def main(words: Sequence[str]) -> int:
    SBOM.install()
    if words[0] == "audit":
        return audit()
    sbom(Path(words[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
