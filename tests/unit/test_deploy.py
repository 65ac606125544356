"""What lies in deploy/ agrees with the code."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from diagnoser.agent.cli import agent_cli
from diagnoser.config.settings import FILE, FROM_FILES, PREFIX, SECRETS, Settings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
CHART = DEPLOY / "helm" / "diagnoser"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
NAMES = {PREFIX + name.upper() for name in Settings.model_fields} | {
    PREFIX + name.upper() + FILE for name in FROM_FILES
}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OTHERS = {"postgres", "redis", "prometheus", "alertmanager", "grafana", "vllm"}

each_service = pytest.mark.parametrize("name", COMPOSE["services"])


@pytest.mark.parametrize(
    "path",
    [
        ROOT / "docker-compose.yml",
        DOCKERFILE,
        DEPLOY / "systemd" / "diagnoser.service",
        CHART / "values.yaml",
        *sorted(KUBERNETES.rglob("kustomization.yaml")),
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_only_settings_that_exist_are_used(path: Path) -> None:
    """A name that does not exist would stop the service at its start."""
    assert set(re.findall(r"\bDIAGNOSER_[A-Z_]+", path.read_text())) <= NAMES


def test_compose_starts_the_whole_service() -> None:
    """API and worker of this checkout, and beside them what they need, what watches them, and a model on request."""
    services = COMPOSE["services"]
    assert set(services) == {"diagnoser", "worker", *OTHERS}
    for name, role in (("diagnoser", "api"), ("worker", "worker")):
        assert services[name]["command"] == ["serve", f"--role={role}"]
        assert (ROOT / services[name]["build"]["dockerfile"]).is_file()
    assert [name for name, service in services.items() if service.get("profiles")] == ["vllm"]


@each_service
def test_a_composed_container_can_do_no_more_than_it_must(name: str) -> None:
    """A root file system that cannot be written, no capabilities, none to be gained, and limits on all of it."""
    service = COMPOSE["services"][name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "cpus", "pids_limit", "restart", "logging"} <= set(service)
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc"} & set(service)
    assert "healthcheck" in service or "HEALTHCHECK" in DOCKERFILE.read_text()


@each_service
def test_a_composed_image_has_an_exact_version(name: str) -> None:
    """As a machine that is set up next year gets it."""
    image = COMPOSE["services"][name]["image"]
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+(\.\d+)?(-\w+)?", image), image
    assert name in OTHERS or image == f"diagnoser:{VERSION}"


def test_compose_publishes_on_loopback_only() -> None:
    """No port of any part is open to the world, and the two with the data have none."""
    services = COMPOSE["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    for name in ("postgres", "redis"):
        assert (services[name]["networks"], "ports" in services[name]) == (["data"], False)
    assert COMPOSE["networks"]["data"]["internal"] is True


@pytest.mark.parametrize(
    "path",
    [
        ROOT / "docker-compose.yml",
        DEPLOY / "nginx" / "diagnoser.conf",
        KUBERNETES / "components" / "ingress" / "kustomization.yaml",
        CHART / "values.yaml",
        CHART / "templates" / "NOTES.txt",
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_whoever_puts_a_proxy_before_it_reads_that_it_must_be_named(path: Path) -> None:
    """By the one setting that there is for it: uvicorn's own variable is not read."""
    text = path.read_text()
    assert "DIAGNOSER_TRUSTED_PROXIES" in text
    assert "FORWARDED_ALLOW_IPS" not in text


def test_compose_has_no_secret_in_itself() -> None:
    """Each comes from a file that secrets.sh makes and git ignores, or from .env."""
    made = set(re.findall(r"^keep ([\w-]+)", (DEPLOY / "compose" / "secrets.sh").read_text(), re.M))
    files = {Path(secret["file"]) for secret in COMPOSE["secrets"].values()}
    assert {file.name for file in files} <= made
    assert {str(file.parent) + "/" for file in files} <= set((ROOT / ".gitignore").read_text().split())
    assert {str(file.parent) for file in files} <= set((ROOT / ".dockerignore").read_text().split())
    for service in COMPOSE["services"].values():
        secret = {f"{PREFIX}{name.upper()}" for name in SECRETS - {"redis_url"}}
        given = {name: value for name, value in service.get("environment", {}).items() if name in secret}
        assert all(re.fullmatch(r"\$\{\w+:-\}", value) for value in given.values())
        assert {secret if isinstance(secret, str) else "" for secret in service.get("secrets", ())} <= set(
            COMPOSE["secrets"]
        )


