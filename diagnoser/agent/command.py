"""``diagnoser agent``: the part that runs on the cluster's side."""

import asyncio
import getpass
import logging
import os
import re
import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from diagnoser.model.errors import BadInput

agent_cli = typer.Typer(no_args_is_help=True, help="Run beside the scheduler: find jobs, carry out plans.")

STATE = Path("/var/lib/diagnoser-agent")
CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,99}")

Cluster = Annotated[str, typer.Option(help="Name of the cluster, as plans and jobs carry it.")]


Listen = Annotated[
    str, typer.Option(help="host:port for the service's signed webhook, instead of a long poll for plans.")
]
Secret = Annotated[
    str, typer.Option(envvar="DIAGNOSER_AGENT_WEBHOOK_SECRET", help="Of that webhook.", show_default=False)
]


@agent_cli.command(name="slurm")
def slurm(
    server: Annotated[str, typer.Option(help="The service, such as http://diagnoser:8321.")],
    cluster: Cluster,
    token: Annotated[
        str,
        typer.Option(
            envvar="DIAGNOSER_AGENT_TOKEN", help="Token of the service with the scope execute.", show_default=False
        ),
    ] = "",
    poll: Annotated[float, typer.Option(help="Seconds between two looks at the scheduler.", min=0.2, max=300)] = 2.0,
    logs: Annotated[bool, typer.Option(help="Ship the standard output of batch jobs.")] = True,
    check: Annotated[str, typer.Option(help="Program of the node check, as the nodes call it; empty: none.")] = "",
    state: Annotated[Path, typer.Option(help="Folder for what must survive a restart.")] = STATE,
    dry_run: Annotated[bool, typer.Option(help="Change nothing on the cluster; say what would be done.")] = False,
    json_log: Annotated[bool, typer.Option(help="Write the agent's own log as JSON.")] = False,
    listen: Listen = "",
    secret: Secret = "",
    rest: Annotated[str, typer.Option(help="slurmrestd, such as http://slurm:6820, to read jobs and nodes.")] = "",
    rest_token_file: Annotated[Path | None, typer.Option(help="File with its JWT. Default: SLURM_JWT.")] = None,
) -> None:
    """Watch a Slurm cluster and carry out its plans. Runs as root or SlurmUser on a host with Slurm's commands."""
    from diagnoser.agent import knock, loops, service
    from diagnoser.agent.slurm import memory
    from diagnoser.agent.slurm import rest as slurmrestd
    from diagnoser.agent.slurm.check import Check
    from diagnoser.agent.slurm.commands import Slurm, run
    from diagnoser.agent.slurm.executor import Executor
    from diagnoser.agent.slurm.observer import Observer

    _begin(cluster, state, json_log)

    user = getpass.getuser()

    async def main() -> None:
        async with AsyncExitStack() as stack:
            api = service.Service(await stack.enter_async_context(service.connect(server, token)))
            scheduler = Slurm(run)
            if rest:
                jwt = slurmrestd.credentials(user, rest_token_file, os.environ.get("SLURM_JWT", ""))
                daemon = await stack.enter_async_context(service.connect(rest, ""))
                scheduler = slurmrestd.slurm(await slurmrestd.connect(daemon, jwt))
            program = Check(run, tuple(shlex.split(check))) if check else None
            path = state / f"{cluster}.json"
            observer = Observer(api, scheduler, cluster, path, time.time, memory.load(path, time.time()), logs)
            executor = Executor(api, scheduler, program, cluster, user, state, time.monotonic, time.time, dry_run)
            bell = asyncio.Event() if listen else None
            duties = [loops.again(observer.look, poll), *([knock.listen(listen, secret, bell)] if bell else [])]
            await loops.run(executor, f"slurm@{socket.gethostname()}", *duties, knock=bell)

    asyncio.run(main())


@agent_cli.command(name="kubernetes")
def kubernetes(
    server: Annotated[str, typer.Option(help="The service, such as http://diagnoser:8321.")],
    cluster: Cluster,
    token: Annotated[
        str,
        typer.Option(
            envvar="DIAGNOSER_AGENT_TOKEN", help="Token of the service with the scope execute.", show_default=False
        ),
    ] = "",
    namespace: Annotated[
        list[str] | None, typer.Option(help="Namespace to look at; repeat it for more. Default: all.")
    ] = None,
    context: Annotated[
        str, typer.Option(help="Context of the kubeconfig. Inside a pod the service account is used.")
    ] = "",
    poll: Annotated[float, typer.Option(help="Longest time between two looks, in seconds.", min=0.2, max=300)] = 2.0,
    logs: Annotated[bool, typer.Option(help="Ship the logs of the workloads' pods.")] = True,
    check: Annotated[
        Path | None, typer.Option(help="File with the program of the node check (deploy/checks/allgather.py).")
    ] = None,
    state: Annotated[Path, typer.Option(help="Folder for what must survive a restart.")] = STATE,
    dry_run: Annotated[bool, typer.Option(help="Change nothing on the cluster; say what would be done.")] = False,
    json_log: Annotated[bool, typer.Option(help="Write the agent's own log as JSON.")] = False,
    listen: Listen = "",
    secret: Secret = "",
) -> None:
    """Watch a Kubernetes cluster and carry out its plans.

    Looked after are JobSets, PyTorchJobs, RayJobs, Jobs that ask for GPUs, and what has the label diagnoser.io/watch:
    "true"; never what says "false". deploy/kubernetes has the manifests, with the least rights that it needs.
    """
    with _kubernetes_client():
        from diagnoser.agent.kubernetes.run import Options, run
    _begin(cluster, state, json_log)
    spaces = tuple(namespace or ())
    options = Options(server, cluster, token, spaces, context, poll, logs, check, state, dry_run, listen, secret)
    asyncio.run(run(options))


@agent_cli.command(name="kubernetes-uncordon")
def kubernetes_uncordon(
    nodes: Annotated[list[str], typer.Argument(help="Nodes to give back to the cluster.")],
    context: Annotated[str, typer.Option(help="Context of the kubeconfig.")] = "",
) -> None:
    """Uncordon nodes that were cordoned by a plan; a node that somebody else cordoned is left alone."""
    with _kubernetes_client():
        from diagnoser.agent.kubernetes import kube
        from diagnoser.agent.kubernetes.uncordon import uncordon

    async def main() -> list[str]:
        async with kube.connect(context) as api:
            return await uncordon(api, nodes)

    for line in asyncio.run(main()):
        typer.echo(line)


@agent_cli.command(name="slurm-resume")
def slurm_resume(nodes: Annotated[list[str], typer.Argument(help="Nodes to give back to Slurm.")]) -> None:
    """Resume nodes that were drained by a plan; a node that somebody else drained is left alone."""
    from diagnoser.agent.slurm import commands, resume

    for line in asyncio.run(resume.resume(commands.Slurm(commands.run), nodes)):
        typer.echo(line)


def _begin(cluster: str, state: Path, json_log: bool) -> None:
    from diagnoser.observability.logging import set_up

    if not CLUSTER.fullmatch(cluster):
        raise BadInput(f"{cluster[:60]!r} cannot be the name of a cluster: letters, digits, dots and underscores")
    _prepare(state)
    set_up(as_json=json_log, level="info")
    logging.getLogger("httpx").setLevel(logging.WARNING)


@contextmanager
def _kubernetes_client() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise BadInput(f"{error.name} is missing: install diagnoser[kubernetes]") from None


def _prepare(folder: Path) -> None:
    """Batch scripts of users pass through it: nobody else may read them."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make {folder}: {error.strerror}; name another folder with --state") from None
