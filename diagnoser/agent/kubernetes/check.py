"""Runs the groups of a node check: one pod on each node of a group, with the image and the devices of the workload."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from diagnoser.agent.kubernetes import names, ranks, records
from diagnoser.agent.kubernetes.kinds import Object, templates
from diagnoser.agent.kubernetes.kube import Answer, Kube
from diagnoser.agent.kubernetes.steps import COPY_KEY, Do, Tried
from diagnoser.agent.kubernetes.wanted import Wanted
from diagnoser.model.errors import OutOfScope, Unavailable

GROUPS_AT_ONCE = 64
START_SECONDS = 120.0
"""How long a pod may wait for its node and its image. Both were in use a moment ago."""
LOOK_SECONDS = 0.5
PORT = 29_600
LOG_BYTES = 4_000
SHARED = ("hostNetwork", "hostIPC", "dnsPolicy", "imagePullSecrets", "runtimeClassName")
"""What a pod of the check has from a pod of the workload, beside its image, devices and rights."""
CORDONED = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- inside the pod
_VARIABLES = re.compile(r"(NCCL|GLOO|UCX|FI|OMPI|TORCH|CUDA|LD_LIBRARY_PATH)")
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Ran:
    """results: of each group, as the service takes them. asked: requests that changed something."""

    results: list[dict[str, Any]]
    asked: list[Tried]


@dataclass(frozen=True, slots=True)
class Check:
    """program: source of the check, which the pods run as it is. clock: seconds that only grow."""

    kube: Kube
    program: str
    clock: Callable[[], float]

    async def run(self, want: Wanted, stored: Mapping[str, Any], found: Mapping[str, Any]) -> Ran:
        """found: a round, as the service gives it. stored: the workload's copy. Raises Unavailable when the cluster
        would not start a group: that says nothing about its nodes."""
        base = _base(want, stored)
        turn, asked = asyncio.Semaphore(GROUPS_AT_ONCE), list[Tried]()

        async def one(place: int, nodes: Sequence[str]) -> dict[str, Any]:
            group = _Group(self, want, base, f"{want.copy}-r{found['round']}-{place}", tuple(nodes), asked)
            async with turn:
                try:
                    return await group.run(float(found["timeout_seconds"]))
                finally:
                    await group.clear()

        results = await asyncio.gather(*(one(place, nodes) for place, nodes in enumerate(found["pairs"])))
        return Ran(list(results), asked)


@dataclass(slots=True)
class _Group:
    check: Check
    want: Wanted
    base: Object
    name: str
    nodes: tuple[str, ...]
    asked: list[Tried]
    made: list[str] = field(default_factory=list)

    async def run(self, seconds: float) -> dict[str, Any]:
        """The first pod's address is where the others meet it. Raises Unavailable."""
        if gone := [name for name in self.nodes if not await self._ready(name)]:
            return {"nodes": list(self.nodes), "ok": False, "seconds": 0.0, "detail": f"{', '.join(gone)} is down"}
        first = await self._make(0, "$(POD_IP)", seconds)
        await self._until(lambda pods: bool(_address(pods[0])), [first], START_SECONDS, "start")
        address = _address(await self._pod(first))
        others = [await self._make(place, address, seconds) for place in range(1, len(self.nodes))]
        every = [first, *others]
        await self._until(lambda pods: all(map(_begun, pods)), every, START_SECONDS, "start")
        begun = self.check.clock()
        pods = await self._until(lambda pods: all(map(_over, pods)) or any(map(_failed, pods)), every, seconds + 10, "")
        took = self.check.clock() - begun
        bad = [pod for pod in pods if pod["status"].get("phase") != "Succeeded"]
        told = [await self._log(pod["metadata"]["name"]) for pod in bad[:1] or pods[:1]]
        own = [float(value) for value in re.findall(r"\bseconds[\"' :=]+([0-9.]+)", " ".join(told))]
        detail = " ".join(told)[-500:] if bad else ""
        return {"nodes": list(self.nodes), "ok": not bad, "seconds": round(max(own, default=took), 3), "detail": detail}

    async def _ready(self, node: str) -> bool:
        found = await self.check.kube.get(f"/api/v1/nodes/{node}")
        return found is not None and records.node(found).ready

    async def clear(self) -> None:
        for name in self.made:
            await self._ask(Do("DELETE", self._path(name), {"gracePeriodSeconds": 0}))

    async def _make(self, place: int, address: str, seconds: float) -> str:
        """Idempotent by the pod's name: who takes over finds it."""
        name, node = f"{self.name}-{place}", self.nodes[place]
        pod = _pod(
            self.base, name, node, _command(self.check.program, self.base, len(self.nodes), place, address, seconds)
        )
        pod["metadata"] |= {"namespace": self.want.namespace, "annotations": {names.PLAN: self.want.id}}
        step = Do("POST", f"/api/v1/namespaces/{self.want.namespace}/pods", pod, f"({name} on {node})")
        answer = await self._ask(step)
        if not answer.ok and answer.code != 409:
            raise Unavailable(f"the check of {', '.join(self.nodes)} could not be started: {answer.told}")
        self.made.append(name)
        return name

    async def _until(
        self, holds: Callable[[list[Object]], bool], pods: Sequence[str], seconds: float, what: str
    ) -> list[Object]:
        """The pods once it holds, or when the time is over. what: raises Unavailable then, "" for not to."""
        deadline = self.check.clock() + seconds
        while True:
            found = [await self._pod(name) for name in pods]
            if holds(found) or (not what and self.check.clock() > deadline):
                return found
            if self.check.clock() > deadline:
                raise Unavailable(f"the check of {', '.join(self.nodes)} did not {what} within {seconds:.0f} s")
            await asyncio.sleep(LOOK_SECONDS)

    async def _pod(self, name: str) -> Object:
        """A pod that is gone counts as one that failed: its node went away with it."""
        return await self.check.kube.get(self._path(name)) or {
            "metadata": {"name": name},
            "status": {"phase": "Failed"},
        }

    async def _log(self, name: str) -> str:
        path, query = f"{self._path(name)}/log", {"tailLines": "5", "limitBytes": str(LOG_BYTES)}
        try:
            async with self.check.kube.stream(path, query, 10.0) as answer:
                return (await answer.aread()).decode("utf-8", "replace") if answer.is_success else ""
        except (Unavailable, OutOfScope) as error:
            return str(error)

    async def _ask(self, step: Do) -> Answer:
        answer = await self.check.kube.ask(step.method, step.path, step.body)
        self.asked.append(Tried(step, answer.code, answer.told))
        return answer

    def _path(self, name: str) -> str:
        return f"/api/v1/namespaces/{self.want.namespace}/pods/{name}"


