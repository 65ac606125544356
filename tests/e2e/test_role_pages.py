"""The pages by role: one screen each, and their commands run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import preloaded
from tests.e2e.service import service

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("for-*.md"))
WORDS_MAX = 280
DEMO_LOG = ROOT / "deploy" / "demo" / "train.log"


def test_each_page_is_one_screen() -> None:
    """All seven of them: what is longer belongs to the reference."""
    assert len(PAGES) == 7
    assert [page.name for page in PAGES if len(page.read_text("utf-8").split()) > WORDS_MAX] == []


def blocks(name: str) -> str:
    """All commands of a page."""
    return "\n".join(re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / name).read_text("utf-8"), re.DOTALL))


def bash(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{preloaded.program_folder()}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **variables}
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with the files that the pages name."""
    shutil.copy(DEMO_LOG, tmp_path / "train.log")
    (tmp_path / "clean-logs").mkdir()
    (tmp_path / "clean-logs" / "run.log").write_text("".join(DEMO_LOG.read_text("utf-8").splitlines(True)[:100]))
    (tmp_path / "dumps").mkdir()
    stack = 'Current thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n'
    (tmp_path / "dumps" / "stack_0.txt").write_text(stack)
    (tmp_path / "site-rules" / "infrastructure").mkdir(parents=True)
    rule = (ROOT / "docs" / "rules.md").read_text("utf-8").split("```yaml\nid: ")[1].split("```")[0]
    (tmp_path / "site-rules" / "infrastructure" / "my_fabric_link_down.yaml").write_text(f"id: {rule}")
    (tmp_path / "DIR").mkdir()
    (tmp_path / "DIR" / "labels.jsonl").write_text(
        '{"id": "case", "category": "infrastructure", "type": "ecc_error", "root_lines": [237], "root_text": "", '
        '"recovery": "cordon_and_resubmit"}\n'
    )
    shutil.copy(DEMO_LOG, tmp_path / "DIR" / "case.log")
    return tmp_path


@pytest.mark.parametrize("name", ["for-researchers.md", "for-site-engineers.md"])
def test_commands_without_a_service_run(name: str, desk: Path) -> None:
    """Copied into a shell, each ends with 0."""
    done = bash(blocks(name), desk, DIAGNOSER_DATABASE_URL=f"sqlite:///{desk}/data.db")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is absent: apt-get install curl")
def test_a_team_reads_the_diagnosis_of_its_run(desk: Path) -> None:
    """The client that the service gives out runs a training that fails, and prints why."""
    with service(desk) as running:
        running.start()
        lines = blocks("for-teams.md").splitlines()
        script = "\n".join([*(line for line in lines if line.startswith("curl")), lines[-1]])
        script = script.replace("http://diagnoser:8321", running.url)
        script = script.replace("torchrun --nproc-per-node 8 train.py", "bash -c 'cat train.log; exit 1'")
        done = bash(f"{script} || [ $? = 1 ]", desk, DIAGNOSER_TOKEN="")
    assert done.returncode == 0, done.stderr
    assert "ecc error" in done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is absent: apt-get install curl")
def test_an_operator_stops_cordons_and_finds_what_is_wrong(desk: Path) -> None:
    """Each command of the page works against a running service, and the breaker is tripped."""
    with service(desk) as running:
        client = running.start()
        script = blocks("for-operators.md").replace("curl ", "curl -sSf ")
        database = f"sqlite:///{desk}/test.db"
        done = bash(script, desk, DIAGNOSER=running.url, DIAGNOSER_TOKEN="", DIAGNOSER_DATABASE_URL=database)
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert "switch maintenance" in client.get("/api/v1/breakers").text
    assert (desk / "report.json").is_file()
