"""The README is short, and what it says is so."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
LINES_MAX = 160


def test_it_stays_an_introduction() -> None:
    """The README fits a few screens; details go to docs/."""
    assert len(README.splitlines()) <= LINES_MAX


def test_it_shows_the_page() -> None:
    """Each picture that the README shows is in the repository, with a description."""
    pictures = re.findall(r"!\[(.*?)\]\((.*?)\)", README)
    assert pictures
    assert [path for words, path in pictures if not words or not (ROOT / path).is_file()] == []


def test_its_figures_are_those_of_the_benchmarks() -> None:
    """Each measured figure of the README and its command stand in docs/benchmarks.md, too."""
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    rows = re.findall(r"^\| .* \| (.*) \| `(.*)` \|$", README.split("## Figures")[1], re.MULTILINE)
    assert rows
    assert [cell for row in rows for cell in row if cell not in benchmarks] == []
