"""A real Slurm on this machine: munged, one controller and a few slurmds, all on loopback, in one folder of their own.

As root, Slurm runs as its own user and jobs as ``nobody``; else everything runs as the user who runs the tests.
"""

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ports import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "squeue", "sbatch", "srun", "scancel", "sinfo")
PACKAGES = "slurmctld slurmd slurm-client munge"
REST_PACKAGES = "slurmrestd slurm-wlm-jwt-plugin"
PLUGINS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
ROOT = os.getuid() == 0
CREDENTIAL_SECONDS = 5
"""The least that Slurm takes: a requeued job waits for this and one second more (Slurm's own default is 120)."""


def missing() -> str:
    """Why no cluster can be started here; "" when it can."""
    absent = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if absent:
        return f"no {', '.join(absent)}: apt-get install --no-install-recommends {PACKAGES}"
    users = [name for name in ("slurm", "munge", "nobody") if ROOT and not _exists(name)]
    return f"no user {', '.join(users)}" if users else ""


def missing_rest() -> str:
    """Why there can be no slurmrestd with tokens; "" when there can."""
    plugins = [path for place in PLUGINS for path in Path(place).glob("slurm*/auth_jwt.so")]
    if shutil.which("slurmrestd", path=PATH) and plugins:
        return ""
    return f"no slurmrestd with auth/jwt: apt-get install --no-install-recommends {REST_PACKAGES}"


@dataclass
class Cluster:
    """folder: all its files. daemons: name of a node, or of a central daemon -> its process. rest: port of slurmrestd,
    0 for none. cpus: that a node says it has."""

    folder: Path
    name: str
    nodes: tuple[str, ...]
    rest: int = 0
    cpus: int = 2
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        return {**kept, "PATH": f"{kept.get('PATH', '')}:{PATH}", "SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str, user: str = "", check: bool = True) -> str:
        """Standard output of a Slurm command. user: who runs it, when we are root."""
        done = subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.folder,
            check=False,
            **_as(user),
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout).strip()

    def submit(self, script: str, *options: str) -> str:
        """Number of a new batch job, run by ``nobody`` where we are root."""
        path = self.folder / "jobs" / f"{secrets.token_hex(4)}.sh"
        path.write_text(script)
        path.chmod(0o755)
        output = str(self.folder / "jobs" / "%j.log")
        return self.run("sbatch", "--parsable", "-o", output, *options, str(path), user=self.job_user)

    @property
    def job_user(self) -> str:
        return "nobody" if ROOT else ""

    def log(self, job: str) -> str:
        path = self.folder / "jobs" / f"{job}.log"
        return path.read_text() if path.exists() else ""

    def state(self, job: str) -> tuple[str, str]:
        """(state, nodes) of a job, as squeue writes them."""
        state, _, nodes = self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T %N").partition(" ")
        return state, nodes

    def node(self, name: str) -> tuple[str, str]:
        """(state, reason) of a node, as sinfo writes them."""
        state, _, reason = self.run("sinfo", "-h", "-N", "-n", name, "-o", "%T %E").partition(" ")
        return state, reason

    def start(self, name: str, *command: str, user: str = "") -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command,
                env=self.environment,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **_as(user),
            )

    def start_node(self, name: str) -> None:
        self.start(name, "slurmd", "-D", "-N", name)

    def start_controller(self) -> None:
        self.start("slurmctld", "slurmctld", "-D", user="slurm")

    def is_idle(self) -> bool:
        """Whether all nodes are. A daemon whose port somebody took for a moment has ended, and is started again."""
        for name in self.nodes:
            if self.daemons[name].poll() is not None:
                self.start_node(name)
        if self.daemons["slurmctld"].poll() is not None:
            self.start_controller()
        idle = self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", check=False)  # a line for each partition
        return set(idle.split()) == set(self.nodes)

    def start_rest(self) -> None:
        """It refuses to run as root or as Slurm's own user."""
        version = ("-s", "openapi/v0.0.38") if " 22." in self.run("slurmrestd", "-V") else ("-s", "openapi/slurmctld")
        given = ("env", "SLURM_JWT=daemon", "slurmrestd", *version, "-a", "rest_auth/jwt", f"127.0.0.1:{self.rest}")
        self.start("slurmrestd", *given, user=self.job_user)

    def token(self, seconds: int = 600) -> str:
        return self.run("scontrol", "token", f"lifespan={seconds}").removeprefix("SLURM_JWT=")

    def end(self, name: str, *, kill: bool = False) -> None:
        """End one daemon by its process id. kill: without a chance to say goodbye."""
        process = self.daemons.pop(name)
        process.kill() if kill else process.terminate()
        try:
            process.wait(timeout=180)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=180)


