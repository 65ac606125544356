"""What lies in deploy/ agrees with the code."""

import re
from pathlib import Path
from typing import Any

import typer
import yaml

from diagnoser.agent.cli import agent_cli
from diagnoser.config.settings import FILE, PREFIX, SECRETS, Settings

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
NAMES = {PREFIX + name.upper() for name in Settings.model_fields} | {PREFIX + name.upper() + FILE for name in SECRETS}


def test_the_container_uses_settings_that_exist() -> None:
    """A name that does not exist would stop the container at its start."""
    for path in (ROOT / "docker-compose.yml", ROOT / "deploy" / "docker" / "Dockerfile"):
        assert set(re.findall(r"\bDIAGNOSER_[A-Z_]+", path.read_text())) <= NAMES


def test_the_compose_file_publishes_on_loopback_only() -> None:
    """The service is the one of this checkout, and no port of any part is open to the world."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert (ROOT / services["diagnoser"]["build"]["dockerfile"]).is_file()
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_image_copies_what_exists() -> None:
    """Every source of a COPY lies in the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "deploy" / "docker" / "Dockerfile").read_text(), re.M)
    assert all((ROOT / name).exists() for line in lines for name in line.split())


def _manifests() -> list[dict[str, Any]]:
    return [item for path in sorted(KUBERNETES.glob("*.yaml")) for item in yaml.safe_load_all(path.read_text())]


def _pods() -> dict[str, dict[str, Any]]:
    """Name of each Deployment -> its pod."""
    found = [item for item in _manifests() if item["kind"] == "Deployment"]
    return {item["metadata"]["name"]: item["spec"]["template"]["spec"] for item in found}


def test_the_pods_use_settings_that_exist() -> None:
    """A Service named diagnoser must not add variables of its own: they would read as settings, and stop the start."""
    for name, pod in _pods().items():
        given = {one["name"] for one in pod["containers"][0].get("env", ())}
        assert given <= (NAMES if name == "diagnoser" else {"DIAGNOSER_AGENT_TOKEN"})
        assert pod["enableServiceLinks"] is False


def test_the_pods_have_no_rights_on_their_node() -> None:
    """Not root, nothing to gain, and a root file system that cannot be written."""
    for pod in _pods().values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        container = pod["containers"][0]["securityContext"]
        assert container["readOnlyRootFilesystem"] is True
        assert (container["allowPrivilegeEscalation"], container["capabilities"]) == (False, {"drop": ["ALL"]})


def test_the_agents_pod_is_started_with_options_that_exist() -> None:
    """As the command line has them; it begins with a dry run, and the check is where the image has it."""
    first, kind, *options = _pods()["diagnoser-agent"]["containers"][0]["args"]
    command = typer.main.get_command(agent_cli)
    known = {name for option in command.commands[kind].params for name in option.opts}  # type: ignore[attr-defined]
    assert first == "agent"
    assert {option.partition("=")[0] for option in options} <= known
    assert "--dry-run" in options
    folder = next(option.partition("=")[2] for option in options if option.startswith("--check="))
    assert f"COPY deploy/checks {Path(folder).parent}" in (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    assert (ROOT / "deploy" / "checks" / Path(folder).name).is_file()


def test_the_agent_reaches_the_service_by_its_name_and_its_secret() -> None:
    """Port, host and keys of the manifests agree with each other."""
    [service] = [item for item in _manifests() if item["kind"] == "Service"]
    [secret] = [item for item in _manifests() if item["kind"] == "Secret"]
    [port] = service["spec"]["ports"]
    agent, server = _pods()["diagnoser-agent"], _pods()["diagnoser"]
    where = f"--server=http://{service['metadata']['name']}.{service['metadata']['namespace']}:{port['port']}"
    assert where in agent["containers"][0]["args"]
    assert port["targetPort"] in [one["name"] for one in server["containers"][0]["ports"]]
    wanted = agent["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]
    assert (wanted["name"], wanted["key"] in secret["stringData"]) == (secret["metadata"]["name"], True)
    assert f"agent:{secret['stringData'][wanted['key']]}" in secret["stringData"]["tokens"]


def test_the_agent_may_do_only_what_it_does() -> None:
    """No wildcard, no secrets; what changes workloads is bound in their namespaces only; commands in containers are a
    right of a file of its own."""
    rules = {
        item["metadata"]["name"]: item["rules"] for item in _manifests() if item["kind"] in ("Role", "ClusterRole")
    }
    [evidence] = rules.pop("diagnoser-agent-evidence")
    assert (evidence["resources"], evidence["verbs"]) == (["pods/exec"], ["get", "create"])
    assert "pods/exec" not in (KUBERNETES / "agent.yaml").read_text()
    for rule in (one for some in rules.values() for one in some):
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        assert not {"secrets", "pods/exec"} & set(rule["resources"])
        assert not {"update", "deletecollection", "escalate", "bind", "impersonate"} & set(rule["verbs"])
    everywhere = [item["roleRef"]["name"] for item in _manifests() if item["kind"] == "ClusterRoleBinding"]
    assert everywhere == ["diagnoser-agent-nodes"]
    assert [rule["resources"] for rule in rules["diagnoser-agent-nodes"]] == [["nodes"]]
