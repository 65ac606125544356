"""An upgrade as clusters do it: replicas of the version before and of this one, on one schema, under load."""

import io
import random
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnoser.adapters.sql import migrations
from tests.chaos.rounds import JOB, Shipper, check_acknowledged, shipping, wait_for_progress
from tests.e2e.service import ROOT, diagnosis_of, service

VERSIONS = "diagnoser/adapters/sql/migrations/versions"
RUN_FROM = ("diagnoser", "rules", "prompts")


def git(*words: str) -> bytes:
    """Raises OSError or subprocess.SubprocessError where there is no git, no history, or no such commit."""
    return subprocess.run(["git", "-C", ROOT, *words], check=True, capture_output=True).stdout


def newest_schema(commit: str) -> str:
    names = git("ls-tree", "--name-only", f"{commit}:{VERSIONS}").decode().split()
    return max(name.partition("_")[0] for name in names if name.endswith(".py"))


def commits_before_the_newest_migration() -> Iterator[str]:
    """The newest first, along the main line of history."""
    if newest_schema("HEAD") != migrations.head():
        yield "HEAD"  # the migration is not committed yet
    for commit in git("rev-list", "--first-parent", "HEAD", "--", VERSIONS).decode().split():
        if newest_schema(f"{commit}^") < migrations.head():
            yield f"{commit}^"


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """A checkout of the last commit before the newest migration."""
    if not shutil.which("git"):
        pytest.skip("no git: the version before is checked out with it")
    try:
        commit = next(commits_before_the_newest_migration(), None)
        archive = git("archive", commit, *RUN_FROM) if commit else b""
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no history of this checkout to take the version before from: {error.stderr.decode().strip()}")
    if not archive:
        pytest.skip("the history of this checkout does not reach back to the version before the newest migration")
    folder = tmp_path / "previous"
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.mark.xdist_group("postgresql")
def test_two_versions_share_a_schema_and_either_may_die(
    tmp_path: Path, previous: Path, postgresql_database: str
) -> None:
    """The new one changes the schema while the old one takes lines. Each is killed and comes back, the other goes on:
    nothing acknowledged is lost or doubled, the run is diagnosed, and the logs say which schema was met."""
    folders = tmp_path / "old", tmp_path / "new"
    for folder in folders:
        folder.mkdir()
    settings = {"DIAGNOSER_DATABASE_URL": postgresql_database}
    with service(folders[0], **settings) as old, service(folders[1], **settings) as new:
        old.code = previous
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
