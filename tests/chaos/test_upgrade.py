"""An upgrade as clusters do it: replicas of this version and of the next one, on one schema, under load."""

import random
import shutil
from pathlib import Path

import pytest

from tests.chaos.rounds import JOB, Shipper, check_acknowledged, shipping, wait_for_progress
from tests.e2e.service import ROOT, diagnosis_of, service
from tests.next_revision import add_revision

RUN_FROM = ("diagnoser", "rules", "prompts")


@pytest.fixture
def next_version(tmp_path: Path) -> Path:
    """A copy of the checkout that has one revision more."""
    folder = tmp_path / "next"
    for name in RUN_FROM:
        shutil.copytree(ROOT / name, folder / name)  # with what is compiled: the times of the files are kept
    add_revision(folder / "diagnoser" / "adapters" / "sql" / "migrations" / "versions")
    return folder


@pytest.mark.xdist_group("postgresql")
def test_two_versions_share_a_schema_and_either_may_die(
    tmp_path: Path, next_version: Path, postgresql_database: str
) -> None:
    """The next one changes the schema while this one takes lines. Each is killed and comes back, the other goes on:
    nothing acknowledged is lost or doubled, the run is diagnosed, and the logs say which schema was met."""
    folders = tmp_path / "old", tmp_path / "new"
    for folder in folders:
        folder.mkdir()
    settings = {"DIAGNOSER_DATABASE_URL": postgresql_database}
    with service(folders[0], **settings) as old, service(folders[1], **settings) as new:
        new.code = next_version
        shippers = [Shipper(rank, (old.url, new.url), random.Random(rank), 0.05) for rank in range(2)]
        old.start()
        with shipping(shippers):
            wait_for_progress(shippers)
            new.start()
            assert new.log().count("schema_upgraded") == 1
            wait_for_progress(shippers)
            old.kill()
            on_old = old.start()
            assert "newer_schema" in old.log()
            new.kill()
            wait_for_progress(shippers)
            on_new = new.start()
            wait_for_progress(shippers)
        stored = check_acknowledged(settings["DIAGNOSER_DATABASE_URL"], shippers)
        on_old.post(f"/api/v1/jobs/{JOB}/events", json={"kind": "exit", "code": 1}).raise_for_status()
        for client in (on_old, on_new):
            assert diagnosis_of(client, JOB, lines=stored.lines)["outcome"] == "failed"
    assert "Traceback" not in old.log() + new.log()
