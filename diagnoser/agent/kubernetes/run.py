"""Puts the agent for Kubernetes together."""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnoser.agent import knock, loops, service
from diagnoser.agent.kubernetes import kube, memory, names, records
from diagnoser.agent.kubernetes.check import Check
from diagnoser.agent.kubernetes.executor import Executor
from diagnoser.agent.kubernetes.kinds import KINDS, Kind
from diagnoser.agent.kubernetes.kube import Kube
from diagnoser.agent.kubernetes.logs import Logs
from diagnoser.agent.kubernetes.observer import Observer
from diagnoser.agent.kubernetes.steps import PodSeen
from diagnoser.agent.kubernetes.store import Key, Store
from diagnoser.agent.kubernetes.stream import Watched
from diagnoser.model.errors import BadInput


@dataclass(frozen=True, slots=True)
class Options:
    """namespaces: to look at; none is all. check: file of the node check's program. context: of the kubeconfig.

    listen: address for the service's signed webhook, instead of a long poll. secret: of that webhook.
    """

    server: str
    cluster: str
    token: str = ""
    namespaces: tuple[str, ...] = ()
    context: str = ""
    poll: float = 2.0
    logs: bool = True
    check: Path | None = None
    state: Path = Path()
    dry: bool = False
    listen: str = ""
    secret: str = ""


async def run(options: Options) -> None:
    """Until SIGTERM or SIGINT. Raises Denied, Unavailable, BadInput at the start."""
    for name in options.namespaces:
        names.valid(name, "namespace")
    program = _program(options.check)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(service.connect(options.server, options.token))
        api = await stack.enter_async_context(kube.connect(options.context))
        store, talk = Store(), service.Service(client)
        logs = Logs(api, talk)
        stack.push_async_callback(logs.close)
        path = options.state / f"{options.cluster}.json"
        observer = Observer(talk, api, store, logs, options.cluster, path, time.time, options.logs, options.dry)
        observer.recall(memory.load(path))
        watched = streams(api, store, options.namespaces, time.time())
        name = f"kubernetes@{socket.gethostname()}"
        executor = Executor(
            talk,
            api,
            Check(api, program, time.monotonic) if program else None,
            options.cluster,
            name,
            pods_of(store),
            observer.attempt,
            time.monotonic,
            time.time,
            options.dry,
        )
        duties = [one.follow() for one in watched]
        bell = asyncio.Event() if options.listen else None
        if bell:
            duties.append(knock.listen(options.listen, options.secret, bell))
        await loops.run(executor, name, *duties, _look(observer, watched, options.poll), knock=bell)


def streams(api: Kube, store: Store, namespaces: Sequence[str], since: float) -> list[Watched]:
    """All lists that are kept up to date. since: events of the cluster before that are old news."""
    found = [Watched(api, "/api/v1/nodes", _node(store), lambda item: store.drop_node(item["metadata"]["name"]))]
    for namespace in namespaces or ("",):
        where = f"/api/v1/namespaces/{namespace}" if namespace else "/api/v1"
        found.append(Watched(api, f"{where}/pods", _pod(store), _pod_gone(store)))
        found.append(Watched(api, f"{where}/events", _event(store, since), lambda item: None))
        found += [Watched(api, kind.path(namespace), _work(store, kind), _work_gone(store, kind)) for kind in _kinds()]
    if namespaces and "default" not in namespaces:  # where events about nodes lie
        found.append(Watched(api, "/api/v1/namespaces/default/events", _event(store, since), lambda item: None))
    return found


def pods_of(store: Store) -> Callable[[Key], tuple[PodSeen, ...]]:
    """Those of a workload that have not ended."""

    def find(key: Key) -> tuple[PodSeen, ...]:
        some = (pod for pod in store.by_work().get(key, ()) if not pod.gone and not pod.over)
        return tuple(PodSeen(pod.name, pod.uid, pod.node, pod.leaving, store.lost(pod.node)) for pod in some)

    return find


async def _look(observer: Observer, watched: Sequence[Watched], poll: float) -> None:
    """Once everything has been listed: a workload without its pods would look as if it had none."""
    await asyncio.gather(*(one.ready.wait() for one in watched))

    async def once() -> None:
        await observer.wait(poll)
        await observer.look()

    await loops.again(once, 0.0)


def _kinds() -> Sequence[Kind]:
    return tuple(KINDS.values())


def _program(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--check {path}: cannot be read: {error}") from None


def _node(store: Store) -> Callable[[dict[str, Any]], None]:
    return lambda item: store.put_node(records.node(item))


def _pod(store: Store) -> Callable[[dict[str, Any]], None]:
    def put(item: dict[str, Any]) -> None:
        if pod := records.pod(item):
            store.put_pod(pod)

    return put


def _pod_gone(store: Store) -> Callable[[dict[str, Any]], None]:
    def drop(item: dict[str, Any]) -> None:
        if "status" in item and (pod := records.pod(item)):  # how it was at its end
            store.put_pod(pod)
        store.drop_pod(item["metadata"]["uid"])

    return drop


def _event(store: Store, since: float) -> Callable[[dict[str, Any]], None]:
    def put(item: dict[str, Any]) -> None:
        event = records.event(item)
        if event.time >= since:
            store.put_event(event)

    return put


def _work(store: Store, kind: Kind) -> Callable[[dict[str, Any]], None]:
    return lambda item: store.put_work(records.workload(kind, item))


def _work_gone(store: Store, kind: Kind) -> Callable[[dict[str, Any]], None]:
    def drop(item: dict[str, Any]) -> None:
        meta = item["metadata"]
        store.drop_work((kind.word, meta["namespace"], meta["name"]), meta["uid"])

    return drop
