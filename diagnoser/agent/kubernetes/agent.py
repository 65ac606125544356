"""Puts the agent for Kubernetes together."""

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.kubernetes import kube, names
from diagnoser.agent.kubernetes.cluster import KubernetesCluster, KubernetesNodes
from diagnoser.agent.kubernetes.evidence import KubernetesEvidence
from diagnoser.agent.kubernetes.informer_cache import InformerCache
from diagnoser.agent.kubernetes.kinds import KINDS, Object
from diagnoser.agent.kubernetes.kube import Kube
from diagnoser.agent.kubernetes.logs import LogFollower
from diagnoser.agent.kubernetes.reflector import Reflector
from diagnoser.agent.kubernetes.source import KubernetesSource
from diagnoser.agent.runtime import AgentOptions, executor_name, run_agent
from diagnoser.agent.state_file import AgentState
from diagnoser.agent.uncordon import give_back

if TYPE_CHECKING:
    from diagnoser.agent.kubernetes.command import KubernetesFlags


async def run(flags: "KubernetesFlags", options: AgentOptions, program: str) -> None:
    """options: what ``begin`` made of the flags. program: source of the node check, "" for none."""
    namespaces = flags.namespace
    for name in (*namespaces, flags.check_namespace):
        names.valid(name, "namespace")
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(kube.connect(flags.context))
        by, cache = executor_name("kubernetes"), InformerCache(time.time())
        watched = reflectors(api, cache, namespaces)

        def build(client: ApiClient, state: AgentState) -> tuple[KubernetesCluster, KubernetesSource]:
            logs = LogFollower(api, client, state.logs)
            stack.push_async_callback(logs.close)
            source = KubernetesSource(
                client,
                KubernetesNodes(api, by),
                cache,
                logs,
                options.cluster,
                state,
                now=time.time,
                reflectors=watched,
                ships=options.logs,
                dry=options.dry,
            )
            launch_of = source.launch_of
            cluster = KubernetesCluster(
                api,
                by,
                options.cluster,
                cache,
                program,
                launch_of,
                clock=time.monotonic,
                query_image=flags.node_query_image,
                check_image=flags.check_image,
                check_namespace=flags.check_namespace,
                evidence=KubernetesEvidence(api, cache, options.cluster, launch_of, options.evidence, options.dry),
            )
            return cluster, source

        await run_agent(options, "kubernetes", build, *(reflector.follow for reflector in watched))


async def uncordon(context: str, nodes: Sequence[str]) -> list[str]:
    async with kube.connect(context) as api:
        return await give_back(KubernetesNodes(api, ""), nodes)


def reflectors(api: Kube, cache: InformerCache, namespaces: Sequence[str]) -> list[Reflector]:

    def keep(item: Object) -> None:
        """An event that the server has forgotten is still one that happened."""

    lists = [Reflector(api, "/api/v1/nodes", cache.put_node, cache.drop_node)]
    for namespace in namespaces or ("",):
        where = "/api/v1"
        if namespace:
            where += f"/namespaces/{namespace}"
        lists.append(Reflector(api, f"{where}/pods", cache.put_pod, cache.drop_pod))
        lists.append(Reflector(api, f"{where}/events", cache.put_event, keep))
        for kind in KINDS.values():
            put, drop = partial(cache.put_workload, kind), partial(cache.drop_workload, kind)
            lists.append(Reflector(api, kind.path(namespace), put, drop))
    if namespaces and "default" not in namespaces:  # where events about nodes lie
        lists.append(Reflector(api, "/api/v1/namespaces/default/events", cache.put_event, keep))
    return lists