def test_the_image_copies_what_exists() -> None:
    """Every source of a COPY lies in the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.M)
    assert all((ROOT / name).exists() for line in lines for name in line.split())


def test_the_image_has_a_base_of_one_version_and_no_root() -> None:
    """Two stages of the same base, so that the environment of the first one runs in the second."""
    text = DOCKERFILE.read_text()
    assert re.search(r"^ARG BASE=python:3\.11\.\d+-slim-\w+$", text, re.M)
    assert re.findall(r"^FROM (\S+)", text, re.M) == ["${BUILD_BASE}", "${BASE}"]
    assert "ARG BUILD_BASE=${BASE}" in text
    assert re.findall(r"^USER (\S+)", text, re.M) == ["10001:10001"]


def manifests() -> Iterator[dict[str, Any]]:
    """The objects as they are written, before an overlay changes them."""
    for path in sorted(KUBERNETES.rglob("*.yaml")):
        for item in yaml.safe_load_all(path.read_text()):
            if item["apiVersion"].partition("/")[0] != "kustomize.config.k8s.io":
                yield item


def pods() -> list[tuple[str, dict[str, Any]]]:
    """Name and pod of each Deployment and Job; not the patches of overlays, which have no image."""
    found = [item for item in manifests() if item["kind"] in ("Deployment", "Job")]
    whole = [item for item in found if "image" in item["spec"]["template"]["spec"]["containers"][0]]
    return [(item["metadata"]["name"], item["spec"]["template"]["spec"]) for item in whole]


def test_the_pods_use_settings_that_exist() -> None:
    """A Service named diagnoser must not add variables of its own: they would read as settings, and stop the start."""
    for name, pod in pods():
        given = {one["name"] for one in pod["containers"][0].get("env", ())}
        assert given <= ({"DIAGNOSER_AGENT_TOKEN"} if name == "diagnoser-agent" else NAMES)
        assert pod["enableServiceLinks"] is False


def test_the_pods_meet_the_restricted_standard() -> None:
    """Which their namespace enforces: not root, nothing to gain, and a root file system that cannot be written."""
    assert [name for name, _ in pods()] == ["diagnoser-agent", "diagnoser", "diagnoser-migrate", "diagnoser-worker"]
    for name, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        container = pod["containers"][0]["securityContext"]
        assert container["readOnlyRootFilesystem"] is True
        assert (container["allowPrivilegeEscalation"], container["capabilities"]) == (False, {"drop": ["ALL"]})
        assert "memory" in pod["containers"][0]["resources"]["limits"]
        assert pod.get("automountServiceAccountToken", True) is (name == "diagnoser-agent")
    for item in manifests():
        if item["kind"] == "Namespace" and item["metadata"]["name"] == "diagnoser":
            assert item["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_pods_run_this_version() -> None:
    """In the manifests, in the tags that overlays set, and in the chart."""
    assert {pod["containers"][0]["image"] for _, pod in pods()} == {f"diagnoser:{VERSION}"}
    texts = [path.read_text() for path in KUBERNETES.rglob("kustomization.yaml")]
    assert {tag for text in texts for tag in re.findall(r"newTag: ([\w.]+)", text)} == {VERSION}
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["appVersion"], chart["version"]) == (VERSION, VERSION)


def test_the_agents_pod_is_started_with_options_that_exist() -> None:
    """As the command line has them; it begins with a dry run, and the check is where the image has it."""
    first, kind, *options = dict(pods())["diagnoser-agent"]["containers"][0]["args"]
    command = typer.main.get_command(agent_cli)
    known = {name for option in command.commands[kind].params for name in option.opts}  # type: ignore[attr-defined]
    assert first == "agent"
    assert {option.partition("=")[0] for option in options} <= known
    assert "--dry-run" in options
    folder = next(option.partition("=")[2] for option in options if option.startswith("--check="))
    assert f"COPY deploy/checks {Path(folder).parent}" in DOCKERFILE.read_text()
    assert (DEPLOY / "checks" / Path(folder).name).is_file()


def test_the_agent_reaches_the_service_by_its_name_and_its_secret() -> None:
    """Port, host and keys of the manifests agree with each other."""
    [service] = [item for item in manifests() if item["kind"] == "Service"]
    [secret] = [item for item in manifests() if item["kind"] == "Secret"]
    [port] = service["spec"]["ports"]
    agent, server = dict(pods())["diagnoser-agent"], dict(pods())["diagnoser"]
    where = f"--server=http://{service['metadata']['name']}.{secret['metadata']['namespace']}:{port['port']}"
    assert where in agent["containers"][0]["args"]
    assert port["targetPort"] in [one["name"] for one in server["containers"][0]["ports"]]
    wanted = agent["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]
    assert (wanted["name"], wanted["key"] in secret["stringData"]) == (secret["metadata"]["name"], True)
    assert f"agent:{secret['stringData'][wanted['key']]}" in secret["stringData"]["tokens"]


def test_the_agent_may_do_only_what_it_does() -> None:
    """No wildcard, no secrets; what changes workloads is bound in their namespaces only; commands in containers are a
    right of a component of its own."""
    rules = {item["metadata"]["name"]: item["rules"] for item in manifests() if item["kind"] in ("Role", "ClusterRole")}
    [evidence] = rules.pop("diagnoser-agent-evidence")
    assert (evidence["resources"], evidence["verbs"]) == (["pods/exec"], ["get", "create"])
    assert "pods/exec" not in (KUBERNETES / "agent" / "agent.yaml").read_text()
    for rule in (one for some in rules.values() for one in some):
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        assert not {"secrets", "pods/exec"} & set(rule["resources"])
        assert not {"update", "deletecollection", "escalate", "bind", "impersonate"} & set(rule["verbs"])
    everywhere = [item["roleRef"]["name"] for item in manifests() if item["kind"] == "ClusterRoleBinding"]
    assert everywhere == ["diagnoser-agent-nodes", "diagnoser-trials-nodes"]
    assert [rule["resources"] for rule in rules["diagnoser-agent-nodes"]] == [["nodes"]]


def test_a_coordinator_of_evaluations_may_make_jobs_in_one_namespace_and_look_at_nodes() -> None:
    """Nothing else: it needs neither pods nor their logs."""
    rules = {item["metadata"]["name"]: item["rules"] for item in manifests() if item["kind"] in ("Role", "ClusterRole")}
    assert [(rule["resources"], rule["verbs"]) for rule in rules["diagnoser-trials"]] == [
        (["jobs"], ["create", "list", "delete"])
    ]
    assert [(rule["resources"], rule["verbs"]) for rule in rules["diagnoser-trials-nodes"]] == [
        (["nodes"], ["get", "list"])
    ]


def test_the_chart_takes_no_secret_as_a_value() -> None:
    """Each secret setting is one of its keys in the Secret, and refused among the settings of the ConfigMap."""
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    refused = set(schema["settings"]["propertyNames"]["not"]["enum"])
    assert refused == {f"{PREFIX}{name.upper()}" for name in FROM_FILES}
    keys = {name.replace("_", "-") for name in FROM_FILES - {"tokens", "database_url", "redis_url"}}
    assert set(schema["secretSettings"]["items"]["enum"]) == keys


def test_the_charts_schema_knows_every_value() -> None:
    """And no other, at every level: a mistyped name is refused."""

    def compare(values: dict[str, Any], schema: dict[str, Any], where: str) -> None:
        assert schema["additionalProperties"] is False, where
        assert set(values) <= set(schema["properties"]), where
        for name, value in values.items():
            found = schema["properties"][name]
            if isinstance(value, dict) and "properties" in found:
                compare(value, found, f"{where}.{name}")

    compare(
        yaml.safe_load((CHART / "values.yaml").read_text()),
        json.loads((CHART / "values.schema.json").read_text()),
        "values",
    )


def test_the_units_run_commands_that_exist() -> None:
    """And start with a dry run where they could change a cluster."""
    command = typer.main.get_command(agent_cli)
    [line] = re.findall(
        r"^ExecStart=(.*(?:\\\n.*)*)", (DEPLOY / "systemd" / "diagnoser-agent-slurm.service").read_text(), re.M
    )
    words = line.replace("\\\n", " ").split()
    assert words[1:3] == ["agent", "slurm"]
    known = {name for option in command.commands["slurm"].params for name in option.opts}  # type: ignore[attr-defined]
    assert {word for word in words if word.startswith("--")} <= known
    assert "--dry-run" in words
