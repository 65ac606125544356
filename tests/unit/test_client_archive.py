"""The client as the service hands it out: one file, the same bytes each time, and nothing but Python in it."""

import ast
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from diagnoser.client import VARIABLES, cli
from diagnoser.config import settings
from diagnoser.model.access import Scope, Token
from diagnoser.web.api.client_archive import built
from tests.serving import serving

CLIENT = Path(cli.__file__).parent


def old_python(minor: int) -> str | None:
    """A Python 3.``minor`` that is installed, by the system or by pyenv."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python3.{minor}"), *map(str, versions.glob(f"3.{minor}.*/bin/python"))]
    return next((python for python in candidates if python and runs(python)), None)


def runs(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def test_it_is_written_for_python_3_8() -> None:
    """No module uses syntax that is newer, and annotations are never evaluated."""
    for path in CLIENT.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 8))
        has_annotations = any(isinstance(node, ast.AnnAssign | ast.arg) and node.annotation for node in ast.walk(tree))
        assert not has_annotations or "from __future__ import annotations" in path.read_text("utf-8"), path.name


def test_it_imports_the_standard_library_and_itself() -> None:
    """Nothing of the service comes with it. A function that hands something to torch may import it."""
    for path in CLIENT.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        late = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for inner in ast.walk(node)}
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                is_own = name == "diagnoser.client" or name.startswith("diagnoser.client.")
                known = sys.stdlib_module_names | ({"torch"} if id(node) in late else set())
                assert is_own or name.partition(".")[0] in known, (path.name, name)


@pytest.mark.parametrize("minor", [8, 9, 10])
def test_it_runs_on_older_pythons(minor: int, tmp_path: Path) -> None:
    """Where one is installed."""
    python = old_python(minor)
    if python is None:
        pytest.skip(f"install Python 3.{minor}")
    (tmp_path / "client.pyz").write_bytes(built("").data)
    ended = subprocess.run([python, "-I", "client.pyz", "run", "--", "sh", "-c", "exit 3"], cwd=tmp_path, check=False)
    assert ended.returncode == 3


def test_the_file_runs_by_itself(tmp_path: Path) -> None:
    """Without any installed package: the standard library is enough."""
    (tmp_path / "client.pyz").write_bytes(built("http://127.0.0.1:1").data)
    command = [sys.executable, "-I", "-S", "client.pyz"]
    ended = subprocess.run([*command, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "run" in ended.stdout
    script = subprocess.run(["sh", "-c", "chmod +x client.pyz && ./client.pyz send --help"], cwd=tmp_path, check=False)
    assert script.returncode == 0


def test_the_bytes_are_the_same_each_time() -> None:
    """No time of making is in it, so that a copy can be compared; another origin is another file."""
    first = built("http://diagnoser:8321")
    built.cache_clear()
    assert built("http://diagnoser:8321") == first
    assert built("https://other").etag != first.etag
    with zipfile.ZipFile(io.BytesIO(first.data)) as archive:
        assert archive.read("diagnoser/client/origin.py").endswith(b"\nORIGIN = 'http://diagnoser:8321'\n")
        assert {name for name in archive.namelist() if "client" not in name} == {"__main__.py", "diagnoser/__init__.py"}


async def test_it_is_served_to_everybody_and_once(tmp_path: Path) -> None:
    """No token is needed; a copy that is still good is not sent again; it knows where it came from."""
    async with serving(tmp_path, tokens=(Token("t", "a-secret-of-16-characters", Scope.ADMIN),)) as web:
        answer = await web.client.get("/client.pyz")
        assert answer.content == built("http://diagnoser.test").data
        again = await web.client.get("/client.pyz", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        head = await web.client.head("/client.pyz")
        assert (head.status_code, head.headers["etag"]) == (200, answer.headers["etag"])


async def test_no_foreign_text_gets_into_the_code(tmp_path: Path) -> None:
    """The Host header becomes a line of Python: only what an address can be is taken."""
    async with serving(tmp_path) as web:
        for host in ("x'+__import__('os').system('id')+'", "a b", "x\\", "ä"):
            answer = await web.client.get("/client.pyz", headers={b"Host": host.encode()})
            assert answer.status_code >= 400 or answer.content == built("").data
    async with serving(tmp_path / "..", base_url="https://diagnoser.example/deep") as web:
        assert (await web.client.get("/client.pyz")).content == built("https://diagnoser.example/deep").data


def test_the_service_does_not_mind_the_variables_of_the_client() -> None:
    """Who sets them in a profile can still use every other command."""
    assert settings.load(dict.fromkeys(VARIABLES, "x")).host == "127.0.0.1"


def test_the_module_and_the_file_are_the_same_program() -> None:
    """`diagnoser run` becomes `python -m diagnoser.client run`."""
    command = [sys.executable, "-m", "diagnoser.client", "run", "--", "sh", "-c", "exit 4"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIAGNOSER_")}
    assert subprocess.run(command, env=environment, check=False).returncode == 4
