"""docs/agents.md is checked against the code."""

import re
from pathlib import Path

from diagnoser.agent.cluster import Cluster, JobSource

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "agents.md").read_text("utf-8")


def members(protocol: type) -> set[str]:
    return {name for one in protocol.__mro__ for name in vars(one) if not name.startswith("_")}


def test_every_method_of_the_protocols_has_its_row() -> None:
    """And no row names what is gone."""
    for heading, protocol in (("## `Cluster`", Cluster), ("## `JobSource`", JobSource)):
        rows = re.findall(r"^\| (`.+?) \|", TEXT.split(heading)[1].split("## ")[0], re.MULTILINE)
        assert {name for row in rows for name in re.findall(r"`(\w+)", row)} == members(protocol)


def test_the_files_that_it_names_exist() -> None:
    """In the table of what is written once, and where it says to look."""
    table = TEXT.split("## Three rules")[0]
    for name in re.findall(r"`(\w+\.py)`", table):
        assert (ROOT / "diagnoser" / "agent" / name).is_file(), name
    for path in re.findall(r"`((?:tests|diagnoser)/[\w/.]+)`", TEXT):
        assert (ROOT / path).exists(), path
