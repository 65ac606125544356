"""The manifests of Kubernetes as kustomize and Helm make them: valid, the same, and with no more rights than needed."""

import json
import re
import shutil
import subprocess
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from diagnoser.agent.kubernetes.batch_jobs import JobSettings, batch_job, clean_job
from diagnoser.evaluations.weights import CopyLimits
from diagnoser.model.evaluations import BatchKind
from diagnoser.ports import Order
from tests.environments import MANIFESTS

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
KUBERNETES, CHART = DEPLOY / "kubernetes", DEPLOY / "helm" / "diagnoser"
KUSTOMIZE, KUBECTL = shutil.which("kustomize"), shutil.which("kubectl")
RENDER = [KUSTOMIZE, "build"] if KUSTOMIZE else [KUBECTL, "kustomize"]
VERSIONS = ("1.31.0", "1.37.0")
Object = dict[str, Any]

needs_kustomize = pytest.mark.skipif(not (KUSTOMIZE or KUBECTL), reason="neither kustomize nor kubectl is installed")
needs_tools = pytest.mark.skipif(bool(MANIFESTS.missing), reason=MANIFESTS.missing)


@cache
def _kustomized(folder: Path) -> str:
    assert RENDER[0]
    return subprocess.run([*RENDER, str(folder)], check=True, capture_output=True, text=True).stdout


def kustomized(folder: Path) -> list[Object]:
    """Without the hash behind the name of what it generates."""
    text = _kustomized(folder)
    for name in re.findall(r"kind: ConfigMap\nmetadata:\n  name: (\S+)", text):
        text = text.replace(name, name.rpartition("-")[0])
    return list(yaml.safe_load_all(text))


def _chart(values: str) -> Object:
    """What ``tests/helm_chart.py`` says of the chart with these values, which are JSON."""
    together = known_values()
    return _charts(together)[together.index(values)] if values in together else _charts((values,))[0]


@cache
def _charts(values: tuple[str, ...]) -> list[Object]:
    """The same of several: Helm is loaded once for them."""
    given = f'{{"chart": {json.dumps(str(CHART))}, "values": [{", ".join(values)}]}}'
    found: list[Object] = json.loads(_program("helm_chart.py", given))
    return found


def templated(**values: Any) -> list[Object]:
    """The objects of a release in which ``values`` take the place of the chart's own, level by level."""
    return [item for item in yaml.safe_load_all(_chart(json.dumps(values))["documents"]) if item]


