"""The demo of learning runs as a person would run it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.test_readme_commands import ROOT


def test_the_demo_learns_a_rule_that_then_decides(tmp_path: Path) -> None:
    """Asked, confirmed, written, tested, tried in shadow, promoted: the third failure is decided without a question."""
    demo = [sys.executable, str(ROOT / "deploy" / "demo" / "llm_demo.py"), "--exit"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("DIAGNOSER_")}
    done = subprocess.run(demo, cwd=tmp_path, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr
    first, rest = done.stdout.split("\n2. ")
    learned, rest = rest.split("\n3. ")
    again, last = rest.split("\n4. ")
    assert "Decided by  llm:scripted" in first
    assert "search_log(pattern=" in first
    for step in (first, again, last):
        assert "tokenmix: shard" in step.split("Root line")[1]
        assert "Action      notify_user" in step
    assert "Written by llm:scripted with rule_writer/v1" in learned
    assert "FAILED" not in learned and "no hit in 1 completed attempts" in learned
    assert "is in shadow; attempts it would have decided: 1." in again
    assert "Decided by  rule:learned_dataset_loading_error_" in last
    assert "Questions   0" in last