def _base(want: Wanted, stored: Mapping[str, Any]) -> Object:
    """What all pods of the check have in common. Raises Unavailable without a workload to take it from."""
    if not stored:
        raise Unavailable("the copy of the workload is gone")
    found = templates(want.kind, orjson.loads(stored["data"][COPY_KEY]))
    if not found:
        raise Unavailable("the workload has no pods of its own to take an image from")
    spec = found[-1]["spec"]
    main = spec["containers"][0]
    container = {
        name: main[name] for name in ("image", "imagePullPolicy", "resources", "securityContext") if name in main
    }
    variables = [one for one in main.get("env") or () if _VARIABLES.match(one["name"])]
    own = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    memory = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    return {
        **{name: spec[name] for name in SHARED if name in spec},
        "tolerations": [*(spec.get("tolerations") or ()), CORDONED],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "check",
                **container,
                "env": [own, *variables],
                "volumeMounts": [{"name": "shm", "mountPath": SHARED_MEMORY}],
            }
        ],
        "volumes": [memory],
    }


def _pod(base: Object, name: str, node: str, command: Sequence[str]) -> Object:
    """Bound to its node by the scheduler, which knows whether the devices are free."""
    wanted = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [wanted]}}}
    container = {**base["containers"][0], "command": list(command)}
    spec = {**base, "affinity": affinity, "containers": [container]}
    meta = {"name": name, "labels": dict(names.MANAGED)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _command(program: str, base: Object, size: int, place: int, address: str, seconds: float) -> tuple[str, ...]:
    """One process for each GPU. The program's source is an argument, so that nothing needs to be mounted."""
    return (
        "python3",
        "-m",
        "torch.distributed.run",
        f"--nnodes={size}",
        f"--node-rank={place}",
        f"--nproc-per-node={ranks.gpus(base) or 1}",
        f"--master-addr={address}",
        f"--master-port={PORT}",
        "--no-python",
        "python3",
        "-c",
        program.replace("$(", "$$("),
        f"--timeout={seconds:.0f}",
    )


def _address(pod: Mapping[str, Any]) -> str:
    return str(pod["status"].get("podIP") or "") or ("gone" if _failed(pod) else "")


def _begun(pod: Mapping[str, Any]) -> bool:
    return pod["status"].get("phase") in ("Running", *_ENDED)


def _over(pod: Mapping[str, Any]) -> bool:
    return pod["status"].get("phase") in _ENDED


def _failed(pod: Mapping[str, Any]) -> bool:
    return bool(pod["status"].get("phase") == "Failed")