def _program(name: str, given: str) -> str:
    command = [str(MANIFESTS.python), str(Path(__file__).parents[1] / name)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def with_component(folder: Path, base: str, component: str) -> Path:
    """A kustomization of ours with one component beside."""
    tree = folder / "kubernetes"
    shutil.copytree(KUBERNETES, tree)
    (tree / "site").mkdir()
    found = {"resources": [f"../{base}"], "components": [f"../components/{component}"]}
    (tree / "site" / "kustomization.yaml").write_text(yaml.safe_dump(found))
    return tree / "site"


def check_schema(items: list[Object], folder: Path) -> None:
    """Against the schemas of the API, in which an unknown field is a fault."""
    path = folder / "objects.yaml"
    path.write_text(yaml.safe_dump_all(item for item in items if item["kind"] != "PodMonitor"))  # not the API's own
    versions = [word for version in VERSIONS for word in ("-k", version)]
    command = [str(MANIFESTS.python), "-m", "kubernetes_validate", "--strict", *versions, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def essence(items: list[Object]) -> dict[tuple[str, str, str], Object]:
    """What an object does, by kind, namespace and name: without the notes that a tool leaves on it."""
    found = {}
    for item in deepcopy(items):
        meta = item["metadata"]
        key = item["kind"], meta.get("namespace", ""), meta["name"]
        if key == ("Namespace", "", "diagnoser"):
            continue  # `helm install --create-namespace` makes it
        pod = item.get("spec", {}).get("template", {})
        if pod:
            _plain(pod["metadata"])
            for container in pod["spec"]["containers"]:
                container.pop("imagePullPolicy", None)
        _plain(meta)
        del meta["labels"]
        found[key] = item
    return found


def _plain(meta: Object) -> None:
    kept = ("app.kubernetes.io/name", "app.kubernetes.io/component")
    meta["labels"] = {name: value for name, value in meta.get("labels", {}).items() if name in kept}
    notes = meta.pop("annotations", {})
    meta["notes"] = {name: value for name, value in notes.items() if "helm.sh" not in name and "checksum" not in name}


POSTGRES = {"service": {"database": "postgresql"}}
AGENT = {"agent": {"enabled": True}}
ALONE = {"service": {"enabled": False}}
PAIRS: dict[str, tuple[list[str], Object]] = {
    "sqlite": (["overlays/sqlite"], {}),
    "postgres": (["overlays/postgres"], POSTGRES),
    "agent": (["agent"], ALONE | AGENT),
    "all": (["overlays/postgres", "agent"], POSTGRES | AGENT),
}
VARIANTS: dict[str, Object] = {
    "defaults": {},
    "all": POSTGRES | AGENT,
    "without Redis": {
        "service": {"database": "postgresql", "redis": False},
        "secretSettings": ["llm-api-key"],
        "networkPolicy": {"enabled": False},
    },
    "ingress": {
        "ingress": {"enabled": True},
        "service": {"storage": {"storageClass": "fast"}},
        "imagePullSecrets": [{"name": "registry"}],
    },
    "pod monitor": {"podMonitor": {"enabled": True, "labels": {"release": "kube-prometheus-stack"}}},
    "agent alone": {
        **ALONE,
        "agent": {
            "enabled": True,
            "server": "https://diagnoser.example",
            "namespaces": ["training", "research"],
            "collectEvidence": True,
            "checkImage": "torch:1",
            "nodeQueryImage": "tools:1",
            "extraArgs": ["--dumps=/dumps/{job}/*"],
            "nodePolicy": {"nodeLabels": {"pool": "gpu"}},
        },
    },
}
MEANINGLESS: list[Object] = [
    {"sevice": {"enabled": True}},
    {"settings": {"DIAGNOSER_TOKENS": "admin:x"}},
    {"settings": {"DIAGNOSER_DATABASE_URL": "x"}},
    {"settings": {"DIAGNOSER_PORT": 8321}},
    {"image": {"tag": "latest"}},
    {"service": {"database": "mysql"}},
    {"agent": {"namespaces": []}},
    {"podMonitor": {"labels": ["release"]}},
    {"secretSettings": ["llm_api_key"]},
]


@cache
def known_values() -> tuple[str, ...]:
    """Of the chart, in more than one test or beside others in one."""
    return tuple(map(json.dumps, (*VARIANTS.values(), *MEANINGLESS, ALONE | AGENT, POSTGRES)))


@needs_kustomize
@needs_tools
@pytest.mark.parametrize("name", PAIRS)
def test_the_chart_and_the_overlays_are_the_same(name: str) -> None:
    """Every object of the one is in the other, with the same fields; only labels of the tools differ."""
    folders, values = PAIRS[name]
    ours = essence([item for folder in folders for item in kustomized(KUBERNETES / folder)])
    charts = essence(templated(**values))
    assert sorted(ours) == sorted(charts)
    for key, item in ours.items():
        assert item == charts[key], key


@needs_kustomize
@needs_tools
@pytest.mark.parametrize("folder", ["overlays/sqlite", "overlays/postgres", "agent", "trials"])
def test_the_api_knows_every_field_of_the_overlays(folder: str, tmp_path: Path) -> None:
    """In the oldest version that is still maintained and in the newest one."""
    check_schema(kustomized(KUBERNETES / folder), tmp_path)


@needs_kustomize
@needs_tools
@pytest.mark.parametrize(
    ("base", "component", "kind"),
    [
        ("overlays/sqlite", "ingress", "Ingress"),
        ("overlays/postgres", "ingress", "Ingress"),
        ("agent", "evidence", "Role"),
    ],
)
def test_components_go_beside_an_overlay(base: str, component: str, kind: str, tmp_path: Path) -> None:
    """As their first lines say; the settings of the ingress take the place of the base's."""
    items = kustomized(with_component(tmp_path, base, component))
    check_schema(items, tmp_path)
    spaces = [item["metadata"]["namespace"] for item in items if item["kind"] == kind]
    assert ("training" if kind == "Role" else "diagnoser") in spaces
    if component == "ingress":
        [settings] = [item["data"] for item in items if item["kind"] == "ConfigMap"]
        charts = next(item["data"] for item in templated(ingress={"enabled": True}) if item["kind"] == "ConfigMap")
        assert settings["DIAGNOSER_BASE_URL"] == charts["DIAGNOSER_BASE_URL"] == "https://diagnoser.example"


@needs_kustomize
@needs_tools
@pytest.mark.parametrize(("base", "values"), [("overlays/sqlite", {}), ("overlays/postgres", POSTGRES)])
def test_a_pod_monitor_scrapes_each_pod_of_the_service(base: str, values: Object, tmp_path: Path) -> None:
    """Of the API and of the worker, and of nothing else; with a token of the Secret, as the job of the alerts."""
    items = kustomized(with_component(tmp_path, base, "monitoring"))
    ours, charts = essence(items), essence(templated(**values | {"podMonitor": {"enabled": True}}))
    assert ours == charts
    spec = ours["PodMonitor", "diagnoser", "diagnoser"]["spec"]
    [endpoint] = spec["podMetricsEndpoints"]
    [expression] = spec["selector"]["matchExpressions"]
    selected = spec["selector"]["matchLabels"].items()
    for (kind, _, name), item in ours.items():
        if kind in ("Deployment", "Job"):
            labels, [container] = (
                item["spec"]["template"]["metadata"]["labels"],
                item["spec"]["template"]["spec"]["containers"],
            )
            is_scraped = selected <= labels.items() and labels[expression["key"]] in expression["values"]
            assert is_scraped == (endpoint["port"] in [port["name"] for port in container.get("ports", [])]), name
            assert is_scraped == (kind == "Deployment"), name
    alerts = (DEPLOY / "prometheus" / "rules.yml").read_text()
    assert {"targetLabel": "job", "replacement": "diagnoser"} in endpoint["relabelings"]
    assert 'job="diagnoser"' in alerts
    assert endpoint["authorization"]["credentials"]["key"] in (KUBERNETES / "secret.example.yaml").read_text()


@needs_tools
@pytest.mark.parametrize("name", VARIANTS)
def test_the_chart_renders_what_the_api_knows(name: str, tmp_path: Path) -> None:
    """With the options that change what is rendered; and `helm lint --strict` finds no fault."""
    found = _chart(json.dumps(VARIANTS[name]))
    assert found["lint"] == []
    check_schema([item for item in yaml.safe_load_all(found["documents"]) if item], tmp_path)


@needs_tools
@pytest.mark.parametrize("values", MEANINGLESS, ids=json.dumps)
def test_the_chart_refuses_values_that_mean_nothing_or_give_a_secret_away(values: Object) -> None:
    """Before anything is installed."""
    assert "refused" in _chart(json.dumps(values))


@needs_tools
def test_secrets_of_the_chart_are_files_from_the_one_secret() -> None:
    """A key more is a file and the setting that names it; nothing of it is in the ConfigMap but the path."""
    items = essence(templated(secretSettings=["llm-api-key", "slack-token"]))
    settings = items["ConfigMap", "diagnoser", "diagnoser"]["data"]
    assert settings["DIAGNOSER_LLM_API_KEY_FILE"] == "/etc/diagnoser/llm-api-key"
    pod = items["Deployment", "diagnoser", "diagnoser"]["spec"]["template"]["spec"]
    [files] = [one["secret"]["items"] for one in pod["volumes"] if "secret" in one]
    assert [one["key"] for one in files] == ["tokens", "llm-api-key", "slack-token"]
    assert "Secret" not in [kind for kind, _, _ in items]


@needs_tools
def test_the_notes_say_how_to_make_the_secret_that_the_pods_wait_for() -> None:
    """With each key that these values need."""
    keys = {"tokens", "agent-token", "database-url", "redis-url"}
    notes = _chart(json.dumps(POSTGRES))["notes"]
    assert set(re.findall(r"--from-literal=([\w-]+)", notes)) == keys
    assert set(re.findall(r"--from-literal=([\w-]+)", _chart("{}")["notes"])) == {"tokens", "agent-token"}
    monitored = _chart('{"podMonitor": {"enabled": true}}')["notes"]
    assert "read:$metrics --from-literal=metrics-token=$metrics" in monitored


@needs_kustomize
def test_no_object_has_a_secret_in_it() -> None:
    """Settings are paths and addresses; the Secret is made by a person, and the pods mount it."""
    for folder in ("overlays/sqlite", "overlays/postgres", "agent"):
        items = kustomized(KUBERNETES / folder)
        assert "Secret" not in [item["kind"] for item in items]
        for item in items:
            if item["kind"] == "ConfigMap":
                secret = [name for name in item["data"] if re.search("TOKEN|SECRET|KEY|PASSWORD|_URL$", name)]
                assert [name for name in secret if not name.endswith(("_FILE", "BASE_URL"))] == []


@needs_tools
def test_the_api_knows_every_field_of_the_jobs_of_evaluations(tmp_path: Path) -> None:
    """Of inference, scoring and cleaning up, with claims, paths of the nodes and a queue."""
    order = Order("r1-b1", BatchKind.INFER, "gpu-01", 0, 2, "/ckpt", "/runs/b1", "/suite", ())
    settings = JobSettings("eval:1", 1000, 1000, {"/runs": "runs", "/ckpt": ""}, queue="eval", memory_folder="/dev/shm")
    copies = CopyLimits("/mnt/memory/copies")
    jobs = [
        batch_job(order, order.folder, settings, copies),
        batch_job(replace(order, batch="r1-b2", kind=BatchKind.SCORE), order.folder, settings, copies),
        clean_job("gpu-01", ["/ckpt"], settings, copies),
    ]
    jobs[-1]["metadata"]["name"] = "made-by-the-server"  # the tool wants one; the server makes it of generateName
    check_schema(jobs, tmp_path)


AGENT_USER = "system:serviceaccount:diagnoser:diagnoser-agent"
NODE: Object = {
    "metadata": {"name": "gpu-01", "labels": {"pool": "gpu"}, "annotations": {"site/rack": "7"}},
    "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]},
}
CORDONED: Object = {
    "metadata": {**NODE["metadata"], "annotations": {"site/rack": "7", "diagnoser.io/plan": "p"}},
    "spec": {**NODE["spec"], "unschedulable": True},
}


def _changed(node: Object, part: str, **fields: Any) -> Object:
    return {**node, part: {**node[part], **fields}}


CHANGES: dict[str, tuple[Object, Object, str]] = {
    "cordon": (NODE, CORDONED, ""),
    "uncordon": (CORDONED, NODE, ""),
    "bare": ({"metadata": {"name": "n"}, "spec": {}}, {"metadata": {"name": "n"}, "spec": {"unschedulable": True}}, ""),
    "label": (NODE, _changed(CORDONED, "metadata", labels={"pool": "cpu"}), "labels"),
    "taint": (NODE, _changed(CORDONED, "spec", taints=[]), "taints"),
    "owner": (NODE, _changed(CORDONED, "metadata", ownerReferences=[{"uid": "gone"}]), "owners"),
    "annotation": (NODE, _changed(CORDONED, "metadata", annotations={"site/rack": "8"}), "annotations"),
    "annotation removed": (NODE, _changed(CORDONED, "metadata", annotations={}), "annotations"),
    "control plane": (
        _changed(NODE, "metadata", labels={"node-role.kubernetes.io/control-plane": ""}),
        _changed(CORDONED, "metadata", labels={"node-role.kubernetes.io/control-plane": ""}),
        "control plane",
    ),
    "kept by the site": (
        _changed(NODE, "metadata", labels={"diagnoser.io/cordon": "false"}),
        _changed(CORDONED, "metadata", labels={"diagnoser.io/cordon": "false"}),
        "diagnoser.io/cordon",
    ),
}


def _refusals(policy: Object, user: str = AGENT_USER) -> dict[str, list[str]]:
    """Name of each change -> messages."""
    requests = [{"user": user, "before": before, "after": after} for before, after, _ in CHANGES.values()]
    told = _program("node_policy.py", json.dumps({"policy": policy, "requests": requests}))
    return dict(zip(CHANGES, json.loads(told), strict=True))


@needs_tools
def test_the_agent_may_cordon_and_change_nothing_else_of_a_node() -> None:
    """By the policy's own expressions; other users are none of its business."""
    policy = next(iter(yaml.safe_load_all((KUBERNETES / "agent" / "node-policy.yaml").read_text())))
    for name, messages in _refusals(policy).items():
        wanted = CHANGES[name][2]
        assert (len(messages) == 1 and wanted in messages[0]) if wanted else messages == [], (name, messages)
    assert all(messages == [] for messages in _refusals(policy, "system:node:gpu-01").values())


@needs_tools
def test_the_chart_can_keep_the_agent_to_a_pool_of_nodes() -> None:
    """By labels of the nodes, which it cannot change itself."""
    items = templated(agent={"enabled": True, "nodePolicy": {"nodeLabels": {"pool": "gpu"}}})
    [policy] = [item for item in items if item["kind"] == "ValidatingAdmissionPolicy"]
    messages = _refusals(policy)
    assert messages["cordon"] == []
    assert messages["bare"] == ["this node is not labelled pool=gpu"]
