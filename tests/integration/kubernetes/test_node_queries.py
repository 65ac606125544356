"""Suspected nodes are asked by pods, against a double of the API server; the pods' own commands run here."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from diagnoser.agent.cluster import AskResults, NodeQuestion
from diagnoser.agent.kubernetes.reconcile import COPY_KEY, copy_name
from diagnoser.agent.plan_spec import PlanSpec
from diagnoser.model.taxonomy import Action
from tests.integration.kubernetes.conftest import NAME, NAMESPACE, cluster_of, job
from tests.integration.kubernetes.double import Object, Server

SPEC = PlanSpec("p1", Action.CHECK_AND_RESUBMIT, f"k8s:{NAME}:job:{NAMESPACE}:llama", 1)
IMAGE = "registry.example/tools:1"


@pytest.fixture
def pods(server: Server) -> list[Object]:
    """The pods that were asked for. Each runs its command here, and its log is what that prints."""
    asked: list[Object] = []

    def run(pod: Object) -> None:
        asked.append(pod)
        words = [word.replace("$$(", "$(") for word in pod["spec"]["containers"][0]["command"]]
        assert words[0] == "python3"
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, timeout=60, check=True)
        server.state.logs[pod["metadata"]["name"]] = done.stdout.splitlines()
        server.state.put("pods", {**pod, "status": {"phase": "Succeeded"}})

    server.state.on_pod = run
    held = job("llama")
    copy = {"name": copy_name(SPEC), "namespace": NAMESPACE}
    server.state.put("configmaps", {"metadata": copy, "data": {COPY_KEY: json.dumps(held)}})
    return asked


async def ask(server: Server, *questions: NodeQuestion, image: str = IMAGE) -> AskResults:
    async with cluster_of(server, query_image=image) as cluster:
        assert cluster.can_ask is bool(image)
        return await cluster.ask(SPEC, questions)


def question(node: str, id: str, *argv: str) -> NodeQuestion:
    return NodeQuestion(node, id, argv, 20.0)


async def test_each_node_is_asked_by_one_pod_of_the_operator_s_image(server: Server, pods: list[Object]) -> None:
    """With the workload's devices and without its image, environment or token; all pods are gone afterwards."""
    first, missing = question("gpu-01", "a", "echo", "$(HOSTNAME) 3"), question("gpu-01", "b", "no-such-program")
    results = await ask(server, first, missing, question("gpu-02", "a", "echo", "0"), question("gpu-09", "a", "echo"))
    said = {(answer["node"], answer["id"]): (answer["exit_code"], answer["output"]) for answer in results.answers}
    assert said == {
        ("gpu-01", "a"): (0, "$(HOSTNAME) 3\n"),
        ("gpu-01", "b"): (None, "no-such-program: No such file or directory"),
        ("gpu-02", "a"): (0, "0\n"),
        ("gpu-09", "a"): (None, "gpu-09 is down"),
    }
    assert len(pods) == 2
    container = pods[0]["spec"]["containers"][0]
    assert (container["image"], container["resources"]) == (IMAGE, {"limits": {"nvidia.com/gpu": "1"}})
    assert "env" not in container and "hostNetwork" not in pods[0]["spec"]
    assert pods[0]["spec"]["automountServiceAccountToken"] is False
    assert {pod["metadata"]["namespace"] for pod in pods} == {"diagnoser-check"}, "tenants have no rights there"
    assert [key for key in server.state.objects if key[0] == "pods"] == []


async def test_a_pod_that_may_not_be_made_is_no_fault_of_the_node(server: Server, pods: list[Object]) -> None:
    """What cannot be read is answered as such."""
    server.state.refused["POST", "pods"] = 403
    (answer,) = (await ask(server, replace(question("gpu-01", "a"), argv=("echo",)))).answers
    assert (answer["exit_code"], "could not be started" in answer["output"]) == (None, True)
    assert pods == []


async def test_without_an_image_no_node_is_asked(server: Server, pods: list[Object]) -> None:
    """An image of the workload would say what the job wants."""
    assert (await ask(server, image="")).answers == []
    assert pods == []
