"""The code that docs/extending.md shows, for the tests that run it."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"


def shown(page: str, heading: str, language: str) -> str:
    """The first block of a language under a heading of a page in docs/."""
    section = (DOCS / page).read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def module(heading: str) -> Any:
    """The Python block under a heading of docs/extending.md, as the module that a reader makes of it."""
    made = ModuleType(f"how_to_{heading.replace(' ', '_')}")
    exec(compile(shown("extending.md", heading, "python"), "docs/extending.md", "exec"), made.__dict__)
    return made
