"""``diagnoser agent kubernetes`` and ``kubernetes-uncordon``."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from diagnoser.agent.flags import from_flags
from diagnoser.agent.scheduler import AgentFlags, Nodes, check_option
from diagnoser.model.errors import BadInput

_Context = Annotated[
    str, typer.Option(help="Context of the kubeconfig. In a pod, the service account is used instead.")
]


@contextmanager
def kubernetes_client() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise BadInput(f"{error.name} is missing: install diagnoser[kubernetes]") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesFlags(AgentFlags):
    namespace: Annotated[list[str], typer.Option(help="Namespace to watch. Repeatable. Default: all.")] = field(
        default_factory=list
    )
    context: _Context = ""
    check: Annotated[
        Path | None, check_option(help="File with the node check program (deploy/checks/allgather.py).")
    ] = None
    check_image: Annotated[
        str,
        check_option(
            help="Image of the pods of that check, one that you trust: python3 and torch. Empty: the workload's own "
            "image; a node that fails in it waits for a person."
        ),
    ] = ""
    check_namespace: Annotated[
        str,
        check_option(
            help="Namespace of the pods with --check-image and --node-query-image, where tenants have no rights."
        ),
    ] = "diagnoser-check"
    node_query_image: Annotated[
        str,
        check_option(
            help="Image of the pods that ask a suspected node, one that you trust: python3, and nvidia-smi as your "
            "container runtime adds it. Empty: nodes are not asked."
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
    asyncio.run(run(flags, options, program))


def kubernetes_uncordon(nodes: Nodes, context: _Context = "") -> None:
    """Uncordon nodes that a plan cordoned. Nodes that somebody else cordoned are left alone."""
    with kubernetes_client():
        from diagnoser.agent.kubernetes.agent import uncordon

    typer.echo("\n".join(asyncio.run(uncordon(context, nodes))))


COMMANDS = {"kubernetes": kubernetes, "kubernetes-uncordon": kubernetes_uncordon}
