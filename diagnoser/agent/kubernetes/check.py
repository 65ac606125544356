"""Runs the groups of a node check, one pod on each node of a group, and asks nodes by pods.

What runs in an image of the workload is the job's word. So nodes are asked by pods with an image that the operator
names, and groups are tested in one where it is named: such pods have the workload's devices and way to the network, and
nothing else of it; and they run in a namespace of their own, where tenants have no rights.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from diagnoser.agent import node_check, node_query
from diagnoser.agent.cluster import Command, CommandAttempt, NodeQuestion
from diagnoser.agent.kubernetes import fields, names, parsing, ranks
from diagnoser.agent.kubernetes.kinds import Object, WorkloadRef, templates
from diagnoser.agent.kubernetes.kube import Kube
from diagnoser.agent.kubernetes.reconcile import COPY_KEY, copy_name, request
from diagnoser.agent.plan_spec import PlanSpec
from diagnoser.model.errors import OutOfScope, Unavailable

START_SECONDS = 120.0
"""How long a pod may wait for its node and its image. Both were in use a moment ago."""
LOOK_SECONDS = 0.5
PORT = 29_600
LOG_BYTES = 4_000
ANSWER_BYTES = 8_000_000
NAMESPACE = "diagnoser-check"
"""Of the pods with an image of the operator's: whoever may run commands in them, or delete them, has their word."""
SHARED = ("hostNetwork", "dnsPolicy", "runtimeClassName")
"""What a pod of the check has from a pod of the workload, beside its devices and rights: its way to the network."""
OWN_POD, OWN_CONTAINER = ("hostIPC", "imagePullSecrets"), ("image", "imagePullPolicy", "resources", "securityContext")
"""What it has as well where it runs in the workload's image."""
RIGHTS = ("privileged", "capabilities")
"""Else these alone of the rights: RDMA needs to lock memory."""
ASKED = ("restartPolicy", "automountServiceAccountToken", "enableServiceLinks", "tolerations", "runtimeClassName")
"""What a pod that asks its node has in common with one of the check."""
CORDONED = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- inside the pod
_VARIABLES = re.compile(r"(NCCL|GLOO|UCX|FI|OMPI|TORCH|CUDA|LD_LIBRARY_PATH)")
_ENDED = frozenset({"Succeeded", "Failed"})
_STARTED = _ENDED | {"Running"}


