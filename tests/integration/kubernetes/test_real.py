"""The agent on a real control plane, with no more rights than the manifests give it."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.service import service as running_service
from tests.e2e.service import until
from tests.integration.agent_process import Agent
from tests.integration.kubernetes import cluster as real
from tests.integration.kubernetes.cluster import NODES, Cluster, left_out, path_of
from tests.integration.kubernetes.conftest import NAME, agent_of

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes")]

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
MANIFESTS, PROGRAM = DEPLOY / "kubernetes", DEPLOY / "checks" / "allgather.py"
APPLIED = (
    "base/namespace.yaml",
    "base/service.yaml",
    "base/network.yaml",
    "overlays/sqlite/volume.yaml",
    "secret.example.yaml",
    "agent/agent.yaml",
)
"""Without the policy for nodes, the autoscaler and the budgets, which this server is too old for."""
SPACE = "training"
FAILURE = ["step 3 loss 2.1", "Traceback (most recent call last):", '  File "pretrain.py", line 91, in step']
FAILURE += ["RuntimeError: CUDA error: uncorrectable ECC error encountered"]
KERNEL = "NVRM: Xid (PCI:0000:1b:00): 95, pid=4711, name=python, Uncontained: LTC TAG (0x2,0x0)."
STALL = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88, OpType=ALLREDUCE, Timeout(ms)=600000) ran"
CHECK_SPACE = "diagnoser-check"
MARKS = ("diagnoser.io/plan", "diagnoser.io/reason", "diagnoser.io/by")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With the manifests applied, in the namespaces that the overlay for SQLite puts them in."""
    if why := real.missing():
        pytest.skip(f"needs a real Kubernetes: {why}")
    with real.running(tmp_path_factory.mktemp("kubernetes")) as found:
        apply_manifests(found)
        yield found


def apply_manifests(cluster: Cluster) -> None:
    """Make what ``kubectl apply -k`` makes, and the namespace of the workloads."""
    assert cluster.ask("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}}).status_code == 201
    for name in APPLIED:
        for item in yaml.safe_load_all((MANIFESTS / name).read_text()):
            if name.startswith(("base/", "overlays/")) and item["kind"] != "Namespace":
                item["metadata"]["namespace"] = "diagnoser"  # as kustomize does
            answer = cluster.ask("POST", path_of(item), item)
            if item["kind"] == "Namespace" and answer.status_code == 409:
                continue  # the service's and the agent's is the same
            assert answer.status_code == 201, f"{name}: {answer.text}"
            assert left_out(item, answer.json()) == [], name


@pytest.fixture
def token(cluster: Cluster) -> str:
    return agent_token(cluster)


def agent_token(cluster: Cluster) -> str:
    """Make a token of the agent's own service account."""
    path = "/api/v1/namespaces/diagnoser/serviceaccounts/diagnoser-agent/token"
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = cluster.ask("POST", path, wanted)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["status"]["token"])


@pytest.fixture
def site(
    cluster: Cluster, token: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[httpx.Client, Agent]]:
    """A service that acts, and the agent as its service account, with the options that a test names. These nodes have
    no logs: tests send the lines."""
    options = getattr(request, "param", ())
    (tmp_path / "service").mkdir()
    settings = {"DIAGNOSER_RECOVERY_MODE": "act", "DIAGNOSER_EXIT_GRACE_SECONDS": "1"}
    with ExitStack() as stack:
        found = stack.enter_context(running_service(tmp_path / "service", **settings))
        client = found.start()
        config = cluster.kubeconfig(tmp_path / "kubeconfig", token)
        agent = stack.enter_context(agent_of(tmp_path, found.url, config, "--no-logs", *options, namespace=SPACE))
        agent.start()
        yield client, agent
    for name in NODES:  # after the agent's end, which may have cordoned one a moment ago
        cluster.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None}})


