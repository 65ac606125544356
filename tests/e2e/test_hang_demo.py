"""The demo of a hang runs as a person would run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_readme_commands import ROOT


def test_the_demo_names_the_rank_that_sleeps(tmp_path: Path) -> None:
    """Four real ranks train, rank 2 falls asleep, and the verdict names it and its node."""
    demo = [sys.executable, str(ROOT / "deploy" / "demo" / "hang_demo.py"), "--exit"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("DIAGNOSER_")}
    done = subprocess.run(demo, cwd=tmp_path, capture_output=True, text=True, env=plain)
    if "torch, which is not installed" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    rows = {words[1]: words[2] for line in done.stdout.splitlines() if len(words := line.split()) > 2}
    assert (rows["Rank"], rows["Node"], rows["Type"]) == ("2", "gpu-017", "nccl_timeout_error")
    assert "/jobs/hang-demo/attempts/1/hang" in done.stdout