@contextmanager
def running(
    name: str, count: int, silent: int = 10, *, rest: bool = False, cpus: int = 2, settings: Sequence[str] = ()
) -> Iterator[Cluster]:
    """A cluster of ``count`` nodes that are idle; ended and removed at the end. silent: seconds after which a node that
    does not answer is taken for dead. rest: with slurmrestd. cpus: of a node. settings: more lines of slurm.conf."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        names = tuple(f"gpu-{number:02}" for number in range(1, count + 1))
        cluster = Cluster(folder, name, names, free_ports(1)[0] if rest else 0, cpus)
        _prepare(cluster, silent, settings)
        stack.callback(_stop, cluster)
        munge = folder / "munge"
        places = (f"--key-file={munge}/key", f"--socket={munge}/socket", f"--pid-file={munge}/pid")
        own = (f"--log-file={munge}/log", f"--seed-file={munge}/seed")
        cluster.start("munged", "munged", "--foreground", *places, *own, "--num-threads=2", user="munge")
        until((munge / "socket").exists, "munged listens")
        cluster.start_controller()
        for node in cluster.nodes:
            cluster.start_node(node)
        until(cluster.is_idle, "all nodes are idle")
        if rest:
            cluster.start_rest()
        yield cluster


def until(holds: Callable[[], object], what: str, seconds: float = 180) -> float:
    """Seconds until ``holds`` was true; fails when it was not in time."""
    begun, pause = time.monotonic(), 0.1
    while time.monotonic() < begun + seconds:
        if holds():
            return time.monotonic() - begun
        time.sleep(pause)
        pause = min(pause * 1.2, 0.5)  # each look starts a program of Slurm
    raise AssertionError(f"not within {seconds} s: {what}")


def _prepare(cluster: Cluster, silent: int, settings: Sequence[str]) -> None:
    folder = cluster.folder
    folder.chmod(0o755)
    for part in ("state", "log", "spool", "munge", "jobs"):
        (folder / part).mkdir()
    (folder / "jobs").chmod(0o1777)
    (folder / "munge" / "key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge" / "key").chmod(0o600)
    for node in cluster.nodes:
        (folder / "spool" / node).mkdir()
    (folder / "state" / "jwt.key").write_bytes(secrets.token_bytes(32))
    (folder / "state" / "jwt.key").chmod(0o600)
    (folder / "slurm.conf").write_text(_configuration(cluster, silent) + "\n".join([*settings, ""]))
    if ROOT:
        for path in (folder / "munge", folder / "munge" / "key"):
            shutil.chown(path, "munge", "munge")
        for part in ("state", "log"):
            shutil.chown(folder / part, "slurm", "slurm")
        shutil.chown(folder / "state" / "jwt.key", "slurm", "slurm")


def _configuration(cluster: Cluster, silent: int) -> str:
    """Short intervals everywhere: a test waits for them."""
    folder, own = cluster.folder, pwd.getpwuid(os.getuid()).pw_name
    ports = free_ports(len(cluster.nodes) + 1)
    size = f"CPUs={cluster.cpus} RealMemory=1000 State=UNKNOWN"
    nodes = [
        f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} {size}"
        for node, port in zip(cluster.nodes, ports[1:], strict=True)
    ]
    return "\n".join(
        (
            f"ClusterName={cluster.name}",
            "SlurmctldHost=localhost(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            f"SlurmUser={'slurm' if ROOT else own}",
            f"SlurmdUser={own}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={folder}/munge/socket,cred_expire={CREDENTIAL_SECONDS}",
            *(("AuthAltTypes=auth/jwt", f"AuthAltParameters=jwt_key={folder}/state/jwt.key") if cluster.rest else ()),
            f"StateSaveLocation={folder}/state",
            f"SlurmctldPidFile={folder}/log/slurmctld.pid",
            f"SlurmdPidFile={folder}/log/slurmd.%n.pid",
            f"SlurmdSpoolDir={folder}/spool/%n",
            "SwitchType=switch/none",
            "MpiDefault=none",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SchedulerParameters=sched_interval=1,bf_interval=1",
            "JobRequeue=1",
            "ReturnToService=2",
            "SlurmctldTimeout=30",
            f"SlurmdTimeout={silent}",
            "MinJobAge=3600",
            "KillWait=2",
            "SlurmdParameters=config_overrides",
            "MailProg=/bin/true",
            *nodes,
            f"PartitionName=train Nodes={','.join(cluster.nodes)} Default=YES MaxTime=INFINITE State=UP",
            "",
        )
    )


def _stop(cluster: Cluster) -> None:
    """Jobs first, munged last: the daemons need it to say goodbye."""
    if "slurmctld" in cluster.daemons:
        for number in cluster.run("squeue", "-h", "-o", "%A", check=False).split():
            cluster.run("scancel", "--signal=KILL", "--full", number, check=False)
            cluster.run("scancel", number, check=False)
        time.sleep(0.5)
    for name in sorted(cluster.daemons, key=lambda name: (name == "munged", name == "slurmctld")):
        cluster.end(name)


def _as(user: str) -> dict[str, Any]:
    """Arguments of subprocess that run a command as another user."""
    if not user or not ROOT:
        return {}
    found = pwd.getpwnam(user)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": [found.pw_gid]}


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
