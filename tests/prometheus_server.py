"""A real Prometheus on this machine."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.service import until
from tests.ports import free_port

needs_prometheus = pytest.mark.skipif(
    not shutil.which("prometheus"), reason="no Prometheus on this machine (Debian: apt-get install prometheus)"
)


@contextmanager
def prometheus_server(folder: Path, config: dict[str, Any]) -> Iterator[httpx.Client]:
    """Running with this configuration, and with what lies in ``tsdb`` below the folder."""
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    own = free_port()
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{own}") as client:
            until(lambda: _is_ready(client), "Prometheus is ready")
            yield client
    finally:
        process.terminate()
        process.wait(timeout=180)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False
