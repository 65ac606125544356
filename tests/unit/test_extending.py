"""What docs/extending.md shows works: a rule and a dialect here, a scheduler, a protocol and a channel as toys."""

import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from diagnoser.dialects import launchers
from tests import preloaded
from tests.how_tos import module, shown

PAGE = "extending.md"
LOG = "step 118 loss 2.41\nfabricd[311]: link lost on gpu-07 port 3\n[rank3]: RuntimeError: connection closed by peer\n"


def test_a_rule_of_the_site_decides(tmp_path: Path) -> None:
    """Saved as the page says, it passes its test, decides a diagnosis, and stands in the diff."""
    folder = tmp_path / "site-rules" / "infrastructure"
    folder.mkdir(parents=True)
    (folder / "my_fabric_link_down.yaml").write_text(shown("rules.md", "Writing a rule", "yaml"))
    (tmp_path / "train.log").write_text(LOG)
    script = shown(PAGE, "A rule", "bash")
    environment = {**os.environ, "PATH": f"{preloaded.program_folder()}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-eu", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "rule:my_fabric_link_down" in done.stdout
    assert "infrastructure/my_fabric_link_down.yaml" in done.stdout


def test_a_dialect_of_the_site_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank, node and message of its example, once it stands among the launchers."""
    dialect = module("A dialect").SITE_LAUNCHER
    monkeypatch.setattr(launchers, "DIALECTS", (*launchers.DIALECTS, dialect))
    prefixes = _loaded_anew("diagnoser.dialects.prefixes")
    (example,) = dialect.examples
    prefix, body = prefixes.split_prefix(example.line.encode())
    assert body.decode() == example.body
    assert (prefixes.read_prefix(prefix).rank, prefixes.read_prefix(prefix).node) == (3, "gpu-07")


def _loaded_anew(name: str) -> Any:
    """A module as a process that starts now has it: its tables are made when it is loaded."""
    spec = importlib.util.find_spec(name)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
