"""A release is what its commit holds, the same each time, and works where nothing else of the project is."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.conftest import PROXIES
from tests.e2e.service import until
from tests.environments import MANIFESTS, SBOM, WORKFLOWS
from tests.ports import free_port
from tests.thorough import THOROUGH
from tests.unit.test_client_archive import old_python
from tools import release

ROOT = Path(__file__).resolve().parents[2]
DEMO_LOG = ROOT / "deploy" / "demo" / "train.log"
pytestmark = pytest.mark.xdist_group("release")


def checkout(folder: Path) -> Path:
    """A repository with the files of this one as they are now, committed."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", *PACKED]
    for name in subprocess.check_output(listed, text=True).strip("\0").split("\0"):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        elif (ROOT / name).exists():
            target.write_bytes((ROOT / name).read_bytes())
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "all"]):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=folder, check=True)
    return folder


PACKED = ("diagnoser", "rules", "prompts", "deploy", "requirements", "pyproject.toml", "*.md", "LICENSE", ".gitignore")


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The packages of one commit, built twice from two copies of it."""
    root = checkout(tmp_path_factory.mktemp("checkout"))
    folders = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    for folder in folders:
        tree = tmp_path_factory.mktemp("tree")
        release.build_packages(release.export(root, tree), folder)
    return folders


def test_two_builds_are_equal_byte_by_byte(builds: tuple[Path, Path]) -> None:
    """Wheel, sdist, chart and client, whenever and wherever they are built."""
    version = release.version_of(ROOT)
    first, second = ({file.name: file.read_bytes() for file in folder.iterdir()} for folder in builds)
    wheel, sdist = f"diagnoser-{version}-py3-none-any.whl", f"diagnoser-{version}.tar.gz"
    assert set(first) == {wheel, sdist, f"diagnoser-{version}.tgz", "client.pyz"}
    assert [name for name in first if first[name] != second[name]] == []


def test_the_packages_hold_what_the_commands_read_and_nothing_else(builds: tuple[Path, Path]) -> None:
    """Rules, prompts, migrations, templates and static files; no tests, no corpus, no file that Git ignores."""
    [wheel] = builds[0].glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in (
        "bundled/rules/policy.yaml",
        "bundled/prompts/failure_agent/",
        "adapters/sql/migrations/versions/0033_first_schema.py",
        "web/templates/",
        "web/static/",
        "py.typed",
    ):
        assert any(name.startswith(f"diagnoser/{needed}") for name in names), needed
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"diagnoser"}
    with tarfile.open(next(builds[0].glob("*.tar.gz"))) as sdist:
        assert not [name for name in sdist.getnames() if "/tests/" in name or "__pycache__" in name]


def test_the_client_states_the_version_of_its_release(builds: tuple[Path, Path]) -> None:
    """Whatever version of diagnoser is installed where it is built."""
    shown = subprocess.check_output([sys.executable, str(builds[0] / "client.pyz"), "--version"], text=True)
    assert shown.strip() == release.version_of(ROOT)


@pytest.mark.skipif(bool(MANIFESTS.missing), reason=MANIFESTS.missing)
def test_helm_takes_the_packed_chart_with_the_alert_rules(builds: tuple[Path, Path], tmp_path: Path) -> None:
    """The rules of deploy/prometheus stand in it as they are, templates of alerts included."""
    with tarfile.open(next(builds[0].glob("*.tgz"))) as chart:
        chart.extractall(tmp_path, filter="data")
    given = {"chart": str(tmp_path / "diagnoser"), "values": [{"prometheusRule": {"enabled": True}}]}
    command = [str(MANIFESTS.python), str(ROOT / "tests" / "helm_chart.py")]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=True)
    [found] = json.loads(done.stdout)
    assert found["lint"] == []
    assert "kind: PrometheusRule" in found["documents"]
    rules = (ROOT / "deploy" / "prometheus" / "rules.yml").read_text()
    alerts = [line.strip() for line in rules.splitlines() if line.strip().startswith(("- alert:", "summary:"))]
    assert [line for line in alerts if line not in found["documents"]] == []


def test_a_release_is_refused_from_a_tree_with_changes(tmp_path: Path) -> None:
    """A changed and a forgotten file are named; an ignored one does not matter."""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "9.9.9"\n')
    (tmp_path / ".gitignore").write_text("build/\n")
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "all"]):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=tmp_path, check=True)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "ignored").touch()
    assert release.changes(tmp_path) == []
    (tmp_path / "forgotten.py").touch()
    assert release.changes(tmp_path) == ["?? forgotten.py"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit, match=r"differ from it:\n  \?\? forgotten"):
        patch.setattr(release, "ROOT", tmp_path)
        release.main(["build"])
    assert not (tmp_path / "dist").exists()


def test_every_file_that_states_the_version_states_this_one() -> None:
    """`python -m tools.release version` writes it there."""
    assert [str(path) for path, text in release.repeated(ROOT).items() if path.read_text() != text] == []


@pytest.mark.skipif(not THOROUGH or bool(SBOM.missing), reason=SBOM.missing or "THOROUGH=1 builds all of a release")
def test_checksums_and_provenance_cover_every_file(tmp_path: Path) -> None:
    """What the provenance names has the digest that the checksums state."""
    root = checkout(tmp_path / "checkout")
    for name in ("tests", "tools"):
        (root / name).symlink_to(ROOT / name)
    release.build(root, tmp_path / "dist")
    lines = (tmp_path / "dist" / release.CHECKSUMS).read_text().split()
    sums = dict(zip(lines[1::2], lines[::2], strict=True))
    assert set(sums) == {file.name for file in (tmp_path / "dist").iterdir()} - {release.CHECKSUMS}
    for name, digest in sums.items():
        assert hashlib.sha256((tmp_path / "dist" / name).read_bytes()).hexdigest() == digest
    statement = json.loads((tmp_path / "dist" / release.PROVENANCE).read_text())
    named = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    assert named == {name: digest for name, digest in sums.items() if name != release.PROVENANCE}


@pytest.mark.skipif(not THOROUGH, reason="THOROUGH=1 installs the wheel from the package index")
@pytest.mark.parametrize("minor", [11, 12, 13])
def test_the_wheel_works_in_an_environment_of_its_own(minor: int, builds: tuple[Path, Path], tmp_path: Path) -> None:
    """As `pipx install` has it: a diagnosis, a database, and the service with its pages."""
    python = old_python(minor)
    if python is None:
        pytest.skip(f"no Python 3.{minor}")
    [wheel] = builds[0].glob("*.whl")
    subprocess.run([python, "-m", "venv", str(tmp_path / "env")], check=True)
    installing = [str(tmp_path / "env" / "bin" / "pip"), "install", "--quiet", str(wheel)]
    online = {name: value for name, value in os.environ.items() if name.lower() not in ("pythonpath", *PROXIES)}
    subprocess.run(installing, check=True, capture_output=True, env=online)
    program, port = str(tmp_path / "env" / "bin" / "diagnoser"), free_port()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DIAGNOSER_PORT": str(port)}
    environment["DIAGNOSER_DATABASE_URL"] = f"sqlite:///{tmp_path}/d.db"

    def run(*words: str) -> str:
        return subprocess.check_output([program, *words], cwd=tmp_path, env=environment, text=True)

    assert run("--version").strip() == release.version_of(ROOT)
    assert json.loads(run("diagnose", str(DEMO_LOG), "--json"))["type"] == "ecc_error"
    assert "schema" in run("db", "upgrade", "--create")
    service = subprocess.Popen([program, "serve"], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    try:
        page = ["curl", "--fail", "--silent", f"http://127.0.0.1:{port}/jobs"]
        until(
            lambda: b"<title>" in subprocess.run(page, capture_output=True, check=False).stdout, "a page is served", 60
        )
    finally:
        service.terminate()
        service.wait(timeout=180)


@pytest.mark.skipif(bool(WORKFLOWS.missing), reason=WORKFLOWS.missing)
def test_the_workflows_pass_their_linter() -> None:
    """No unpinned action, no text of a stranger in a command, no right that is not used."""
    linter = str(WORKFLOWS.folder / "bin" / "zizmor")
    done = subprocess.run([linter, "--offline", "--quiet", str(ROOT / ".github")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_workflows_call_targets_that_exist() -> None:
    """Nobody runs them here: a renamed target would show on the day of a release."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    called = {name for text in texts for name in re.findall(r"(?<!`)\bmake ([\w-]+)", text)}
    assert {"test", "release"} <= called <= targets
