"""Builds what a release consists of, from a commit and nothing else: ``make release``.

``python -m tools.release build [FOLDER]`` writes wheel, sdist, Helm chart, ``client.pyz``, SBOM, licences, provenance
and checksums. Two builds of a commit are equal byte by byte: files come from Git, times from the commit.
``python -m tools.release version`` writes the version of ``pyproject.toml`` into the files that repeat it.
"""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHART = Path("deploy/helm/diagnoser")
CHECKSUMS = "SHA256SUMS"
PROVENANCE = "provenance.intoto.json"
REPEATS = (
    "README.md",
    "docker-compose.yml",
    "docs/*.md",
    "deploy/helm/diagnoser/Chart.yaml",
    "deploy/kubernetes/**/*.yaml",
)
"""Files that state the version: people copy commands from them, and Kubernetes and Helm read them as they are."""
REPEATED = re.compile(r"(\bdiagnoser[:-]|\bnewTag: |^(?:app)?[vV]ersion: )\d+\.\d+\.\d+\b", re.MULTILINE)
CLIENT = """import sys
from pathlib import Path
from diagnoser.web.api.client_archive import built
Path(sys.argv[1]).write_bytes(built("").data)
"""


@dataclass(frozen=True, slots=True)
class Source:
    """A commit, written to a folder.

    tree: the folder. commit: its id. epoch: seconds, when it was committed. version: of its ``pyproject.toml``.
    """

    tree: Path
    commit: str
    epoch: int
    version: str

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SOURCE_DATE_EPOCH": str(self.epoch), "PYTHONPATH": str(self.tree)}


def changes(root: Path) -> list[str]:
    """List the files of a checkout that differ from its commit, those that Git does not know included."""
    return _git(root, "status", "--porcelain", "--untracked-files=all").splitlines()


def export(root: Path, folder: Path) -> Source:
    """Write the newest commit of the checkout to a folder: no ignored or forgotten file gets in."""
    command = ["git", "-C", str(root), "-c", "tar.umask=0022", "archive", "--format=tar", "HEAD"]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(folder, filter="tar")
    commit, epoch = _git(root, "log", "-1", "--format=%H %ct").split()
    return Source(folder, commit, int(epoch), version_of(folder))


def version_of(root: Path) -> str:
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def build_packages(source: Source, folder: Path) -> None:
    """Wheel, sdist, chart and the client: what people install."""
    _run(source, "-m", "hatchling", "build", "--directory", str(folder.resolve()))
    pack_chart(source, folder / f"diagnoser-{source.version}.tgz")
    build_client(source, folder / f"diagnoser-{source.version}-py3-none-any.whl", folder / "client.pyz")


def pack_chart(source: Source, path: Path) -> None:
    """Pack the chart as ``helm package`` does, but with the time of the commit and without an owner."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in sorted((source.tree / CHART).rglob("*")):
            if file.is_file():
                _add(archive, f"diagnoser/{file.relative_to(source.tree / CHART)}", file.read_bytes(), source.epoch)
    path.write_bytes(gzip.compress(raw.getvalue(), mtime=source.epoch))


def _add(archive: tarfile.TarFile, name: str, data: bytes, epoch: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(data), epoch, 0o644
    archive.addfile(entry, io.BytesIO(data))


def build_client(source: Source, wheel: Path, path: Path) -> None:
    """Let the built wheel pack its own client, so that the client states the version of the wheel."""
    with tempfile.TemporaryDirectory() as unpacked:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        environment = {**source.environment, "PYTHONPATH": unpacked}
        subprocess.run([sys.executable, "-c", CLIENT, str(path.resolve())], cwd=unpacked, env=environment, check=True)


def build_sbom(source: Source, folder: Path) -> None:
    _run(source, "-m", "tests.supply_chain", "sbom", str(folder.resolve()))


def provenance(source: Source, files: Sequence[Path]) -> dict[str, Any]:
    """Say what was built from what: an in-toto statement with SLSA's predicate v1. Nobody has signed it, and its
    builder is whoever ran the command: it helps to compare builds, and proves nothing."""
    pins = source.tree / "requirements" / "dev.txt"
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": file.name, "digest": {"sha256": digest(file)}} for file in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:diagnoser:make-release:v1",
                "externalParameters": {"version": source.version, "command": "make release"},
                "internalParameters": {"SOURCE_DATE_EPOCH": source.epoch},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": source.commit}},
                    {"name": "requirements/dev.txt", "digest": {"sha256": digest(pins)}},
                ],
            },
            "runDetails": {"builder": {"id": "urn:diagnoser:unsigned-local-build"}},
        },
    }


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build(root: Path, folder: Path) -> None:
    """Write all of a release to an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty: remove what an earlier build left there")
    with tempfile.TemporaryDirectory() as tree:
        source = export(root, Path(tree))
        build_packages(source, folder)
        build_sbom(source, folder)
        statement = provenance(source, sorted(folder.iterdir()))
        (folder / PROVENANCE).write_text(json.dumps(statement, indent=2) + "\n")
    lines = [f"{digest(file)}  {file.name}\n" for file in sorted(folder.iterdir())]
    (folder / CHECKSUMS).write_text("".join(lines))


def repeated(root: Path) -> dict[Path, str]:
    """The files that state the version, as they must be for the version of ``pyproject.toml``."""
    version = version_of(root)
    paths = [path for pattern in REPEATS for path in root.glob(pattern)]
    return {path: REPEATED.sub(rf"\g<1>{version}", path.read_text()) for path in sorted(paths)}


def write_version(root: Path) -> None:
    for path, text in repeated(root).items():
        path.write_text(text)


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout.strip()


def _run(source: Source, *words: str) -> None:
    subprocess.run([sys.executable, *words], cwd=source.tree, env=source.environment, check=True)


def main(words: Sequence[str]) -> None:
    if words[0] == "version":
        write_version(ROOT)
        return
    if changed := changes(ROOT):
        listed = "\n  ".join(changed[:10])
        raise SystemExit(
            f"a release is built from a commit, and these files differ from it:\n  {listed}\nCommit or stash them."
        )
    folder = Path(words[1]) if len(words) > 1 else ROOT / "dist"
    build(ROOT, folder)
    sys.stdout.write((folder / CHECKSUMS).read_text())


if __name__ == "__main__":
    main(sys.argv[1:])
