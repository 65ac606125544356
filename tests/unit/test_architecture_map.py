"""The map reads the package as it is."""

import re
from pathlib import Path

import pytest

from tests import architecture_map

pytestmark = pytest.mark.xdist_group("docs")
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def package(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "diagnoser" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "diagnoser"


def test_imports_are_found_in_every_form(tmp_path: Path) -> None:
    """A name from the package, a module, a part of a module, and an import within a function all count; others not."""
    root = package(
        tmp_path,
        {
            "__init__.py": "",
            "top.py": "from diagnoser import low, nothing\nimport diagnoser.mid.deep\nimport json\n",
            "mid/__init__.py": "def late() -> None:\n    from diagnoser.low import x\n",
            "mid/deep.py": "from diagnoser.mid import late\n",
            "low.py": "import os\n",
        },
    )
    assert architecture_map.imports(root) == {"low": frozenset(), "mid": {"low"}, "top": {"low", "mid"}}


def test_edges_that_a_longer_path_implies_are_left_out() -> None:
    """Of a -> b -> c and a -> c the picture keeps the first two."""
    graph = {"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset[str]()}
    assert architecture_map.reduced(graph) == {"a": {"b"}, "b": {"c"}, "c": frozenset()}


def test_every_unit_has_a_layer_and_says_what_it_is_for() -> None:
    """No package or module at the top is missing from the contract, and each has a docstring for its row."""
    layered = {name for row in architecture_map.layers() for name in row}
    assert set(architecture_map.units()) == layered
    rows = [line.split(" | ") for line in architecture_map.table().splitlines() if line.startswith("| `")]
    assert len(rows) == len(layered)
    assert [row[0] for row in rows if not row[1].strip(" |")] == []


def test_no_import_points_up() -> None:
    """What the layers promise holds in the graph that the map draws."""
    depth = {name: number for number, row in enumerate(architecture_map.layers()) for name in row}
    graph = architecture_map.imports()
    assert [(name, one) for name, below in graph.items() for one in below if depth[one] <= depth[name]] == []


def test_the_path_names_files_and_functions_that_exist() -> None:
    """The steps of "Follow a line, a verdict and a plan" name files of the package, and what is defined there."""
    path = PAGE.split("## Follow a line")[1].split("## The map")[0]
    steps = [line.split(" | ")[1] for line in path.splitlines() if line.startswith("| ")]
    root = ROOT / "diagnoser"
    sources = {str(file.relative_to(root)): file.read_text("utf-8") for file in root.rglob("*.py")}
    defined = set(re.findall(r"^ *(?:async )?(?:def|class) (\w+)", "\n".join(sources.values()), re.MULTILINE))
    named = [name for step in steps for name in re.findall(r"`([\w./]+)`", step)]
    assert len(named) > 50
    assert [name for name in named if name.endswith(".py") and name not in sources] == []
    assert [name for name in named if not name.endswith(".py") and not set(name.split(".")) <= defined] == []


def test_the_path_through_the_code_names_what_stands_in_each_file() -> None:
    """Each file in "file by file" exists, and so does each class, method and function beside it."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = page.split("file by file")[1].split("\n## ")[0]
    sources = {path: path.read_text("utf-8") for path in (ROOT / "diagnoser").rglob("*.py")}
    defined = set(re.findall(r"^ *(?:async )?(?:def|class) (\w+)", "\n".join(sources.values()), re.MULTILINE))
    terms = [term for row in re.findall(r"^\|.*\|$", section, re.MULTILINE) for term in re.findall(r"`([^`]+)`", row)]
    files = [term for term in terms if term.endswith(".py")]
    names = {part for term in terms if re.fullmatch(r"[\w.]+", term) and term not in files for part in term.split(".")}
    assert len(files) > 20 and len(names) > 20
    assert [file for file in files if not (ROOT / "diagnoser" / file).is_file()] == []
    assert names - defined == set()
