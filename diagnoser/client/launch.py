"""Which job, attempt, rank and node a process belongs to, as Slurm, Kubernetes, torchrun, MPI or a person say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Mapping, Sequence

JOB_LENGTH = 200
_NOT_IN_JOB = re.compile(r"[^A-Za-z0-9._:@+=-]+")

MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
_LAUNCHERS = "torchrun deepspeed accelerate horovodrun mpirun mpiexec srun ray colossalai composer tune ft_launcher"
LAUNCHERS = frozenset(_LAUNCHERS.split())
LAUNCHER_MODULES = frozenset(
    ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner")
)
POD_SUFFIXES = (
    re.compile(r"-[a-z0-9]+-\d+-\d+-[a-z0-9]{5}$"),  # JobSet: replicated job, its index, the pod's
    re.compile(r"-(?:master|worker|launcher|head)(?:-\d+)?(?:-[a-z0-9]{5})?$"),
    re.compile(r"-\d+-[a-z0-9]{5}$"),  # an indexed Job
    re.compile(r"-[a-z0-9]{5}$"),
)


@dataclass(frozen=True)
class Options:
    """What a person names on the command line, or in the environment under the same words; "" and None: not named."""

    job: str = ""
    attempt: int | None = None
    rank: int | None = None
    node: str = ""
    name: str = ""


@dataclass(frozen=True)
class Launch:
    """attempt: None when only the service knows. rank: -1 when not known, or of a launcher that starts many. node: ""
    when not known. is_new: nobody else can have this job id, so that it has one attempt. pod: in Kubernetes."""

    job: str
    attempt: int | None = None
    rank: int = -1
    node: str = ""
    name: str = ""
    is_new: bool = False
    pod: str = ""

    @property
    def leads(self) -> bool:
        """Whether it speaks for the job: there is no other rank to do it."""
        return self.rank <= 0


def launch_of(
    environment: Mapping[str, str], options: Options, host: str, stamp: str, command: Sequence[str] = ()
) -> Launch:
    """Say which launch this is, from the options, else from the scheduler's and the launcher's variables.

    host: of this machine.
    stamp: makes an id that no other launch has, where nothing gives the job a name.
    command: that is run; a launcher speaks for many ranks.
    """
    name = options.name or environment.get("SLURM_JOB_NAME", "")
    pod = ""
    if environment.get("KUBERNETES_SERVICE_HOST"):
        pod = environment.get("HOSTNAME", host)
    job = _job(environment, options, pod)
    is_new = not job
    if is_new:
        parts = (_program(command) or "run", host.partition(".")[0], stamp)
        job = _job_id("-".join(filter(None, parts)))
    rank = options.rank
    if rank is None:
        rank = _rank(environment, command)
    node = options.node or _node(environment, host, pod)
    attempt = options.attempt
    if attempt is None:
        attempt = _attempt(environment, options, is_new=is_new)
    return Launch(job, attempt, rank, node, name, is_new, pod)


def is_launcher(command: Sequence[str]) -> bool:
    """Whether the command starts the processes of several ranks."""
    if not LAUNCHER_MODULES.isdisjoint(command[:8]):
        return True
    words = [PurePath(word).name for word in command[:2]]
    if words and words[0].startswith("python"):
        del words[0]  # a launcher's script may be run by its interpreter
    return not LAUNCHERS.isdisjoint(words[:1])


def nodes_of_job(environment: Mapping[str, str]) -> int:
    """0 when not known."""
    return _number(environment.get("SLURM_JOB_NUM_NODES", environment.get("SLURM_NNODES", "")), 0)


def _named_job(environment: Mapping[str, str], options: Options) -> str:
    return options.job or environment.get("DIAGNOSER_JOB", "")


def _job(environment: Mapping[str, str], options: Options, pod: str) -> str:
    named = _named_job(environment, options)
    if named:
        return _job_id(named)
    if environment.get("SLURM_JOB_ID"):  # the agent's own name for it
        return _job_id(
            "slurm-{}-{}".format(environment.get("SLURM_CLUSTER_NAME", "cluster"), environment["SLURM_JOB_ID"])
        )
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    if run not in ("", "none"):
        return _job_id("torchrun-" + run)
    if pod:
        for suffix in POD_SUFFIXES:
            if suffix.search(pod):
                return _job_id("pods-" + suffix.sub("", pod))
    if environment.get("PMIX_NAMESPACE"):
        return _job_id("mpi-" + environment["PMIX_NAMESPACE"])
    return ""


def _attempt(environment: Mapping[str, str], options: Options, *, is_new: bool) -> int | None:
    """None when only the service knows, which counts the launches of a job that a person named."""
    if is_new:
        return 1
    if environment.get("DIAGNOSER_ATTEMPT", "").isdigit():
        return int(environment["DIAGNOSER_ATTEMPT"])
    if _named_job(environment, options):
        return None
    if not environment.get("SLURM_JOB_ID"):
        return None
    return _number(environment.get("SLURM_RESTART_COUNT", ""), 0) + 1


def _rank(environment: Mapping[str, str], command: Sequence[str]) -> int:
    if is_launcher(command):
        return -1
    for name in ("RANK", *MPI_RANKS):
        if environment.get(name, "").isdigit():
            return int(environment[name])
    if not environment.get("SLURM_STEP_ID", "").isdigit():
        return -1  # a batch script is no task, but has number 0
    return _number(environment.get("SLURM_PROCID", ""), -1)


def _node(environment: Mapping[str, str], host: str, pod: str) -> str:
    for name in ("SLURMD_NODENAME", "NODE_NAME", "K8S_NODE_NAME", "MY_NODE_NAME"):
        if environment.get(name):
            return environment[name]
    if pod:
        return ""  # the name of a pod is no node's
    return host


def _program(command: Sequence[str]) -> str:
    for word in command:
        if word.endswith((".py", ".sh")):
            return PurePath(word).stem
    return PurePath("".join(command[:1])).stem


def _job_id(text: str) -> str:
    """As the service allows them."""
    return _NOT_IN_JOB.sub("-", text).lstrip("._:@+=-")[:JOB_LENGTH] or "run"


def _number(text: str, otherwise: int) -> int:
    if not text.isdigit():
        return otherwise
    return int(text)
