"""What lies in deploy/ agrees with the code."""

import re
from pathlib import Path

import yaml

from diagnoser.settings import FILE, PREFIX, SECRETS, Settings

ROOT = Path(__file__).resolve().parents[2]
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
