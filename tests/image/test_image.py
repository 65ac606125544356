"""The container image, built from the Dockerfile on a base of Debian's packages, and run as clusters run it."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.service import DEMO_LOG, diagnosis_of, send, until
from tests.ports import free_port

pytestmark = [pytest.mark.image, pytest.mark.xdist_group("image")]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("IMAGE_FOLDER", Path.home() / ".cache/diagnoser-test-image"))
PROGRAMS = ("buildah", "podman", "unshare", "setpriv")
BASE, BUILD_BASE, IMAGE = (f"localhost/diagnoser{name}:test" for name in ("-base", "-build-base", ""))
STORE = ("--root", str(FOLDER / "store"), "--runroot", str(FOLDER / "run"), "--storage-driver", "vfs")
CONTAIN = """set -e
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"
mount -t tmpfs -o mode=1777 tmpfs "$1/tmp" && mount --rbind /dev "$1/dev" && mount -t proc proc "$1/proc"
mount --bind "$2" "$1/var/lib/diagnoser"
root=$1; shift 2
exec setpriv --no-new-privs chroot --userspec=10001:10001 "$root" "$@"
"""
"""Runs a program in the tree of the image: read-only, as the image's user, with nothing to gain. Debian's runtimes of
containers refuse machines that have control groups of both versions."""
BYTES_MAX = 300_000_000
TOKEN = "0123456789abcdef"
PIP = "[global]\nno-index = true\nfind-links = /wheels\ndisable-pip-version-check = true\n"


def missing() -> str:
    """Why no image can be built here; "" when it can."""
    absent = [name for name in PROGRAMS if not shutil.which(name)]
    if os.geteuid() != 0 or absent:
        return f"no {', '.join(absent) or 'root'}: see `make test-image`"
    if not all((FOLDER / name).exists() for name in ("base.tar", "build-base.tar", "wheels/.complete")):
        return f"no base in {FOLDER}: `make test-image` makes it"
    pinned = hashlib.sha256((ROOT / "requirements" / "runtime.txt").read_bytes()).hexdigest()
    if pinned not in (FOLDER / "wheels" / ".complete").read_text():
        return f"other packages in {FOLDER} than those that are pinned now: `make test-image` fetches them"
    return ""


def _buildah(*words: str) -> str:
    done = subprocess.run(["buildah", *STORE, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.strip()


def _contained(image: str, data: Path, settings: dict[str, str], *words: str) -> list[str]:
    """The command that starts the image's program with these words, or with its own."""
    tree = subprocess.check_output(["podman", *STORE, "image", "mount", image], text=True).strip()
    config = _inspected(image)["config"]
    environment = [*config["Env"], *(f"{name}={value}" for name, value in settings.items())]
    program = ["/usr/bin/env", "-i", *environment, *config["Entrypoint"], *(words or config["Cmd"])]
    contain = ["unshare", "--mount", "--pid", "--fork", "--kill-child=SIGTERM"]
    return [*contain, "sh", "-c", CONTAIN, "contain", tree, str(data), *program]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Built without a network: the packages are mounted."""
    if why := missing():
        pytest.skip(why)
    for name, archive in ((BASE, "base.tar"), (BUILD_BASE, "build-base.tar")):
        if subprocess.run(["buildah", *STORE, "inspect", "--type", "image", name], capture_output=True).returncode:
            container = _buildah("from", "scratch")
            _buildah("add", "--quiet", container, str(FOLDER / archive), "/")
            _buildah("commit", "--quiet", "--rm", container, name)
    pip = tmp_path_factory.mktemp("pip") / "pip.conf"
    pip.write_text(PIP)
    mounts = ("--volume", f"{FOLDER / 'wheels'}:/wheels:ro", "--volume", f"{pip}:/etc/pip.conf:ro")
    _buildah(
        "build", "--isolation", "chroot", "--pull=never", "--format", "docker", "--build-arg", f"BASE={BASE}",
        "--build-arg", f"BUILD_BASE={BUILD_BASE}", *mounts,
        "--file", str(ROOT / "deploy" / "docker" / "Dockerfile"), "--tag", IMAGE, str(ROOT),
    )  # fmt: skip
    return IMAGE


@contextmanager
def running(folder: Path, image: str, *words: str, port: int) -> Iterator[httpx.Client]:
    """A container as the manifests and the compose file start it: read-only, no capabilities, nothing to gain."""
    data = folder / "data"
    data.mkdir()
    os.chown(data, 10001, 10001)
    (data / "tokens").write_text(f"admin:{TOKEN}")
    (data / "tokens").chmod(0o444)
    settings = {"HOST": "127.0.0.1", "PORT": str(port), "EXIT_GRACE_SECONDS": "0.2"}
    settings |= {"TOKENS_FILE": "/var/lib/diagnoser/tokens"}
    command = _contained(image, data, {f"DIAGNOSER_{key}": value for key, value in settings.items()}, *words)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        headers = {"authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, headers=headers) as client:
            until(lambda: process.poll() is not None or _ready(client), "the container is ready")
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            yield client
    finally:
        # unshare itself ignores SIGTERM, as it waits for its child.
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
        process.wait(timeout=120)


def _ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _inspected(image: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_buildah("inspect", "--type", "image", image))["Docker"]
    return found


def test_the_image_is_small_and_not_root(image: str) -> None:
    """Unpacked, with its base; its user is a number, so that Kubernetes can tell that it is not root."""
    listed = json.loads(_buildah("images", "--json", image))
    size = int(subprocess.check_output(["podman", *STORE, "image", "inspect", "--format", "{{.Size}}", image]))
    assert listed
    assert size < BYTES_MAX, f"{size / 1e6:.0f} MB"
    config = _inspected(image)["config"]
    assert (config["User"], config["Entrypoint"], config["Cmd"]) == ("10001:10001", ["diagnoser"], ["serve"])
    assert config["Healthcheck"]["Test"][0] == "CMD"


def test_a_container_of_it_diagnoses_a_log_and_ends_at_once(image: str, tmp_path: Path) -> None:
    """With a root file system that cannot be written and no rights; its data is on the volume, and SIGTERM ends it."""
    with running(tmp_path, image, port=free_port()) as client:
        lines = DEMO_LOG.read_bytes().splitlines(keepends=True)
        send(client, lines, 0, len(lines))
        assert client.post("/api/v1/jobs/j/events", json={"kind": "exit", "code": 1}).status_code == httpx.codes.OK
        assert diagnosis_of(client, lines=len(lines))["type"] not in ("", "unknown")
        assert client.get("/").status_code == httpx.codes.OK
    assert (tmp_path / "data" / "diagnoser.db").stat().st_uid == 10001
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_what_else_it_is_started_for_works_in_it(image: str, tmp_path: Path) -> None:
    """The agents, the migration, a log file on the command line, and the program of the node check."""
    for words, told in (
        (("--version",), "."),
        (("agent", "kubernetes", "--help"), "--dry-run"),
        (("agent", "slurm", "--help"), "--dry-run"),
        (("db", "upgrade", "--help"), "--create"),
    ):
        command = _contained(image, tmp_path, {}, *words)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, told in done.stdout) == (0, True), done.stderr[-2000:]
