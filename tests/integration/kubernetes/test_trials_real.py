"""Evaluation runs on a real control plane, with no more rights than the manifests give. What pods run,
``containers.py`` runs as processes of this machine."""

import asyncio
import json
import os
import secrets
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml

from diagnoser.agent.kubernetes import batch_jobs
from diagnoser.agent.kubernetes.batch_jobs import JobSettings
from diagnoser.agent.kubernetes.evaluation_batches import KubernetesBatches
from diagnoser.evaluations import batch_folder
from diagnoser.evaluations.weights import CopyLimits
from diagnoser.model.errors import BadInput, OutOfScope
from diagnoser.model.evaluations import BatchKind, BatchState, Node, RunProgress, RunState
from diagnoser.ports import Command, Order, OrderState
from tests.databases import sqlite_store
from tests.e2e.service import until
from tests.integration.kubernetes import cluster as real
from tests.integration.kubernetes.cluster import NODES, Cluster, left_out, path_of
from tests.integration.kubernetes.conftest import PlainKube
from tests.integration.kubernetes.containers import ROOT, Containers, Object
from tests.preloaded import Preloaded
from tests.trial_runs import INFER, SCORE, check, completions, coordinator, suite, trial_run

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes")]

SPACE = "evaluation"
MANIFEST = ROOT / "deploy" / "kubernetes" / "trials" / "trials.yaml"
JOBS = f"/apis/batch/v1/namespaces/{SPACE}/jobs"


class RealKube(PlainKube):
    """Its credentials are its connection's."""

    def _headers(self) -> dict[str, str]:
        return {}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With the manifests of the coordinator applied."""
    if why := real.missing():
        pytest.skip(f"needs a real Kubernetes: {why}")
    with real.running(tmp_path_factory.mktemp("kubernetes")) as found:
        for item in yaml.safe_load_all(MANIFEST.read_text()):
            answer = found.ask("POST", path_of(item), item)
            assert answer.status_code == 201, answer.text
        yield found


@pytest.fixture
def token(cluster: Cluster) -> str:
    """Of the coordinator's own service account."""
    path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/diagnoser-trials/token"
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = cluster.ask("POST", path, wanted)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["status"]["token"])


@pytest.fixture
def claim(cluster: Cluster, tmp_path: Path) -> str:
    """Of the test's folder. As a claim: of a path of the nodes pods ask that it is a folder."""
    name = f"shared-{secrets.token_hex(4)}"
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {**spec, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(tmp_path)}}
    claimed = {**spec, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    for path, found in (("", volume), (f"namespaces/{SPACE}/", claimed)):
        plural = "persistentvolumeclaims" if path else "persistentvolumes"
        answer = cluster.ask("POST", f"/api/v1/{path}{plural}", {"metadata": {"name": name}, "spec": found})
        assert answer.status_code == 201, answer.text
    return name


@pytest.fixture
async def trials(cluster: Cluster, token: str, claim: str, tmp_path: Path) -> AsyncIterator[KubernetesBatches]:
    """Two GPUs may be taken of each of two nodes."""
    settings = JobSettings("eval:1", 1000, 1000, {str(tmp_path): claim}, cpu="100m", memory="64Mi")
    (tmp_path / "memory").mkdir()
    copies = CopyLimits(str(tmp_path / "memory" / "weights"), 0.0)
    trusted = await asyncio.to_thread(ssl.create_default_context, cafile=cluster.folder / "ca.crt")
    headers = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=cluster.url, headers=headers, verify=trusted) as client:
        nodes = [Node(name, 2) for name in NODES[:2]]
        yield KubernetesBatches(RealKube(cast(Any, None), client), SPACE, settings, copies, time.time, nodes)
    for name in NODES:
        cluster.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None}})


@pytest.fixture
def containers(cluster: Cluster) -> Iterator[Containers]:
    def request(method: str, path: str, body: Any) -> Object:
        answer = cluster.ask(method, path, body)
        assert answer.status_code in (200, 404), answer.text  # a pod may be deleted in the moment in which it ends
        found: Object = answer.json()
        return found

    with Containers(request, SPACE) as found:
        yield found


def sleeper(folder: Path, node: str = NODES[0]) -> Order:
    """A batch that takes a minute."""
    command = Command(("sh", "-c", "sleep 60; echo 1 > $0/x", "{samples}"), {}, str(folder / "samples"))
    return Order("b1", BatchKind.INFER, node, 0, 1, "", str(folder / "b1"), str(folder), (command,))