@dataclass(frozen=True, slots=True)
class PodCheck:
    """Tests groups of nodes, or asks nodes, by pods.

    program: source of the check, which the pods run as it is. clock: seconds that only grow. stored: the copy of the
    workload. round: as the service gives it, empty to ask nodes. image: that the operator names, "" for the workload's
    own. namespace: where its pods run.
    """

    kube: Kube
    program: str
    clock: Callable[[], float]
    spec: PlanSpec
    ref: WorkloadRef
    stored: Mapping[str, Any]
    round: Mapping[str, Any]
    image: str
    namespace: str

    def path(self, name: str = "") -> str:
        """Address of the pods, or of one."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{name}".rstrip("/")

    async def run(self, place: int, nodes: Sequence[str], attempts: list[CommandAttempt]) -> tuple[bool, str, float]:
        base = _base(self.ref, self.stored, self.image)
        name = f"{copy_name(self.spec)}-r{self.round['round']}-{place}"
        group = _PodGroup(self, base, name, tuple(nodes), attempts)
        try:
            return await group.run(float(self.round["timeout_seconds"]))
        finally:
            await group.delete()

    async def ask(self, place: int, node: str, asked: Sequence[NodeQuestion], attempts: list[CommandAttempt]) -> str:
        """Give what the pod printed. Its devices are those of the workload, so that it sees the GPUs; its image has
        python3 and what is to be asked with."""
        base = _base(self.ref, self.stored, self.image)
        name = f"{copy_name(self.spec)}-ask-{place}"
        group = _PodGroup(self, base, name, (node,), attempts)
        words = [word.replace("$(", "$$(") for word in node_query.program(asked)]
        container = {"name": "ask", "command": words}
        container |= _picked(base["containers"][0], ("image", "resources"))
        spec = {**_picked(base, ASKED), "containers": [container]}
        try:
            await group.create(name, node, spec)
            await group.until(lambda pods: _phases(pods) <= _STARTED, [name], "start")
            await group.until(lambda pods: _phases(pods) <= _ENDED, [name], "", node_query.seconds(asked))
            return await group.log(name, {"limitBytes": str(ANSWER_BYTES)})
        finally:
            await group.delete()


@dataclass(slots=True)
class _PodGroup:
    check: PodCheck
    base: Object
    name: str
    nodes: tuple[str, ...]
    attempts: list[CommandAttempt]
    created: list[str] = field(default_factory=list)

    async def run(self, seconds: float) -> tuple[bool, str, float]:
        """The first pod's address is where the others meet it. Raises Unavailable, also when the cluster took a pod
        away from a node that is up: that says nothing about the node."""
        first = await self._make(0, "$(POD_IP)", seconds)
        [pod] = await self.until(_has_address, [first], "start")
        address = fields.text(pod, "podIP") or "gone"
        all_pods = [first]
        for place in range(1, len(self.nodes)):
            all_pods.append(await self._make(place, address, seconds))
        await self.until(lambda pods: _phases(pods) <= _STARTED, all_pods, "start")
        started = self.check.clock()
        pods = await self.until(_is_decided, all_pods, "", seconds + 10)
        elapsed = self.check.clock() - started
        if "Failed" in _phases(pods):  # what one of them met may show on another only now
            pods = await self._statuses(all_pods)
        await self._check_removed(pods)
        failed = [name for name, pod in zip(all_pods, pods, strict=True) if pod.get("phase") != "Succeeded"]
        shown = await self.log((failed or all_pods)[0], {"tailLines": "5", "limitBytes": str(LOG_BYTES)})
        return not failed, shown, elapsed

    async def _check_removed(self, pods: Sequence[Object]) -> None:
        """Raises Unavailable where the cluster took a pod away from a node that is up, or from a partner by which the
        first node is judged. pods: status of each."""
        for place, (node, pod) in enumerate(zip(self.nodes, pods, strict=True)):
            why = fields.text(pod, "reason")  # evicted, preempted, not admitted: a program that fails gives none
            if pod.get("phase") != "Failed":
                continue
            if not why:
                continue
            if await self._proves_nothing(place, node):
                raise Unavailable(f"the check of {', '.join(self.nodes)} lost its pod on {node}: {why}")

    async def _proves_nothing(self, place: int, node: str) -> bool:
        """Tell whether a pod that the cluster took away says nothing about the node that is judged."""
        if place > 0 and node_check.is_later(self.check.round):
            return True  # a partner by which the first node is judged
        manifest = await self.check.kube.get(f"/api/v1/nodes/{node}")
        return parsing.node(manifest).up if manifest else False

    async def _make(self, place: int, address: str, seconds: float) -> str:
        command = _command(self.check.program, self.base, len(self.nodes), place, address, seconds)
        container = {**self.base["containers"][0], "command": list(command)}
        return await self.create(f"{self.name}-{place}", self.nodes[place], {**self.base, "containers": [container]})

    async def create(self, name: str, node: str, spec: Object) -> str:
        """Idempotent by the pod's name: an agent that takes over finds the pod. Raises Unavailable."""
        meta: Object = {"name": name, "namespace": self.check.namespace, "labels": dict(names.MANAGED)}
        meta["annotations"] = {names.PLAN: self.check.spec.id}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": bound_to(node, spec)}
        attempt = await self.send(request("POST", self.check.path(), pod, f"({name} on {node})"))
        if attempt.code not in (0, 409):
            raise Unavailable(f"the check of {', '.join(self.nodes)} could not be started: {attempt.output}")
        self.created.append(name)
        return name

    async def until(
        self, holds: Callable[[list[Object]], bool], pods: Sequence[str], what: str, seconds: float = START_SECONDS
    ) -> list[Object]:
        """The pods' status once it holds, or when the time is over. what: raises Unavailable then, "" for not to."""
        deadline = self.check.clock() + seconds
        while True:
            statuses = await self._statuses(pods)
            if holds(statuses):
                return statuses
            if self.check.clock() > deadline:
                if not what:
                    return statuses
                raise Unavailable(f"the check of {', '.join(self.nodes)} did not {what} within {seconds:.0f} s")
            await asyncio.sleep(LOOK_SECONDS)

    async def _statuses(self, names: Sequence[str]) -> list[Object]:
        """A pod that is gone, or is going, has failed; with its node, if that went away."""
        statuses: list[Object] = []
        for name in names:
            pod = await self.check.kube.get(self.check.path(name))
            if pod is None or pod["metadata"].get("deletionTimestamp"):
                statuses.append({"phase": "Failed", "reason": "it was deleted"})
            else:
                statuses.append(dict(fields.section(pod, "status")))
        return statuses

    async def log(self, name: str, query: Mapping[str, str]) -> str:
        path = self.check.path(f"{name}/log")
        try:
            async with self.check.kube.stream(path, query, 10.0) as answer:
                if not answer.is_success:
                    return ""
                return (await answer.aread()).decode("utf-8", "replace")
        except (Unavailable, OutOfScope) as error:
            return str(error)

    async def delete(self) -> None:
        for pod in self.created:
            await self.send(request("DELETE", self.check.path(pod), {"gracePeriodSeconds": 0}))

    async def send(self, command: Command) -> CommandAttempt:
        method, path = command.words
        answer = await self.check.kube.ask(method, path, command.body)
        attempt = CommandAttempt(command, answer.exit_code, answer.message)
        self.attempts.append(attempt)
        return attempt


