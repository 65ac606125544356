"""The commands that README.md and docs/ show do what they say."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import preloaded
from tests.command_line import invoke
from tests.e2e.service import service

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def block(name: str, heading: str) -> str:
    """The first bash block under a heading of a page."""
    found = re.search(r"```bash\n(.*?)```", page(name).split(f"\n{heading}\n")[1], re.DOTALL)
    assert found is not None
    return found[1]


def bash(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{preloaded.program_folder()}:{BIN}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is absent: apt-get install curl")
def test_the_five_curls(tmp_path: Path) -> None:
    """Copied into a shell they register, stream, end, and read an out-of-memory verdict on the node of rank 1."""
    with service(tmp_path) as running:
        running.start()
        script = (
            block("docs/api.md", "## Five curls")
            .replace("http://127.0.0.1:8321", running.url)
            .replace("curl -sS", "curl -sSf")
        )
        done = bash(script.replace("sleep 3", "sleep 4"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"out_of_memory_error"' in done.stdout
    assert '"node":"gpu-02"' in done.stdout.replace(" ", "")


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command without a server ends with 0 and prints something, on the demo's log."""
    shutil.copy(ROOT / "deploy" / "demo" / "train.log", tmp_path / "train.log")
    (tmp_path / "DIR").mkdir()
    shutil.copy(ROOT / "deploy" / "demo" / "train.log", tmp_path / "DIR" / "case.log")
    (tmp_path / "clean-logs").mkdir()
    healthy = (tmp_path / "train.log").read_text("utf-8").splitlines(keepends=True)[:100]
    (tmp_path / "clean-logs" / "run.log").write_text("".join(healthy), "utf-8")
    label = {
        "id": "case",
        "category": "infrastructure",
        "type": "ecc_error",
        "root_lines": [237],
        "root_text": "",
        "node": "gpu-017",
        "rank": 5,
        "recovery": "cordon_and_resubmit",
    }
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "stack_0.txt").write_text(
        'Current thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n'
    )
    (tmp_path / "DIR" / "labels.jsonl").write_text(json.dumps(label) + "\n")
    monkeypatch.chdir(tmp_path)
    for line in block("docs/command-line.md", "## Without a server").splitlines():
        program, *words = shlex.split(line, comments=True)
        done = invoke(*words)
        assert (program, done.exit_code) == ("diagnoser", 0), (line, done.stderr)
        assert done.stdout.strip(), line


def test_the_quick_start_on_a_laptop() -> None:
    """The first `diagnoser diagnose` of the README, run in a checkout, names the cause of the demo's log."""
    shown = re.search(r"^\.venv/bin/(diagnoser diagnose .*?) +#", block("README.md", "### On a laptop"), re.MULTILINE)
    assert shown is not None
    done = bash(shown[1], ROOT)
    assert done.returncode == 0, done.stderr
    assert "ecc error" in done.stdout


def test_rules_are_exported_and_tested_as_the_docs_say(tmp_path: Path) -> None:
    """A fresh service has learned nothing: the export says so, and the test of its empty folder does not pass."""
    with service(tmp_path) as running:
        running.start()
        exported, tested = block("docs/rules.md", "## Learned rules").splitlines()
        (tmp_path / "learned").mkdir()
        done = bash(exported.replace("http://127.0.0.1:8321", running.url), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0 rules written" in done.stdout
    tried = bash(tested, tmp_path)
    assert tried.returncode == 1
    assert "holds no rules" in tried.stderr
