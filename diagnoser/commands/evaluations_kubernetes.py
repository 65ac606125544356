"""`evaluations run --kubernetes`: its options, and what carries batches out as they say."""

import os
import re
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diagnoser.adapters import files
from diagnoser.agent.kubernetes.command import kubernetes_client
from diagnoser.evaluations.weights import CopyLimits
from diagnoser.model.errors import BadInput
from diagnoser.model.evaluations import EvaluationRun, Node
from diagnoser.model.record_json import fields_of
from diagnoser.observability.logging import set_up
from diagnoser.ports import NodeExecutor

if TYPE_CHECKING:
    from diagnoser.agent.kubernetes.batch_jobs import JobSettings

_option = partial(typer.Option, rich_help_panel="Kubernetes")
_MEMORY = "/mnt/node-memory"
"""Where pods have the memory for copies of weights."""

Context = Annotated[str, _option(help="Context of the kubeconfig. In a pod, the service account is used instead.")]


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """As they are given.

    weights: folder of the nodes' shared memory, "" for no copies, None for memory of the pods.
    copy_rate: bytes a second.
    """

    namespace: Annotated[str, _option(help="Where Jobs are made.")] = "default"
    context: Context = ""
    image: Annotated[
        str, _option(help="Image of the pods: the suite's programs, sh, and python3 (3.11) with this package.")
    ] = ""
    queue: Annotated[str, _option(help="LocalQueue of Kueue that admits the Jobs.")] = ""
    claims: Annotated[
        list[str],
        _option(
            "--claim",
            metavar="NAME=PATH",
            help="Claim of a shared volume, and the path where pods have it, as the coordinator does. Repeatable.",
        ),
    ] = field(default_factory=list)
    host_paths: Annotated[
        list[str], _option("--host-path", help="Path that all nodes and the coordinator share. Repeatable.")
    ] = field(default_factory=list)
    gpu: Annotated[str, _option("--gpu-resource", help='By which pods ask for GPUs; "" where nodes have none.')] = (
        "nvidia.com/gpu"
    )
    selector: Annotated[
        str, _option("--node-selector", help="Labels of nodes that may be used, such as pool=eval; without --node.")
    ] = ""
    template: Annotated[
        Path | None,
        _option(
            "--pod-template",
            help="PodTemplateSpec (YAML) with what else the pods need; its container is named trial. What diagnoser "
            "sets goes before it.",
        ),
    ] = None
    cpu: Annotated[str, _option("--score-cpu", help="CPUs that scoring asks for.")] = "1"
    memory: Annotated[str, _option("--score-memory", help="Memory that scoring asks for.")] = "2Gi"
    run_as: Annotated[str, _option(metavar="UID:GID", help="User and group of the pods, not root. Default: yours.")] = (
        ""
    )
    weights: str | None = ""
    copy_rate: float = 0.0


@asynccontextmanager
async def kubernetes_executor(
    options: KubernetesOptions, run: EvaluationRun, nodes: Sequence[Node]
) -> AsyncIterator[NodeExecutor]:
    """What the API server, or a pod, would refuse is refused before anything is started. Raises BadInput, Denied,
    Unavailable."""
    with kubernetes_client():
        from diagnoser.agent.kubernetes import kube
        from diagnoser.agent.kubernetes.evaluation_batches import KubernetesBatches
    settings = _settings(options)
    _check_places(settings.volumes, run)
    folder = f"{_MEMORY}/diagnoser-weights-{settings.user}"
    if options.weights == "":
        folder = ""
    copies = CopyLimits(folder, rate=options.copy_rate)
    set_up(as_json=False, level="warning")  # what the client has to say does not belong to the result
    async with kube.connect(options.context) as api:
        found = KubernetesBatches(api, options.namespace, settings, copies, time.time, nodes, options.selector)
        await found.check(run.suite.gpus)
        yield found


@asynccontextmanager
async def kubernetes_canceller(namespace: str, context: str) -> AsyncIterator[NodeExecutor]:
    """For a run that is to end: it starts nothing."""
    with kubernetes_client():
        from diagnoser.agent.kubernetes import kube
        from diagnoser.agent.kubernetes.batch_jobs import JobSettings
        from diagnoser.agent.kubernetes.evaluation_batches import KubernetesBatches
    set_up(as_json=False, level="warning")
    async with kube.connect(context) as api:
        yield KubernetesBatches(api, namespace, JobSettings(), CopyLimits(), time.time)


def _settings(options: KubernetesOptions) -> "JobSettings":
    """Raises BadInput."""
    from diagnoser.agent.kubernetes import names
    from diagnoser.agent.kubernetes.batch_jobs import JobSettings, read_template

    names.valid(options.namespace, "namespace")
    if not options.image:
        raise BadInput("--kubernetes needs the --image that pods run")
    user, group = _user(options.run_as or f"{os.getuid()}:{os.getgid()}")
    volumes = _volumes(options)
    template: dict[str, Any] = {}
    if options.template:
        template = read_template(str(options.template), files.text(options.template))
    return JobSettings(
        user=user,
        group=group,
        volumes=volumes,
        memory_folder=options.weights or "",
        template=template,
        **fields_of(options, ("image", "gpu", "queue", "cpu", "memory")),
    )


def _volumes(options: KubernetesOptions) -> dict[str, str]:
    """Path -> name of its claim, "" for a path of the host. Raises BadInput."""
    from diagnoser.agent.kubernetes import names

    volumes = dict.fromkeys(options.host_paths, "")
    for text in options.claims:
        claim, _, path = text.partition("=")
        volumes[path] = names.valid(claim, "claim")
    paths = [*volumes]
    if options.weights:
        paths.append(options.weights)
    for path in paths:
        if not path.startswith("/"):
            raise BadInput(f"{path!r} is no absolute path")
    if not volumes:
        raise BadInput("name the shared file system: --claim or --host-path")
    return volumes


def _user(text: str) -> tuple[int, int]:
    ids = re.fullmatch(r"(\d+):(\d+)", text)
    if ids is None:
        raise BadInput(f"--run-as {text[:60]}: must be UID:GID")
    user, group = map(int, ids.groups())
    if user == 0:
        raise BadInput("pods do not run as root: name who owns the folder with --run-as UID:GID")
    return user, group


def _check_places(volumes: Iterable[str], run: EvaluationRun) -> None:
    """Check that what pods read and write is on a file system that they have."""
    places = [Path(run.folder), Path(run.directory)]
    places += filter(Path.exists, map(Path(run.directory).joinpath, run.suite.all_checkpoints))
    for place in places:
        if not any(map(PurePosixPath(place).is_relative_to, volumes)):
            raise BadInput(f"pods would not have {place}: it is below no --claim or --host-path")
