"""``diagnoser agent``: the part that runs on the cluster's side."""

import asyncio
import getpass
import logging
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from diagnoser.model.errors import BadInput

agent_cli = typer.Typer(
    no_args_is_help=True, help="Run beside a scheduler: report jobs, ship their logs, carry out plans."
)

STATE = Path("/var/lib/diagnoser-agent")
CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,99}")

_Server = Annotated[str, typer.Option(help="Address of the service, such as http://diagnoser:8321.")]
_ClusterName = Annotated[str, typer.Option(help="Name of the cluster; part of every job id.")]
_Token = Annotated[
    str,
    typer.Option(envvar="DIAGNOSER_AGENT_TOKEN", help="Token of the service with the scope agent.", show_default=False),
]
_Poll = Annotated[
    float, typer.Option(help="Longest interval between two polls of the scheduler, in seconds.", min=0.2, max=300)
]
_Logs = Annotated[bool, typer.Option(help="Ship the logs of jobs.")]
_State = Annotated[Path, typer.Option(help="Folder for state that must survive a restart.")]
_DryRun = Annotated[bool, typer.Option(help="Change nothing on the cluster; log what would be done.")]
_JsonLog = Annotated[bool, typer.Option(help="Write the agent's own log as JSON.")]
_Listen = Annotated[
    str,
    typer.Option(help="host:port on which to receive the service's signed webhook, instead of long polling for plans."),
]
_Secret = Annotated[
    str,
    typer.Option(envvar="DIAGNOSER_AGENT_WEBHOOK_SECRET", help="Signing secret of that webhook.", show_default=False),
]
_Context = Annotated[
    str, typer.Option(help="Context of the kubeconfig. In a pod, the service account is used instead.")
]
_Queries = Annotated[
    Path | None,
    typer.Option(
        help="Table of the commands that may be run on a suspected node to ask it. Default: the shipped "
        "node_queries.yaml."
    ),
]
_Script = Annotated[
    str,
    typer.Option(
        help="The site's own check of a node, as the node calls it: one more query. Exit codes 1 to 125 prove a fault."
    ),
]
_Dumps = Annotated[
    list[str] | None,
    typer.Option(
        help="Dump files of a job that this agent can read, such as '/shared/dumps/{job}/_dump_*'. Only plain files "
        "of the job's user are read, and no link is followed below the first name with a field or wildcard. "
        "Repeatable."
    ),
]
_NodeDumps = Annotated[
    list[str] | None,
    typer.Option(help="The same for files on the nodes, where --collect-evidence reads them. Repeatable."),
]
_Collect = Annotated[
    bool,
    typer.Option(
        "--collect-evidence",
        help="When a run falls silent, run ncclras and py-spy beside it, as the job's user and without stopping any "
        "process.",
    ),
]
_Nodes = Annotated[list[str], typer.Argument(help="Nodes to put back into service.")]


@agent_cli.command(name="slurm")
def slurm(
    server: _Server,
    cluster: _ClusterName,
    token: _Token = "",
    poll: _Poll = 2.0,
    logs: _Logs = True,
    check: Annotated[str, typer.Option(help="Command of the node check, as the nodes run it. Empty: no check.")] = "",
    node_queries: _Queries = None,
    node_check_script: _Script = "",
    dumps: _Dumps = None,
    node_dumps: _NodeDumps = None,
    collect_evidence: _Collect = False,
    state: _State = STATE,
    dry_run: _DryRun = False,
    json_log: _JsonLog = False,
    listen: _Listen = "",
    secret: _Secret = "",
    rest: Annotated[
        str, typer.Option(help="Address of slurmrestd, such as http://slurm:6820, to read jobs and nodes from.")
    ] = "",
    rest_token_file: Annotated[
        Path | None, typer.Option(help="File with the JWT for slurmrestd. Default: SLURM_JWT.")
    ] = None,
) -> None:
    """Report the jobs of a Slurm cluster and carry out plans. Run as root or SlurmUser where Slurm's commands are."""
    from diagnoser.agent import evidence
    from diagnoser.agent.node_query import load_table
    from diagnoser.agent.runtime import AgentOptions
    from diagnoser.agent.slurm import rest as slurmrestd
    from diagnoser.agent.slurm.agent import run
    from diagnoser.agent.slurm.evidence import FIELDS

    _begin(cluster, state, json_log)
    user = getpass.getuser()
    jwt = slurmrestd.credentials(user, rest_token_file, os.environ.get("SLURM_JWT", "")) if rest else None
    collected = evidence.options(dumps or (), node_dumps or (), FIELDS, programs=collect_evidence)
    asked = (load_table(node_queries), node_check_script)
    options = AgentOptions(server, cluster, token, poll, logs, state, dry_run, listen, secret, *asked, collected)
    asyncio.run(run(options, tuple(shlex.split(check)), user, rest, jwt))


