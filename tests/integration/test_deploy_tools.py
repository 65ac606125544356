"""The files of deploy/ as the programs that they are for read them."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import NOWHERE
from tests.e2e.service import until

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXPOSURE_MAX = {"diagnoser.service": 15, "diagnoser-agent-slurm.service": 30}
"""Tenths of what systemd calls the level of exposure: below 2 it says OK, 10 is none of it at all."""


def needs(program: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not shutil.which(program), reason=f"no {program}: apt-get install {package}")


@needs("systemd-analyze", "systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    """No directive that it does not know, and the little exposure that each needs."""
    text = unit.read_text().replace("/opt/diagnoser/bin/diagnoser", "/bin/true")
    copy = tmp_path / unit.name
    copy.write_text(text)
    verified = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert [line for line in verified.stderr.splitlines() if unit.name in line] == []
    assert verified.returncode == 0, verified.stderr
    level = EXPOSURE_MAX[unit.name]
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={level}", str(copy)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert rated.returncode == 0, rated.stdout[-300:]


@needs("promtool", "prometheus")
def test_prometheus_takes_the_configuration_of_compose(tmp_path: Path) -> None:
    """With the token as a file, and the rules where compose mounts them."""
    text = (DEPLOY / "compose" / "prometheus.yml").read_text()
    (tmp_path / "token").write_text("x")
    (tmp_path / "rules").symlink_to(DEPLOY / "prometheus")
    text = text.replace("/run/secrets/metrics-token", str(tmp_path / "token"))
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/rules", str(tmp_path / "rules")))
    _run("promtool", "check", "config", str(tmp_path / "prometheus.yml"))


@needs("promtool", "prometheus")
def test_prometheus_finds_the_pods_of_api_and_worker(tmp_path: Path) -> None:
    """By their labels and the name of their port, as the manifests have them."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "kubernetes.yml").read_text())
    (scrape,) = config["scrape_configs"]
    found = scrape.pop("kubernetes_sd_configs")  # Debian builds Prometheus without
    assert found == [{"role": "pod", "namespaces": {"names": ["diagnoser"]}}]
    (tmp_path / "token").write_text("x")
    scrape["authorization"]["credentials_file"] = str(tmp_path / "token")
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    _run("promtool", "check", "config", str(tmp_path / "prometheus.yml"))
    kubernetes = DEPLOY / "kubernetes"
    for component, file in {"api": "base/service.yaml", "worker": "overlays/postgres/worker.yaml"}.items():
        manifest = (kubernetes / file).read_text()
        assert f"app.kubernetes.io/component: {component}" in manifest and "{name: http, containerPort" in manifest


@needs("amtool", "prometheus-alertmanager")
def test_alertmanager_takes_the_configuration_of_compose() -> None:
    """As it is."""
    _run("amtool", "check-config", str(DEPLOY / "compose" / "alertmanager.yml"))


@needs("docker-compose", "docker-compose")
def test_compose_takes_the_file() -> None:
    """By the schema of docker-compose, after its anchors and variables are put in."""
    done = _run("docker-compose", "--file", str(ROOT / "docker-compose.yml"), "--profile", "model", "config")
    assert set(yaml.safe_load(done)["services"]) > {"diagnoser", "worker", "vllm"}


def test_secrets_of_compose_are_made_once_and_only_their_owner_finds_them(tmp_path: Path) -> None:
    """A second run changes nothing; the folder is closed to others, the files can be read by the containers' users."""
    script = tmp_path / "secrets.sh"
    shutil.copy(DEPLOY / "compose" / "secrets.sh", script)
    made = []
    for _ in range(2):
        _run("sh", str(script))
        made.append({path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()})
    assert made[0] == made[1]
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "secrets").iterdir()} == {0o444}
    secrets = made[0]
    assert secrets["tokens"] == f"admin:{secrets['admin-token']},read:{secrets['metrics-token']}"
    assert f":{secrets['postgres-password']}@" in secrets["database-url"]
    assert len({secrets["admin-token"], secrets["metrics-token"], secrets["postgres-password"]}) == 3


class Service(ThreadingHTTPServer):
    """Keeps what it is sent: path, token, body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taken)
        self.taken: list[tuple[str, str, dict[str, Any]]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Taken(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append((self.path, self.headers["Authorization"], json.loads(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    yield found
    found.shutdown()
    found.server_close()


@needs("curl", "curl")
def test_the_hooks_of_slurmctld_tell_how_a_job_starts_and_ends(service: Service, tmp_path: Path) -> None:
    """With the token from its file, which is not among the arguments of any process; they never fail."""
    (tmp_path / "token").write_text("secret-token")
    (tmp_path / "scontrol").write_text("#!/bin/sh\nprintf 'gpu-01\\ngpu-02\\n'\n")
    (tmp_path / "scontrol").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "DIAGNOSER_URL": f"http://127.0.0.1:{service.server_port}",
        "DIAGNOSER_TOKEN_FILE": str(tmp_path / "token"),
        "SLURM_CLUSTER_NAME": "east",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "gpu-[01-02]",
        "SLURM_JOB_EXIT_CODE2": "0:9",
    }
    for name, count in (("prolog_slurmctld.sh", 2), ("epilog_slurmctld.sh", 3)):
        subprocess.run([DEPLOY / "slurm" / name], env=environment, check=True)
        until(lambda count=count: len(service.taken) == count, name)
    assert {token for _, token, _ in service.taken} == {"Bearer secret-token"}
    assert service.taken[1][2].pop("time") <= time.time()
    assert [(path, body) for path, _, body in service.taken] == [
        ("/api/v1/jobs", {"id": "slurm-east-17", "cluster": "east", "nodes": ["gpu-01", "gpu-02"]}),
        ("/api/v1/jobs/slurm-east-17/events", {"kind": "started"}),
        ("/api/v1/jobs/slurm-east-17/events", {"kind": "exit", "signal": 9}),
    ]
    subprocess.run(
        [DEPLOY / "slurm" / "prolog_slurmctld.sh"],
        env={"PATH": os.environ["PATH"], "DIAGNOSER_URL": NOWHERE},
        check=True,
    )


def test_all_that_the_image_loads_is_in_it() -> None:
    """The step of the build that loads every module finds what it needs among the pinned packages."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", str(DEPLOY / "docker" / "load_all.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_script_is_sound() -> None:
    """The shell that each names finds no fault in its grammar, and each can be run."""
    scripts = [path for path in DEPLOY.rglob("*.sh") if path.is_file()]
    assert len(scripts) > 5
    for path in scripts:
        [shell] = re.findall(r"^#!(?:/usr/bin/env )?(\S+)", path.read_text())
        subprocess.run([shell, "-n", path], check=True)
        assert os.access(path, os.X_OK), path


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