def job(name: str, *, prefers: str = "", **spec: Any) -> dict[str, Any]:
    """Its pods run on nodes of their own, and leave room: those of the job before give their GPUs back late.

    prefers: a node that its pods go to as long as they may.
    """
    container = {"name": "main", "image": "trainer:1", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    apart = {"labelSelector": {"matchLabels": {"name": name}}, "topologyKey": "kubernetes.io/hostname"}
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [prefers]}]}
    affinity: dict[str, Any] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    if prefers:
        affinity = {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": here}]}
        }
    pod = {"restartPolicy": "Never", "affinity": affinity, "containers": [container]}
    template = {"metadata": {"labels": {"name": name}}, "spec": pod}
    more = {"parallelism": 2, "completions": 2, "template": template, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": SPACE}, "spec": more}


def _pods(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    found = cluster.get(f"/api/v1/namespaces/{SPACE}/pods", labelSelector=f"job-name={name}")["items"]
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


def _shown(cluster: Cluster, name: str) -> list[str]:
    """For a message: each pod with its phase, reason and node, what the nodes have, and which daemons have ended."""
    shown = []
    for pod in _pods(cluster, name):
        status = pod["status"]
        reasons = [status.get("reason", ""), *(one.get("message", "") for one in status.get("conditions", ()))]
        place = pod["spec"].get("nodeName")
        shown.append(f"{pod['metadata']['name']} {status['phase']} {place} {' '.join(filter(None, reasons))}")
    for node in cluster.get("/api/v1/nodes")["items"]:
        shown.append(f"{node['metadata']['name']} {node['spec']} {node['status']['allocatable']}")
    return shown + [f"{name} has ended" for name, daemon in cluster.daemons.items() if daemon.poll() is not None]


def _running_pods(cluster: Cluster, name: str, count: int) -> list[dict[str, Any]]:
    """So many running pods, once they run."""
    try:
        found: list[dict[str, Any]] = until(lambda: _running(cluster, name, count), "the pods run")
    except AssertionError as error:
        raise AssertionError(f"{error}: {_shown(cluster, name)}") from None
    return found


def _running(cluster: Cluster, name: str, count: int) -> list[dict[str, Any]]:
    live = [pod for pod in _pods(cluster, name) if pod["status"]["phase"] == "Running"]
    return live if len(live) == count else []


def fail(cluster: Cluster, pod: dict[str, Any]) -> None:
    """What the kubelet writes when the program has ended: these pods have no programs. A pod of a Job that failed
    meanwhile by another one is gone."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    over = {"exitCode": 1, "reason": "Error", "startedAt": pod["status"]["startTime"], "finishedAt": now}
    shown = {"name": "main", "image": "trainer:1", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Failed", "containerStatuses": [{**shown, "state": {"terminated": over}}]}
    path = f"/api/v1/namespaces/{SPACE}/pods/{pod['metadata']['name']}/status"
    assert cluster.ask("PATCH", path, {"status": status}).status_code in (200, 404)


def _ended_plan(client: httpx.Client, agent: Agent, id: str) -> dict[str, Any]:
    def ended() -> list[dict[str, Any]]:
        plans = client.get("/api/v1/plans", params={"job": id}).json()["items"]
        return [one for one in plans if one["state"] in ("reached", "not_reached")]

    try:
        found: dict[str, Any] = until(ended, "the plan has ended")[0]
    except AssertionError as error:
        told = [client.get(f"/api/v1/{path}").text for path in ("plans", f"jobs/{id}")]
        raise AssertionError(f"{error}\n{told}\n{agent.log()[-4000:]}") from None
    return found


def launched(cluster: Cluster, client: httpx.Client, job: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """(its id at the service, its pods) once they run and the service knows."""
    assert cluster.ask("POST", f"/apis/batch/v1/namespaces/{SPACE}/jobs", job).status_code == 201
    name = job["metadata"]["name"]
    pods = _running_pods(cluster, name, job["spec"]["parallelism"])
    known = f"k8s:{NAME}:job:{SPACE}:{name}"
    until(lambda: client.get(f"/api/v1/jobs/{known}").json().get("attempts"), "the job is known")
    return known, pods


def _break(cluster: Cluster, client: httpx.Client, known: str, pod: dict[str, Any]) -> None:
    node = pod["spec"]["nodeName"]
    _send(client, [KERNEL], source="kernel", cluster=NAME, node=node)
    _send(client, FAILURE, job=known, node=node, offset=0)
    fail(cluster, pod)


def _send(client: httpx.Client, lines: list[str], **query: Any) -> None:
    body = "".join(f"{line}\n" for line in lines)
    answer = client.post("/api/v1/logs", params=query, content=body, headers={"content-type": "text/plain"})
    assert answer.status_code == 204, answer.text


def test_a_failed_job_comes_back_on_other_nodes(cluster: Cluster, site: tuple[httpx.Client, Agent]) -> None:
    """Found, diagnosed, the node cordoned with our marks, the Job made anew elsewhere, and the node given back."""
    client, agent = site
    known, pods = launched(cluster, client, job("llama", backoffLimit=0))
    bad = pods[0]["spec"]["nodeName"]
    _break(cluster, client, known, pods[0])
    plan = _ended_plan(client, agent, known)
    assert (plan["state"], plan["action"], plan["nodes"], plan["drained"]) == (
        "reached",
        "cordon_and_resubmit",
        [bad],
        [bad],
    )
    node = cluster.node(bad)
    assert node["spec"]["unschedulable"] is True
    assert node["metadata"]["annotations"][MARKS[0]] == plan["id"]
    assert node["metadata"]["annotations"][MARKS[1]] == f"diagnoser {plan['id']}: ecc_error"
    again = _running_pods(cluster, "llama", 2)
    assert bad not in {pod["spec"]["nodeName"] for pod in again}
    assert not {pod["metadata"]["uid"] for pod in again} & {pod["metadata"]["uid"] for pod in pods}
    events = client.get(f"/api/v1/jobs/{known}").json()["attempts"][0]["events"]
    ends = {(one["kind"], one["code"], one["node"]) for one in events}  # both may be of one second
    assert ends == {("started", None, ""), ("exit", 1, bad)} and len(events) == 2
    until(lambda: len(client.get(f"/api/v1/jobs/{known}").json()["attempts"]) == 2, "the second launch is known")
    configs = cluster.get(f"/api/v1/namespaces/{SPACE}/configmaps")["items"]
    assert not [one for one in configs if one["metadata"]["name"].startswith("diagnoser-")]
    cluster.ask("PATCH", f"/api/v1/nodes/{bad}", {"spec": {"unschedulable": None}})
    until(lambda: not set(MARKS) & set(cluster.node(bad)["metadata"]["annotations"]), "our marks are taken off")
    cluster.ask("DELETE", f"/apis/batch/v1/namespaces/{SPACE}/jobs/llama", {"propagationPolicy": "Background"})


def test_a_pod_that_its_job_replaced_leaves_the_bad_node(cluster: Cluster, site: tuple[httpx.Client, Agent]) -> None:
    """The Job's controller was faster than the plan: the replacement is evicted, and comes back elsewhere."""
    client, agent = site
    client.post("/api/v1/jobs", json={"id": "other", "cluster": NAME, "nodes": NODES})  # for the breaker to know them
    bad = NODES[0]
    qwen = job("qwen", prefers=bad, parallelism=1, completions=1, backoffLimit=6)
    known, [first] = launched(cluster, client, qwen)
    assert first["spec"]["nodeName"] == bad
    agent.end()
    time.sleep(1)  # times are of whole seconds: a pod that failed in the one of its creation may be of the same launch
    fail(cluster, first)
    [second] = _running_pods(cluster, "qwen", 1)
    assert second["spec"]["nodeName"] == bad
    _send(client, [KERNEL], source="kernel", cluster=NAME, node=bad)
    _send(client, FAILURE, job=known, attempt=1, node=bad, offset=0)
    agent.start()
    plan = _ended_plan(client, agent, known)
    assert (plan["state"], plan["attempt"], plan["nodes"]) == ("reached", 1, [bad]), str(plan)
    commands = [step["command"] for step in plan["steps"]]
    assert [("PATCH" in one, "/eviction" in one) for one in commands][:2] == [(True, False), (False, True)]
    until(
        lambda: {pod["spec"]["nodeName"] for pod in _running(cluster, "qwen", 1)} - {bad, ""}, "it runs elsewhere", 60
    )
    cluster.ask("DELETE", f"/apis/batch/v1/namespaces/{SPACE}/jobs/qwen", {"propagationPolicy": "Background"})


CHECKED = ("--check", str(PROGRAM), "--check-image", "registry.example/check:1")


@pytest.mark.parametrize("site", [CHECKED], indirect=True)
def test_the_check_runs_in_a_namespace_of_its_own(cluster: Cluster, site: tuple[httpx.Client, Agent]) -> None:
    """Its pods are made with the rights of the manifests and placed by the scheduler, one on each node of the held job;
    that all pass launches the job again, and none of them is left."""
    client, agent = site
    known, pods = launched(cluster, client, job("stalled", parallelism=3, completions=3, backoffLimit=0))
    stalls = [f"[rank{rank}]:[E1121 09:14:00.118 ProcessGroupNCCL.cpp:616] [Rank {rank}] {STALL}" for rank in range(3)]
    _send(client, stalls, job=known, offset=0)
    for pod in pods:
        fail(cluster, pod)
    path = f"/api/v1/namespaces/{CHECK_SPACE}/pods"

    def running() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = cluster.get(path)["items"]
        return items if len(items) == 3 and {item["status"]["phase"] for item in items} == {"Running"} else []

    try:
        checking = until(running, "the pods of the check run")
    except AssertionError as error:
        shown = json.dumps(cluster.get(path)["items"])
        raise AssertionError(f"{error}\n{client.get('/api/v1/plans').text}\n{shown}\n{agent.log()[-4000:]}") from None
    assert {pod["spec"]["nodeName"] for pod in checking} == set(NODES)
    assert {pod["spec"]["containers"][0]["image"] for pod in checking} == {"registry.example/check:1"}
    assert {pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in checking} == {"2"}
    for pod in checking:
        answer = cluster.ask("PATCH", f"{path}/{pod['metadata']['name']}/status", {"status": {"phase": "Succeeded"}})
        assert answer.status_code == 200, answer.text
    plan = _ended_plan(client, agent, known)
    assert (plan["state"], plan["action"], plan["nodes"]) == ("reached", "check_and_resubmit", []), plan
    assert "all passed" in plan["history"][-1]["why"]
    assert not {pod["metadata"]["uid"] for pod in _running_pods(cluster, "stalled", 3)} & {
        pod["metadata"]["uid"] for pod in pods
    }
    until(lambda: cluster.get(path)["items"] == [], "the pods of the check are gone")
    cluster.ask("DELETE", f"/apis/batch/v1/namespaces/{SPACE}/jobs/stalled", {"propagationPolicy": "Background"})


def test_a_node_that_dies_is_told(cluster: Cluster, site: tuple[httpx.Client, Agent]) -> None:
    """Its kubelet is killed: NotReady is an event of the node, and the launch on it ends as NODE_FAIL."""
    client, agent = site
    known, pods = launched(cluster, client, job("solo", parallelism=1, completions=1, backoffLimit=0))
    bad = pods[0]["spec"]["nodeName"]
    cluster.end_node(bad)
    until(lambda: [one for one in client.get("/api/v1/nodes").json() if one["node"] == bad], "the node is told")
    path = f"/api/v1/namespaces/{SPACE}/pods/{pods[0]['metadata']['name']}"
    cluster.ask("DELETE", path, {"gracePeriodSeconds": 30})  # what the cluster itself does after its toleration

    def ends() -> list[dict[str, Any]]:
        attempts = client.get(f"/api/v1/jobs/{known}").json()["attempts"]
        return [one for one in attempts[0]["events"] if one["kind"] != "started"]

    [end] = until(ends, "the end is told")
    assert (end["kind"], end["reason"], end["node"]) == ("exit", "NODE_FAIL", bad)
    assert "node_event_refused" not in agent.log()
    cluster.start_node(bad)
    cluster.ask("DELETE", f"/apis/batch/v1/namespaces/{SPACE}/jobs/solo", {"propagationPolicy": "Background"})


def test_the_manifests_give_no_more_than_is_needed(cluster: Cluster, token: str) -> None:
    """What the agent never does is refused: other namespaces, secrets, deleting nodes, changing roles."""
    refused = [
        ("GET", "/api/v1/secrets"),
        ("GET", f"/api/v1/namespaces/{SPACE}/secrets"),
        ("GET", "/apis/batch/v1/namespaces/default/jobs"),
        ("GET", f"/api/v1/namespaces/{SPACE}/configmaps"),
        ("DELETE", "/api/v1/nodes/gpu-01"),
        ("DELETE", "/apis/batch/v1/namespaces/default/jobs/x"),
        ("POST", "/api/v1/namespaces/default/pods"),
        ("POST", "/api/v1/namespaces/diagnoser/pods"),
        ("GET", "/api/v1/namespaces/diagnoser-check/secrets"),
        ("POST", f"/apis/apps/v1/namespaces/{SPACE}/deployments"),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    ]
    with cluster.client(token) as client:
        codes = {one: client.request(*one, content=b"{}").status_code for one in refused}
        assert set(codes.values()) == {403}, codes
        assert client.get(f"/apis/batch/v1/namespaces/{SPACE}/jobs").status_code == 200


def test_a_role_without_the_right_to_cordon_ends_the_plan(cluster: Cluster, site: tuple[httpx.Client, Agent]) -> None:
    """A 403 of the real server is on the plan, word for word, and the Job is as it was."""
    client, agent = site
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/diagnoser-agent-nodes"
    rules = cluster.get(path)["rules"]
    less = [{**rules[0], "verbs": ["get", "list", "watch"]}]
    assert cluster.ask("PATCH", path, {"rules": less}).status_code == 200
    try:
        known, pods = launched(cluster, client, job("denied", backoffLimit=0))
        _break(cluster, client, known, pods[0])
        plan = _ended_plan(client, agent, known)
    finally:
        cluster.ask("PATCH", path, {"rules": rules})
    assert plan["state"] == "not_reached"
    assert 'cannot patch resource "nodes"' in plan["steps"][-1]["output"]
    assert "could not be cordoned" in plan["history"][-1]["why"]
    denied = cluster.get(f"/apis/batch/v1/namespaces/{SPACE}/jobs/denied")
    assert MARKS[0] not in (denied["metadata"].get("annotations") or {})
