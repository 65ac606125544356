"""Measures how long a new site waits for its first verdict: ``python -m tools.first_hour laptop|slurm|kubernetes``.

Each begins with nothing installed: the wheel goes into a new environment, and the commands are those of the page for
that role. Slurm's daemons and Kubernetes' control plane are real, and run before the clock starts, as they do at a
site. Hollow kubelets run no programs: on Kubernetes the service and the agent are processes, the lines of the job are
posted, and its pods get the status that a kubelet writes. What an image takes to build: ``make test-image``.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import httpx

from tests.e2e.service import until
from tests.integration.kubernetes import cluster as kubernetes
from tests.integration.kubernetes import test_real as real
from tests.integration.kubernetes.conftest import NAME
from tests.integration.slurm import cluster as slurm
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / "deploy" / "demo" / "train.log"
FAILS = f"#!/bin/bash\ncat {LOG}\nexit 1\n"
"""A job that prints the log of a run with a broken GPU, and fails as that run did."""
ISOLATED = ROOT / "tests" / "integration" / "kubernetes" / "isolated.sh"
BARS = {"laptop": 60, "slurm": 600, "kubernetes": 900}
"""Seconds that a new user may wait for the first verdict."""


@dataclass
class Site:
    """A new installation.

    folder: all its files. begun: when the clock started. last: when the last step ended.
    """

    folder: Path
    spent: float = 0.0
    last: float = 0.0

    def begin(self) -> None:
        """Start the clock."""
        self.last = time.monotonic()

    @property
    def program(self) -> Path:
        return self.folder / "env" / "bin" / "diagnoser"

    def done(self, step: str) -> None:
        """Print how long a step took."""
        now = time.monotonic()
        self.spent += now - self.last
        print(f"{now - self.last:7.1f} s  {step}", flush=True)  # noqa: T201
        self.last = now

    def install(self, *, as_in_the_image: bool = False) -> None:
        """Put the wheel into an environment of its own. What it needs comes from the package index."""
        [wheel] = self.folder.glob("*.whl")
        subprocess.run([sys.executable, "-m", "venv", self.folder / "env"], check=True)
        pip = [str(self.program.with_name("pip")), "install", "--quiet"]
        if as_in_the_image:
            pip.append("--no-deps")
            subprocess.run([*pip, "--require-hashes", "-r", str(ROOT / "requirements" / "runtime.txt")], check=True)
        subprocess.run([*pip, str(wheel)], check=True)
        self.done("installed from the package index")

    def run(self, *words: str) -> str:
        """Run a command of the page. Raises SystemExit with what it printed when it fails."""
        done = subprocess.run([self.program, *words], env=self.settings(), capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"diagnoser {' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def settings(self) -> dict[str, str]:
        return {**os.environ, "DIAGNOSER_DATABASE_URL": f"sqlite:///{self.folder}/data.db"}

    def token(self, *words: str) -> str:
        """Make a token, and read it from what the command prints."""
        printed = self.run("token", "create", *words)
        return next(word for word in printed.split() if word.startswith("dgn_"))

    @contextmanager
    def process(self, name: str, words: Sequence[str], environment: Mapping[str, str]) -> Iterator[Path]:
        """Run a command until the block ends. Gives the path of what it prints."""
        path = self.folder / f"{name}.log"
        with path.open("wb") as log:
            process = subprocess.Popen([self.program, *words], env=environment, stdout=log, stderr=log)
        try:
            yield path
        except AssertionError as late:
            raise SystemExit(f"{late}: {name} printed\n{path.read_text()}") from None
        finally:
            process.terminate()
            process.wait(60)

    @contextmanager
    def service(self) -> Iterator[httpx.Client]:
        """Make a token, check the configuration and serve: what both pages begin with."""
        token, port = self.token("maria", "--scope", "operate"), free_port()
        settings = self.settings() | {"DIAGNOSER_PORT": str(port)}
        self.run("check-config")
        with self.process("serve", ["serve"], settings):
            headers = {"authorization": f"Bearer {token}"}
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
                until(lambda: answers(client), "the service is ready")
                self.done("the service is ready")
                yield client

    @contextmanager
    def agent(self, scheduler: str, client: httpx.Client, environment: Mapping[str, str], *more: str) -> Iterator[None]:
        """Watch a cluster with a new token, without changing anything in it."""
        token = self.token("agent", "--scope", "agent", "--cluster", NAME)
        words = ["agent", scheduler, "--server", str(client.base_url), "--cluster", NAME, "--dry-run"]
        words += ["--state", str(self.folder / "agent"), *more]
        with self.process("agent", words, {**environment, "DIAGNOSER_AGENT_TOKEN": token}) as printed:
            until(lambda: "agent_started" in printed.read_text(), "the agent watches the cluster")
            self.done("the agent watches the cluster")
            yield

    def first_verdict(self, client: httpx.Client) -> None:
        """Wait for the diagnosis of a job that has failed."""

        def diagnoses() -> list[dict[str, str]]:
            found: list[dict[str, str]] = client.get("/api/v1/diagnoses").json()["items"]
            return found

        [diagnosis] = until(diagnoses, "the first verdict")
        self.done(f"a job has failed, and its diagnosis says {diagnosis['type']}")


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def laptop(site: Site) -> None:
    """The first lines of the README."""
    site.begin()
    diagnosis = json.loads(site.run("diagnose", str(LOG), "--json"))
    site.done(f"a failed log is diagnosed: {diagnosis['type']}")


def on_slurm(site: Site) -> None:
    """The commands of docs/for-slurm-admins.md, and a job that fails."""
    with slurm.running(NAME, 2) as cluster:
        site.begin()
        with site.service() as client, site.agent("slurm", client, cluster.environment):
            cluster.submit(FAILS, "--job-name=first")
            site.first_verdict(client)


def on_kubernetes(site: Site) -> None:
    """The agent of docs/for-kubernetes-admins.md, with the rights that its manifest gives it, and a Job that fails."""
    (site.folder / "cluster").mkdir()
    with kubernetes.running(site.folder / "cluster") as cluster:
        site.begin()
        with site.service() as client:
            shipper = site.token("shipper", "--scope", "ingest")
            real.apply_manifests(cluster)
            config = cluster.kubeconfig(site.folder / "kubeconfig", real.agent_token(cluster))
            environment = {**os.environ, "KUBECONFIG": str(config)}
            with site.agent("kubernetes", client, environment, "--namespace", real.SPACE, "--no-logs"):
                known, pods = real.launched(cluster, client, real.job("first"))
                headers = {"content-type": "text/plain", "authorization": f"Bearer {shipper}"}
                sent = client.post("/api/v1/logs", params={"job": known}, content=LOG.read_bytes(), headers=headers)
                sent.raise_for_status()
                for pod in pods:
                    real.fail(cluster, pod)
                site.first_verdict(client)


PLACES = {"laptop": laptop, "slurm": on_slurm, "kubernetes": on_kubernetes}
MISSING = {"laptop": lambda: "", "slurm": slurm.missing, "kubernetes": kubernetes.missing}


def main(place: str, folder: str = "", spent: str = "0") -> None:
    """Measure a place. folder, spent: of an installation that is there already, and the seconds that it took."""
    if folder:
        measure(place, Site(Path(folder), float(spent)))
    with tempfile.TemporaryDirectory(prefix="first-hour-") as new:
        build = ["-m", "hatchling", "build", "-t", "wheel", "-d", new]
        subprocess.run([sys.executable, *build], cwd=ROOT, check=True, capture_output=True)
        site = Site(Path(new))
        site.begin()
        site.install(as_in_the_image=place == "kubernetes")
        if place == "kubernetes":  # the control plane's ports are fixed, and an installation needs the network
            words = [str(ISOLATED), sys.executable, "-m", "tools.first_hour", place, new, str(site.spent)]
            raise SystemExit(subprocess.run(words).returncode)
        measure(place, site)


def measure(place: str, site: Site) -> NoReturn:
    if why := MISSING[place]():
        raise SystemExit(f"{place}: {why}")
    PLACES[place](site)
    print(f"{site.spent:7.1f} s  in all, of at most {BARS[place]}")  # noqa: T201
    raise SystemExit(int(site.spent > BARS[place]))


if __name__ == "__main__":
    main(*sys.argv[1:])