@agent_cli.command(name="kubernetes")
def kubernetes(
    server: _Server,
    cluster: _ClusterName,
    token: _Token = "",
    namespace: Annotated[list[str] | None, typer.Option(help="Namespace to watch. Repeatable. Default: all.")] = None,
    context: _Context = "",
    poll: _Poll = 2.0,
    logs: _Logs = True,
    check: Annotated[
        Path | None, typer.Option(help="File with the node check program (deploy/checks/allgather.py).")
    ] = None,
    check_image: Annotated[
        str,
        typer.Option(
            help="Image of the pods of that check, one that you trust: python3 and torch. Empty: the workload's own "
            "image; a node that fails in it waits for a person."
        ),
    ] = "",
    check_namespace: Annotated[
        str,
        typer.Option(
            help="Namespace of the pods with --check-image and --node-query-image, where tenants have no rights."
        ),
    ] = "diagnoser-check",
    node_query_image: Annotated[
        str,
        typer.Option(
            help="Image of the pods that ask a suspected node, one that you trust: python3, and nvidia-smi as your "
            "container runtime adds it. Empty: nodes are not asked."
        ),
    ] = "",
    node_queries: _Queries = None,
    node_check_script: _Script = "",
    dumps: _Dumps = None,
    node_dumps: _NodeDumps = None,
    collect_evidence: _Collect = False,
    state: _State = STATE,
    dry_run: _DryRun = False,
    json_log: _JsonLog = False,
    listen: _Listen = "",
    secret: _Secret = "",
) -> None:
    """Report the workloads of a Kubernetes cluster and carry out plans.

    Watches JobSets, PyTorchJobs, RayJobs and Jobs that request GPUs. The label diagnoser.io/watch adds ("true") or
    excludes ("false") a workload. Manifests with the least privileges needed are in deploy/kubernetes.
    """
    with kubernetes_client():
        from diagnoser.agent.kubernetes.agent import run
        from diagnoser.agent.kubernetes.evidence import FIELDS
    from diagnoser.agent import evidence
    from diagnoser.agent.node_query import load_table
    from diagnoser.agent.runtime import AgentOptions

    _begin(cluster, state, json_log)
    try:
        program = check.read_text() if check else ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--check {check}: cannot be read: {error}") from None
    if check_image and not program:
        raise BadInput("--check-image is the image of the node check: name its program with --check")
    collected = evidence.options(dumps or (), node_dumps or (), FIELDS, programs=collect_evidence)
    asked = (load_table(node_queries), node_check_script)
    options = AgentOptions(server, cluster, token, poll, logs, state, dry_run, listen, secret, *asked, collected)
    asyncio.run(run(options, tuple(namespace or ()), context, program, node_query_image, check_image, check_namespace))


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


def _begin(cluster: str, state: Path, json_log: bool) -> None:
    from diagnoser.observability.logging import set_up

    if not CLUSTER.fullmatch(cluster):
        raise BadInput(f"{cluster[:60]!r} cannot be the name of a cluster: letters, digits, dots and underscores")
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)  # batch scripts of users pass through it
    except OSError as error:
        raise BadInput(f"cannot make {state}: {error.strerror}; name another folder with --state") from None
    set_up(as_json=json_log, level="info")
    logging.getLogger("httpx").setLevel(logging.WARNING)


@contextmanager
def kubernetes_client() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise BadInput(f"{error.name} is missing: install diagnoser[kubernetes]") from None
