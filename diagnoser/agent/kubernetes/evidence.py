"""Evidence of a workload: its dump files, as far as they are mounted here, and a program in each of its containers.

The program runs as the container's own user, with what its image has: python3, and py-spy or ncclras.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from diagnoser.agent import evidence
from diagnoser.agent.cluster import NotCollected
from diagnoser.agent.evidence import CLOCKS, PROGRAM_SECONDS, RAS_NODES, EvidenceOptions, LaunchWindow
from diagnoser.agent.kubernetes.informer_cache import InformerCache
from diagnoser.agent.kubernetes.kinds import WorkloadRef, workload_ref
from diagnoser.agent.kubernetes.kube import Kube
from diagnoser.agent.kubernetes.parsing import PodRecord, Workload
from diagnoser.model import EvidenceRequest, RuntimeFile

FIELDS = ("job", "namespace")
EXEC_SECONDS = 4 * PROGRAM_SECONDS
OUTPUT_BYTES = 32 << 20
"""Of one pod, packed."""


@dataclass(frozen=True, slots=True)
class KubernetesEvidence:
    """launch_of: number of a workload's present launch. dry: nothing is run in containers."""

    kube: Kube
    cache: InformerCache
    cluster: str
    launch_of: Callable[[Workload], Awaitable[int]]
    options: EvidenceOptions = field(default_factory=EvidenceOptions)
    dry: bool = False

    async def collect(self, asked: EvidenceRequest) -> AsyncGenerator[RuntimeFile | NotCollected]:
        ref, number = workload_ref(asked.attempt.job, self.cluster), asked.attempt.number
        work, launch = self.cache.works.get(ref.key), 0
        if work:
            launch = await self.launch_of(work)
        if launch < number:
            yield NotCollected(f"launch {number} of {ref.kind.word} {ref.name} is not there any more")
            return
        pods = list(filter(_has_containers, self.cache.by_workload().get(ref.key, ())))
        window, nodes = _window(ref, asked, launch, pods), [pod.node for pod in pods]
        ask, refusal = partial(self._execute, window, pods), self._why_no_programs(launch, number)
        async for item in evidence.collect(self.options, asked, window, nodes, ask, refusal):
            yield item

    def _why_no_programs(self, launch: int, asked: int) -> str:
        """Say why nothing may be run beside the launch that is asked about; "" where it may.

        launch: the present one.
        """
        if self.dry:
            return "dry run: nothing is run in the containers"
        if launch != asked:
            return f"launch {asked} has ended"
        return ""

    async def _execute(self, window: LaunchWindow, pods: Sequence[PodRecord], place: int, node: str) -> str:
        pod = pods[place]
        program = evidence.program(self.options.node_dumps, window, "", ras=place < RAS_NODES)
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/exec"
        return await self.kube.execute(path, pod.runs[-1].container, program, EXEC_SECONDS, OUTPUT_BYTES)


def _has_containers(pod: PodRecord) -> bool:
    if not pod.runs:
        return False
    return pod.alive


def _window(ref: WorkloadRef, asked: EvidenceRequest, launch: int, pods: Sequence[PodRecord]) -> LaunchWindow:
    """Users of containers are not known. A launch before the present one ended before that began."""
    until = float("inf")
    if launch != asked.attempt.number:
        for pod in pods:
            until = min([until, *(run.started for run in pod.runs if run.started)])
    return LaunchWindow({"job": ref.name, "namespace": ref.namespace}, -1, asked.since - CLOCKS, until)