def _base(ref: WorkloadRef, stored: Mapping[str, Any], image: str) -> Object:
    """Build what all pods of the check have in common. image: "" for the workload's own. Raises Unavailable without a
    workload to take it from."""
    if not stored:
        raise Unavailable("the copy of the workload is gone")
    pod_templates = templates(ref.kind, orjson.loads(stored["data"][COPY_KEY]))
    if not pod_templates:
        raise Unavailable("the workload has no pods of its own to take an image from")
    spec = pod_templates[-1]["spec"]
    main = spec["containers"][0]
    shared, variables = _picked(spec, SHARED), list[Object]()
    if image:
        rights = _picked(fields.section(main, "securityContext"), RIGHTS)
        container = {"image": image, "resources": _devices(main), "securityContext": rights}
    else:
        container = _picked(main, OWN_CONTAINER)
        shared |= _picked(spec, OWN_POD)
        variables = [variable for variable in fields.entries(main, "env") if _VARIABLES.match(variable["name"])]
    own = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    mount = {"name": "shm", "mountPath": SHARED_MEMORY}
    return {
        **shared,
        "tolerations": [*fields.entries(spec, "tolerations"), CORDONED],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [{"name": "check", **container, "env": [own, *variables], "volumeMounts": [mount]}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }


def stored_for(node: Object | None) -> Object:
    """Build what ``_base`` reads, for a node without a workload: a job that has all of its GPUs. Empty for no node."""
    if node is None:
        return {}
    allocatable = fields.section(node, "status", "allocatable")
    devices = {name: count for name, count in allocatable.items() if name.endswith("/gpu") and str(count) != "0"}
    pod = {"containers": [{"name": "none", "resources": {"limits": devices}}]}
    return {"data": {COPY_KEY: orjson.dumps({"spec": {"template": {"spec": pod}}}).decode()}}


def _picked(given: Mapping[str, Any], names: Sequence[str]) -> Object:
    return {name: given[name] for name in names if name in given}


def _devices(container: Object) -> Object:
    """Its extended resources, such as ``nvidia.com/gpu``. Not its processors and memory, which a job may choose so that
    the check cannot run in them."""
    wanted = fields.resources(container)
    return {"limits": {name: count for name, count in wanted.items() if "/" in name}}


def bound_to(node: str, spec: Object) -> Object:
    """Bind a pod to a node by affinity, not nodeName: the scheduler knows whether the devices are free."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    return {**spec, "affinity": affinity}


def _command(program: str, base: Object, size: int, place: int, address: str, seconds: float) -> tuple[str, ...]:
    """One process for each GPU. The program's source is an argument, so that nothing needs to be mounted."""
    launcher = f"python3 -m torch.distributed.run --nnodes={size} --node-rank={place} --nproc-per-node="
    launcher += f"{ranks.gpus(base) or 1} --master-addr={address} --master-port={PORT} --no-python python3 -c"
    return (*launcher.split(), program.replace("$(", "$$("), f"--timeout={seconds:.0f}")


def _phases(pods: Sequence[Object]) -> set[object]:
    return {pod.get("phase") for pod in pods}


def _is_decided(pods: Sequence[Object]) -> bool:
    phases = _phases(pods)
    return "Failed" in phases or phases <= _ENDED


def _has_address(pods: Sequence[Object]) -> bool:
    return bool(pods[0].get("podIP")) or "Failed" in _phases(pods)
