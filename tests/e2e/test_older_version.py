"""An upgrade from the version before and back, with its own service, client and agent, as a site walks it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from diagnoser.adapters.sql.migrations import head
from tests import older_version
from tests.e2e.service import DEMO_LOG, ROOT, Service, diagnosis_of, node_fault, send, service, until
from tests.thorough import THOROUGH

pytestmark = [
    pytest.mark.xdist_group("postgresql"),
    pytest.mark.skipif(bool(older_version.missing()), reason=older_version.missing()),
]
LINES = DEMO_LOG.read_bytes().splitlines(keepends=True)
PAGES = ("/", "/jobs", "/jobs/before", "/nodes", "/recovery")


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return older_version.checkout(tmp_path_factory.mktemp("older"))


@pytest.fixture(params=["sqlite", "postgresql"][: None if THOROUGH else 1])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    url = f"sqlite:///{tmp_path}/test.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql_database")
    return {"DIAGNOSER_DATABASE_URL": url, "DIAGNOSER_RECOVERY_MODE": "act"}


@contextmanager
def running(found: Service, code: Path) -> Iterator[httpx.Client]:
    """The service of a version, ended at once."""
    found.code = code
    yield found.start()
    assert found.stop() == 0


def fail(client: httpx.Client, job: str) -> dict[str, Any]:
    """The diagnosis of a job that fails while this service runs."""
    send(client, LINES, 0, len(LINES), job=job)
    client.post(f"/api/v1/jobs/{job}/events", json={"kind": "exit", "code": 1}).raise_for_status()
    return diagnosis_of(client, job, lines=len(LINES))


def essence(diagnosis: dict[str, Any]) -> tuple[Any, ...]:
    return diagnosis["id"], diagnosis["outcome"], diagnosis["type"], diagnosis["confidence"]


def test_a_database_of_the_version_before_is_upgraded_and_rolled_back(
    older: Path, settings: dict[str, str], tmp_path: Path
) -> None:
    """What it diagnosed stays as it was; it goes on with the upgraded database, and so does this version after it. On
    PostgreSQL in thorough runs: there tests/chaos has two versions at once on one database."""
    with service(tmp_path, **settings) as found:
        with running(found, older) as client:
            before = fail(client, "before")
        with running(found, ROOT) as client:
            assert f"now={head()}" in found.log()
            assert essence(diagnosis_of(client, "before")) == essence(before)
            assert {client.get(path).status_code for path in PAGES} == {httpx.codes.OK}
            between = fail(client, "between")
        with running(found, older) as client:
            assert "newer_schema" in found.log()
            assert essence(diagnosis_of(client, "between")) == essence(between)
            after = fail(client, "after")
        with running(found, ROOT) as client:
            for job, diagnosis in {"before": before, "between": between, "after": after}.items():
                assert essence(diagnosis_of(client, job)) == essence(diagnosis)
        assert "Traceback" not in found.log()


def test_client_and_agent_of_the_version_before_work_with_this_service(
    older: Path, postgresql_database: str, tmp_path: Path
) -> None:
    """The client gets its diagnosis; the agent registers a job, ships its log, and carries its plan out. All on a
    PostgreSQL database that the version before has made."""
    settings = {"DIAGNOSER_DATABASE_URL": postgresql_database, "DIAGNOSER_RECOVERY_MODE": "act"}
    with service(tmp_path, **settings) as found:
        with running(found, older) as client:
            archive = tmp_path / "client.pyz"
            archive.write_bytes(client.get("/client.pyz").content)
        with running(found, ROOT) as client:
            words = ["send", str(DEMO_LOG), "--job", "sent", "--code", "1", "--server", found.url]
            shown = subprocess.run([sys.executable, archive, *words], capture_output=True, text=True, check=False)
            assert "ecc error" in shown.stdout + shown.stderr
            assert carried_out(client, found.url, older, tmp_path / "agent")["state"] == "reached"
        assert "Traceback" not in found.log()


def carried_out(client: httpx.Client, url: str, older: Path, folder: Path) -> dict[str, Any]:
    """The plan for a job on a node whose own log proves a fault, once an agent of the version before has ended it."""
    folder.mkdir()
    (folder / "job").write_text("llama\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    client.post("/api/v1/jobs", json={"id": "other", "cluster": "lab", "nodes": ["n1", "n2", "n3"]}).raise_for_status()
    node_fault(client, "n1", "lab")
    agent = older_version.start_agent(older, url, folder / "job")

    def ended() -> list[dict[str, Any]]:
        plans = client.get("/api/v1/plans", params={"job": "memory-llama"}).json()["items"]
        return [plan for plan in plans if plan["state"] in ("reached", "not_reached")]

    try:
        [plan] = until(ended, "the plan has ended", 60)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(folder / 'agent.log').read_text()[-3000:]}") from None
    finally:
        agent.terminate()
        agent.wait(timeout=180)
    return dict(plan)
