"""``diagnoser agent``: the part that runs on the cluster's side."""

import asyncio
import getpass
import logging
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diagnoser.agent.flags import from_flags
from diagnoser.model.errors import BadInput

if TYPE_CHECKING:
    from diagnoser.agent.runtime import AgentOptions

agent_cli = typer.Typer(
    no_args_is_help=True, help="Run beside a scheduler: report jobs, ship their logs, carry out plans."
)

STATE = Path("/var/lib/diagnoser-agent")
_CHECKS, _EVIDENCE, _WEBHOOK, _SLURMRESTD = "Checks of nodes", "Evidence of hangs", "Webhook", "slurmrestd"
"""Groups of flags in the help."""
CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,99}")

_Context = Annotated[
    str, typer.Option(help="Context of the kubeconfig. In a pod, the service account is used instead.")
]
_Nodes = Annotated[list[str], typer.Argument(help="Nodes to put back into service.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFlags:
    """Flags of the agents of all schedulers."""

    server: Annotated[str, typer.Option(help="Address of the service, such as http://diagnoser:8321.")]
    cluster: Annotated[str, typer.Option(help="Name of the cluster; part of every job id.")]
    token: Annotated[
        str,
        typer.Option(
            envvar="DIAGNOSER_AGENT_TOKEN", help="Token of the service with the scope agent.", show_default=False
        ),
    ] = ""
    poll: Annotated[
        float, typer.Option(help="Longest interval between two polls of the scheduler, in seconds.", min=0.2, max=300)
    ] = 2.0
    logs: Annotated[bool, typer.Option(help="Ship the logs of jobs.")] = True
    node_queries: Annotated[
        Path | None,
        typer.Option(
            help="Table of the commands that may be run on a suspected node to ask it. Default: the shipped "
            "node_queries.yaml.",
            rich_help_panel=_CHECKS,
        ),
    ] = None
    node_check_script: Annotated[
        str,
        typer.Option(
            help="The site's own check of a node, as the node calls it: one more query. Exit codes 1 to 125 prove a "
            "fault.",
            rich_help_panel=_CHECKS,
        ),
    ] = ""
    dumps: Annotated[
        list[str] | None,
        typer.Option(
            help="Dump files of a job that this agent can read, such as '/shared/dumps/{job}/_dump_*'. Only plain "
            "files of the job's user are read, and no link is followed below the first name with a field or "
            "wildcard. Repeatable.",
            rich_help_panel=_EVIDENCE,
        ),
    ] = None
    node_dumps: Annotated[
        list[str] | None,
        typer.Option(
            help="The same for files on the nodes, where --collect-evidence reads them. Repeatable.",
            rich_help_panel=_EVIDENCE,
        ),
    ] = None
    collect_evidence: Annotated[
        bool,
        typer.Option(
            "--collect-evidence",
            help="When a run falls silent, run ncclras and py-spy beside it, as the job's user and without stopping "
            "any process.",
            rich_help_panel=_EVIDENCE,
        ),
    ] = False
    state: Annotated[Path, typer.Option(help="Folder for state that must survive a restart.")] = STATE
    dry_run: Annotated[bool, typer.Option(help="Change nothing on the cluster; log what would be done.")] = False
    json_log: Annotated[bool, typer.Option(help="Write the agent's own log as JSON.")] = False
    listen: Annotated[
        str,
        typer.Option(
            help="host:port on which to receive the service's signed webhook, instead of long polling for plans.",
            rich_help_panel=_WEBHOOK,
        ),
    ] = ""
    secret: Annotated[
        str,
        typer.Option(
            envvar="DIAGNOSER_AGENT_WEBHOOK_SECRET",
            help="Signing secret of that webhook.",
            show_default=False,
            rich_help_panel=_WEBHOOK,
        ),
    ] = ""

    def begin(self, fields: Sequence[str]) -> "AgentOptions":
        """Set up the agent's log and its folder, and read the table of queries. Raises BadInput, RuleFaults.

        fields: those that patterns of dump files may have at this scheduler.
        """
        from diagnoser.agent import evidence
        from diagnoser.agent.node_query import load_table
        from diagnoser.agent.runtime import AgentOptions
        from diagnoser.observability.logging import set_up

        if not CLUSTER.fullmatch(self.cluster):
            named = f"{self.cluster[:60]!r} cannot be the name of a cluster"
            raise BadInput(f"{named}: letters, digits, dots and underscores")
        try:
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)  # batch scripts of users pass through it
        except OSError as error:
            raise BadInput(f"cannot make {self.state}: {error.strerror}; name another folder with --state") from None
        set_up(as_json=self.json_log, level="info")
        logging.getLogger("httpx").setLevel(logging.WARNING)
        return AgentOptions(
            self.server,
            self.cluster,
            self.token,
            self.poll,
            self.logs,
            self.state,
            self.dry_run,
            self.listen,
            self.secret,
            load_table(self.node_queries),
            self.node_check_script,
            evidence.options(self.dumps or (), self.node_dumps or (), fields, programs=self.collect_evidence),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmFlags(AgentFlags):
    check: Annotated[
        str,
        typer.Option(help="Command of the node check, as the nodes run it. Empty: no check.", rich_help_panel=_CHECKS),
    ] = ""
    rest: Annotated[
        str,
        typer.Option(
            help="Address of slurmrestd, such as http://slurm:6820, to read jobs and nodes from.",
            rich_help_panel=_SLURMRESTD,
        ),
    ] = ""
    rest_token_file: Annotated[
        Path | None,
        typer.Option(help="File with the JWT for slurmrestd. Default: SLURM_JWT.", rich_help_panel=_SLURMRESTD),
    ] = None


@agent_cli.command(name="slurm")
@from_flags(SlurmFlags)
def slurm(flags: SlurmFlags) -> None:
    """Report the jobs of a Slurm cluster and carry out plans. Run as root or SlurmUser where Slurm's commands are."""
    from diagnoser.agent.slurm import rest as slurmrestd
    from diagnoser.agent.slurm.agent import run
    from diagnoser.agent.slurm.evidence import FIELDS

    options, user, jwt = flags.begin(FIELDS), getpass.getuser(), None
    if flags.rest:
        jwt = slurmrestd.credentials(user, flags.rest_token_file, os.environ.get("SLURM_JWT", ""))
    asyncio.run(run(options, tuple(shlex.split(flags.check)), user, flags.rest, jwt))


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesFlags(AgentFlags):
    namespace: Annotated[list[str] | None, typer.Option(help="Namespace to watch. Repeatable. Default: all.")] = None
    context: _Context = ""
    check: Annotated[
        Path | None,
        typer.Option(help="File with the node check program (deploy/checks/allgather.py).", rich_help_panel=_CHECKS),
    ] = None
    check_image: Annotated[
        str,
        typer.Option(
            help="Image of the pods of that check, one that you trust: python3 and torch. Empty: the workload's own "
            "image; a node that fails in it waits for a person.",
            rich_help_panel=_CHECKS,
        ),
    ] = ""
    check_namespace: Annotated[
        str,
        typer.Option(
            help="Namespace of the pods with --check-image and --node-query-image, where tenants have no rights.",
            rich_help_panel=_CHECKS,
        ),
    ] = "diagnoser-check"
    node_query_image: Annotated[
        str,
        typer.Option(
            help="Image of the pods that ask a suspected node, one that you trust: python3, and nvidia-smi as your "
            "container runtime adds it. Empty: nodes are not asked.",
            rich_help_panel=_CHECKS,
        ),
    ] = ""

    def program(self) -> str:
        """The source of the node check, "" for none. Raises BadInput."""
        if self.check is None:
            if self.check_image:
                raise BadInput("--check-image is the image of the node check: name its program with --check")
            return ""
        try:
            return self.check.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"--check {self.check}: cannot be read: {error}") from None


@agent_cli.command(name="kubernetes")
@from_flags(KubernetesFlags)
def kubernetes(flags: KubernetesFlags) -> None:
    """Report the workloads of a Kubernetes cluster and carry out plans.

    Watches JobSets, PyTorchJobs, RayJobs and Jobs that request GPUs. The label diagnoser.io/watch adds ("true") or
    excludes ("false") a workload. Manifests with the least privileges needed are in deploy/kubernetes.
    """
    with kubernetes_client():
        from diagnoser.agent.kubernetes.agent import run
        from diagnoser.agent.kubernetes.evidence import FIELDS

    options, program = flags.begin(FIELDS), flags.program()
    images = (flags.node_query_image, flags.check_image, flags.check_namespace)
    asyncio.run(run(options, tuple(flags.namespace or ()), flags.context, program, *images))


@agent_cli.command(name="kubernetes-uncordon")
def kubernetes_uncordon(nodes: _Nodes, context: _Context = "") -> None:
    """Uncordon nodes that a plan cordoned. Nodes that somebody else cordoned are left alone."""
    with kubernetes_client():
        from diagnoser.agent.kubernetes.agent import uncordon

    typer.echo("\n".join(asyncio.run(uncordon(context, nodes))))


@agent_cli.command(name="slurm-resume")
def slurm_resume(nodes: _Nodes) -> None:
    """Resume nodes that a plan drained. Nodes that somebody else drained are left alone."""
    from diagnoser.agent.slurm.agent import resume

    typer.echo("\n".join(asyncio.run(resume(nodes))))


@contextmanager
def kubernetes_client() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise BadInput(f"{error.name} is missing: install diagnoser[kubernetes]") from None