async def reaches(trials: KubernetesBatches, order: Order, state: OrderState, seconds: float = 60) -> str:
    """The detail, once it has this state."""
    limit = time.monotonic() + seconds
    while (found := (await trials.poll([order]))[0]).state is not state:
        assert time.monotonic() < limit, found
        await asyncio.sleep(0.2)
    return found.detail


def jobs(cluster: Cluster) -> list[str]:
    return [job["metadata"]["name"] for job in cluster.get(JOBS)["items"]]


def pods(cluster: Cluster, **query: str) -> list[Object]:
    found: list[Object] = cluster.get(f"/api/v1/namespaces/{SPACE}/pods", **query)["items"]
    return found


async def carried_out(
    trials: KubernetesBatches, folder: Path, meanwhile: Callable[[RunProgress], None] = lambda progress: None
) -> RunProgress:
    store = await sqlite_store(folder / "test.db")
    try:
        await store.evaluations.add_run(
            replace(trial_run(folder, suite(folder, (40, 30), 0.1)), backend=f"kubernetes@{SPACE}")
        )
        found, limit = coordinator(store, trials), time.monotonic() + 150
        while (progress := await found.step("r1")).run.state is RunState.RUNNING:
            assert time.monotonic() < limit, progress
            await asyncio.to_thread(meanwhile, progress)
            await asyncio.sleep(0.3)
        return progress
    finally:
        await store.close()


