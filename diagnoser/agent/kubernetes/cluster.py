"""Kubernetes, as plans are carried out on it."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from diagnoser.agent import node_check, node_query
from diagnoser.agent.cluster import AskResults, CheckResults, Command, CommandAttempt, NodeQuestion, NotCollected
from diagnoser.agent.kubernetes import check, names, parsing, reconcile
from diagnoser.agent.kubernetes.check import PodCheck
from diagnoser.agent.kubernetes.evidence import KubernetesEvidence
from diagnoser.agent.kubernetes.informer_cache import InformerCache
from diagnoser.agent.kubernetes.kinds import JOB, WorkloadRef, workload_ref
from diagnoser.agent.kubernetes.kube import Kube
from diagnoser.agent.kubernetes.parsing import Workload
from diagnoser.agent.kubernetes.reconcile import BUSY, WorkloadState, request
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.plan_spec import PlanSpec, parse_plan
from diagnoser.model import EvidenceRequest, RuntimeFile

_VALUE = re.compile(r"[^\x00-\x1f\x7f]{1,1000}")
_NODES = "/api/v1/nodes"


@dataclass(frozen=True, slots=True)
class KubernetesNodes:
    """by: who takes nodes out, as they are marked with."""

    kube: Kube
    by: str

    async def nodes(self, given: Collection[str]) -> Mapping[str, NodeRecord]:
        """Raises BadInput for what cannot be a node's name."""
        objects = await asyncio.gather(*(self.kube.get(f"{_NODES}/{names.valid(name, 'node')}") for name in given))
        return {node.name: node for node in map(parsing.node, filter(None, objects))}

    def cordon(self, spec: PlanSpec, node: NodeRecord) -> Command:
        return self._patch(node, {names.PLAN: spec.id, names.REASON: spec.reason, names.BY: self.by}, True)

    def uncordon(self, node: NodeRecord) -> Command:
        return self._patch(node, dict.fromkeys(names.NODE_ANNOTATIONS), None)

    async def run(self, command: Command) -> CommandAttempt:
        method, path = command.words
        answer = await self.kube.ask(method, path, command.body)
        passing = answer.code in BUSY or (answer.code == 404 and method != "POST")
        return CommandAttempt(command, answer.exit_code, answer.message, passing)

    async def lend(self, node: NodeRecord) -> None:
        """Our pods tolerate a cordon."""

    async def end_loan(self, node: NodeRecord) -> None:
        """It was cordoned all the time."""

    def _patch(self, node: NodeRecord, marks: Mapping[str, str | None], unschedulable: bool | None) -> Command:
        """Only as the node was seen: it must not cross a person's."""
        meta = {"resourceVersion": node.version, "annotations": marks}
        return request("PATCH", f"{_NODES}/{node.name}", {"metadata": meta, "spec": {"unschedulable": unschedulable}})


@dataclass(frozen=True, slots=True)
class KubernetesCluster(KubernetesNodes):
    """program: source of the node check, "" for none. launch_of: number of a workload's present launch.

    clock: seconds that only grow. query_image: of pods that ask a node, "" to ask none. check_image: of pods of the
    node check, "" for the workload's own. check_namespace: where pods with one of these two images run. evidence: how
    it is collected, None for not at all.
    """

    name: str
    cache: InformerCache
    program: str
    launch_of: Callable[[Workload], Awaitable[int]]
    clock: Callable[[], float]
    query_image: str = ""
    check_image: str = ""
    check_namespace: str = check.NAMESPACE
    evidence: KubernetesEvidence | None = None

    running = staticmethod(reconcile.running)
    hold = staticmethod(reconcile.hold)
    relaunch = staticmethod(reconcile.relaunch)
    put_back = staticmethod(reconcile.put_back)

    @property
    def can_check(self) -> bool:
        return bool(self.program)

    @property
    def check_is_vouched(self) -> bool:
        return bool(self.check_image)

    @property
    def can_ask(self) -> bool:
        return bool(self.query_image)

    def spec(self, plan: Mapping[str, Any], failure_type: str) -> PlanSpec:
        workload_ref(plan["job"], self.name)
        spec = parse_plan(plan, failure_type, lambda name: names.valid(name, "node"), _VALUE)
        return replace(spec, copies=reconcile.reported_copies(plan.get("steps", ())))

    async def job(self, spec: PlanSpec) -> WorkloadState:
        ref = workload_ref(spec.job, self.name)
        copy = ref.core("configmaps", reconcile.copy_name(spec))
        manifest, stored = await asyncio.gather(self.kube.get(ref.path), self.kube.get(copy))
        launch = 0
        if manifest:
            launch = await self.launch_of(parsing.workload(ref.kind, manifest))
        pods = self.cache.by_workload().get(ref.key, ())
        alive = tuple(pod for pod in pods if pod.alive)
        seen = {*reconcile.stored_nodes(spec, stored), *(pod.node for pod in pods)}
        nodes = tuple(sorted(filter(None, seen)))
        return WorkloadState(ref, manifest, launch, stored, alive, self.by, nodes)

    async def check(self, spec: PlanSpec, round: Mapping[str, Any]) -> CheckResults:
        nodes = await self.nodes(set(chain.from_iterable(round["pairs"])))
        pods = await self._pod_check(spec, round, self.check_image)
        return await node_check.run_groups(round, nodes, pods.run)

    async def ask(self, spec: PlanSpec, questions: Sequence[NodeQuestion]) -> AskResults:
        nodes = await self.nodes({question.node for question in questions})
        pods = await self._pod_check(spec, {}, self.query_image)
        return await node_query.ask_nodes(questions, nodes, pods.ask)

    async def _pod_check(self, spec: PlanSpec, round: Mapping[str, Any], image: str) -> PodCheck:
        if spec.job:
            ref = workload_ref(spec.job, self.name)
            stored = await self.kube.get(ref.core("configmaps", reconcile.copy_name(spec)))
        else:  # the return of a node: its own devices in place of a workload's
            ref = WorkloadRef(JOB, self.check_namespace, spec.id)
            stored = check.stored_for(await self.kube.get(f"{_NODES}/{spec.nodes[0]}"))
        namespace = self.check_namespace if image else ref.namespace
        return PodCheck(self.kube, self.program, self.clock, spec, ref, stored or {}, round, image, namespace)

    @property
    def can_collect(self) -> bool:
        return self.evidence is not None and self.evidence.options.any

    def collect(self, asked: EvidenceRequest) -> AsyncGenerator[RuntimeFile | NotCollected]:
        assert self.evidence is not None, "the caller has asked whether it can collect"
        return self.evidence.collect(asked)

    async def free(self, spec: PlanSpec) -> None:
        """Nothing was reserved."""