async def test_a_run_is_carried_out_by_jobs_and_leaves_none(
    cluster: Cluster, containers: Containers, trials: KubernetesBatches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the nodes that the schedule chose, each sample once; Kubernetes takes the Jobs away some time later."""
    monkeypatch.setattr(batch_jobs, "KEEP_SECONDS", 1)
    places: set[tuple[str, str]] = set()

    def look(progress: RunProgress) -> None:
        for pod in pods(cluster):
            if node := pod["spec"].get("nodeName"):
                places.add((pod["metadata"]["labels"][batch_jobs.BATCH], node))

    progress = await carried_out(trials, tmp_path, look)
    check(progress)
    assert set(completions(tmp_path).values()) == {1}
    inferred = {batch.id: batch.node for batch in progress.batches if batch.kind is BatchKind.INFER}
    assert set(inferred.values()) == set(NODES[:2])
    assert places, "pods were seen"
    assert all(inferred.get(batch, node) == node for batch, node in places)
    await asyncio.to_thread(until, lambda: not jobs(cluster), "the Jobs are gone")
    assert not pods(cluster)


async def test_a_dead_node_is_taken_over(
    cluster: Cluster, containers: Containers, trials: KubernetesBatches, tmp_path: Path
) -> None:
    """What ran there runs on another one; nobody writes down that its pod has ended."""
    dead: list[str] = []

    def kill(progress: RunProgress) -> None:
        ran = [batch for batch in progress.batches if batch.node == NODES[1] and batch.state is BatchState.RUNNING]
        if not dead and any(_runs(tmp_path, batch.id) for batch in ran):
            cluster.end_node(NODES[1])
            containers.kill_node(NODES[1])
            dead.append(NODES[1])

    try:
        progress = await carried_out(trials, tmp_path, kill)
    finally:
        if dead:
            await asyncio.to_thread(_restored, cluster)
    check(progress)
    lost = [batch for batch in progress.batches if batch.state is BatchState.LOST]
    assert {batch.node for batch in lost} == {NODES[1]}
    assert not {batch_jobs.job_name(batch.id) for batch in lost} & set(jobs(cluster))


def _runs(folder: Path, batch: str) -> bool:
    place = folder / "r1" / "batches" / batch
    return batch_folder.is_marked(place, "started") and not batch_folder.is_marked(place, "ended")


def _restored(cluster: Cluster) -> None:
    cluster.start_node(NODES[1])
    until(lambda: _ready(cluster.node(NODES[1])), "the node is back")


def _ready(node: Object) -> bool:
    """Tell whether pods may be placed on it: its taints go some time after it is ready."""
    if node["spec"].get("taints"):
        return False
    return any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"]["conditions"])


async def test_a_batch_is_one_job_however_often_it_is_started(
    cluster: Cluster, containers: Containers, trials: KubernetesBatches, tmp_path: Path
) -> None:
    """The real server refuses the second one. Cancelled, its processes end, and it is never started again."""
    order = sleeper(tmp_path)
    assert (await trials.poll([order]))[0].state is OrderState.UNKNOWN
    await asyncio.gather(trials.start(order), trials.start(order))
    (Path(order.folder) / "submitted").unlink()
    await trials.start(order)
    assert jobs(cluster).count("diagnoser-trial-b1") == 1
    await reaches(trials, order, OrderState.RUNNING)
    [pod] = pods(cluster, labelSelector=f"{batch_jobs.BATCH}=b1")
    assert pod["spec"]["nodeName"] == NODES[0]
    await trials.cancel(order)
    await trials.start(order)
    await reaches(trials, order, OrderState.LOST)
    await asyncio.to_thread(until, lambda: not pods(cluster, labelSelector=f"{batch_jobs.BATCH}=b1"), "it is gone")


async def test_the_server_keeps_what_it_is_given(cluster: Cluster, trials: KubernetesBatches, tmp_path: Path) -> None:
    """No field of ours is unknown to it. It refuses a privileged container by the check, before a run begins."""
    await trials.start(order := sleeper(tmp_path))
    wanted = batch_jobs.batch_job(order, order.folder, trials.settings, trials.copies)["spec"]
    kept = cluster.get(f"{JOBS}/diagnoser-trial-b1")["spec"]
    await trials.cancel(order)
    await asyncio.to_thread(until, lambda: not pods(cluster, labelSelector=f"{batch_jobs.BATCH}=b1"), "its pod is gone")
    unknown = [".suspend", ".podFailurePolicy"]
    assert left_out(wanted, kept) == unknown, "which servers before 1.21, and before 1.26, do not know"
    privileged = {"spec": {"containers": [{"name": "trial", "securityContext": {"privileged": True}}]}}
    await trials.check(1)
    with pytest.raises(BadInput, match="privileged"):
        await replace(trials, settings=replace(trials.settings, template=privileged)).check(1)
    with pytest.raises(BadInput, match="quantities must match"):
        await replace(trials, settings=replace(trials.settings, memory="two")).check(1)


async def test_a_cordoned_node_gets_nothing(
    cluster: Cluster, containers: Containers, trials: KubernetesBatches, tmp_path: Path
) -> None:
    """Not even a batch that was meant for it: it waits, and the run takes it back without holding that against it."""
    assert cluster.ask("PATCH", f"/api/v1/nodes/{NODES[0]}", {"spec": {"unschedulable": True}}).status_code == 200
    order = sleeper(tmp_path)
    await trials.start(order)
    await asyncio.to_thread(until, lambda: _is_unschedulable(cluster), "the scheduler finds no node for it")
    [pod] = pods(cluster, labelSelector=f"{batch_jobs.BATCH}=b1")
    assert "nodeName" not in pod["spec"]
    assert [node.name for node in await trials.nodes()] == [NODES[1]]
    assert (await trials.poll([order]))[0].state is OrderState.QUEUED
    await trials.cancel(order)


def _is_unschedulable(cluster: Cluster) -> bool:
    found = pods(cluster, labelSelector=f"{batch_jobs.BATCH}=b1")
    return any(one.get("reason") == "Unschedulable" for pod in found for one in pod["status"].get("conditions", ()))


async def test_nodes_are_chosen_by_labels(cluster: Cluster, trials: KubernetesBatches) -> None:
    """With the GPUs that the cluster says they have."""
    labels = {"metadata": {"labels": {"pool": "eval"}}}
    assert cluster.ask("PATCH", f"/api/v1/nodes/{NODES[2]}", labels).status_code == 200
    chosen = replace(trials, nodes_given=(), selector="pool=eval")
    assert await chosen.nodes() == [Node(NODES[2], 8)]
    assert {node.name for node in await replace(trials, nodes_given=()).nodes()} == set(NODES)


async def test_the_manifests_give_no_more_than_is_needed(
    cluster: Cluster, token: str, trials: KubernetesBatches
) -> None:
    """Other namespaces, pods, secrets and changes of nodes are refused."""
    refused = [
        ("GET", f"/api/v1/namespaces/{SPACE}/pods"),
        ("GET", f"/api/v1/namespaces/{SPACE}/secrets"),
        ("POST", f"/api/v1/namespaces/{SPACE}/pods"),
        ("PATCH", f"{JOBS}/x"),
        ("DELETE", JOBS),
        ("GET", "/apis/batch/v1/namespaces/default/jobs"),
        ("POST", "/apis/batch/v1/namespaces/default/jobs"),
        ("PATCH", f"/api/v1/nodes/{NODES[0]}"),
        ("DELETE", f"/api/v1/nodes/{NODES[0]}"),
    ]
    headers = {"content-type": "application/merge-patch+json"}
    with cluster.client(token) as client:
        codes = {one: client.request(*one, content=b"{}", headers=headers).status_code for one in refused}
    assert set(codes.values()) == {403}, codes
    with pytest.raises(OutOfScope):
        await replace(trials, namespace="default").poll([])


@contextmanager
def coordinator_process(folder: Path, config: Path, *words: str) -> Iterator[Preloaded]:
    """``diagnoser evaluations``; ended at the end."""
    variables = {
        "PYTHONPATH": str(ROOT),
        "KUBECONFIG": str(config),
        "DIAGNOSER_DATABASE_URL": f"sqlite:///{folder}/t.db",
    }
    (folder / "out").write_bytes(b"")
    process = Preloaded(["evaluations", *words], {**os.environ, **variables}, folder / "out", folder / "err")
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_killed_coordinator_is_resumed_and_a_server_that_is_away_waited_for(
    cluster: Cluster, containers: Containers, token: str, claim: str, tmp_path: Path
) -> None:
    """By the command: killed while a batch runs, resumed, without the API server for a while; then cancelled is the end
    of another run, with its Jobs."""
    (tmp_path / "weights.bin").write_text("weights-1")
    (tmp_path / "infer.py").write_text(INFER)
    (tmp_path / "score.py").write_text(SCORE)
    words = [sys.executable, "infer.py", "{checkpoint}", "{task}", "{first}", "{last}", "{samples}"]
    engine = {
        "infer": [*words, "0.5", str(tmp_path / "done.txt")],
        "score": [sys.executable, "score.py", "{samples}", "{scores}"],
    }
    tasks = [
        {"name": "code", "samples": 12, "sample_seconds": 0.5},
        {"name": "maths", "samples": 8, "sample_seconds": 0.5},
    ]
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump({"name": "x", "checkpoints": ["./weights.bin"], "engine": engine, "tasks": tasks}))
    config = cluster.kubeconfig(tmp_path / "kubeconfig", token)
    folder = ("--folder", str(tmp_path / "runs"))
    pods = ("--kubernetes", "--namespace", SPACE, "--image=eval:1", f"--claim={claim}={tmp_path}", "--run-as=1000:1000",
            "--weights=", "--score-cpu=100m", "--score-memory=64Mi", "--json")  # fmt: skip
    nodes = [f"--node={name}=1" for name in NODES]
    with coordinator_process(tmp_path, config, "run", str(file), *folder, *pods, *nodes) as first:
        until(lambda: _started(tmp_path, first), "a batch runs")
    [run] = [path.name for path in (tmp_path / "runs").iterdir()]
    with coordinator_process(tmp_path, config, "run", "--resume", run, *pods, *nodes) as second:
        until(lambda: (tmp_path / "err").read_text().count(f"run {run}") == 2, "it goes on")
        cluster.end("kube-apiserver")
        until(lambda: "trials_wait" in (tmp_path / "err").read_text(), "it waits for the server")
        cluster.start_server()
        assert second.wait(180) == 0, (tmp_path / "err").read_text()
    done = json.loads((tmp_path / "out").read_text())
    assert {trial["task"]: trial["scores"]["distinct"] for trial in done["trials"]} == {"code": 12, "maths": 8}
    assert set(completions(tmp_path).values()) == {1}
    with coordinator_process(tmp_path, config, "run", str(file), *folder, *pods, *nodes) as third:
        until(lambda: _job_of_another(cluster, run), "another run has Jobs")
        [other] = [path.name for path in (tmp_path / "runs").iterdir() if path.name != run]
        with coordinator_process(tmp_path, config, "cancel", other, "--json") as cancel:
            assert cancel.wait(180) == 0, (tmp_path / "err").read_text()
        assert third.wait(180) == 1, "its coordinator ends as well, with what it has just started"
    assert not _job_of_another(cluster, run)


def _started(folder: Path, process: Preloaded) -> bool:
    assert process.poll() is None, (folder / "err").read_text()
    return bool(list(folder.glob("runs/*/batches/*/started")))


def _job_of_another(cluster: Cluster, run: str) -> list[str]:
    mine = ("diagnoser-trial-b1", f"diagnoser-trial-{run}", "diagnoser-trial-r1")
    return [name for name in jobs(cluster) if not name.startswith(mine)]
