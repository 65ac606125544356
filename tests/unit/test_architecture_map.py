"""The map reads the package as it is."""

from pathlib import Path

from tests import architecture_map


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
    assert [row[0] for row in rows if not row[1].strip()] == []


def test_no_import_points_up() -> None:
    """What the layers promise holds in the graph that the map draws."""
    depth = {name: number for number, row in enumerate(architecture_map.layers()) for name in row}
    graph = architecture_map.imports()
    assert [(name, one) for name, below in graph.items() for one in below if depth[one] <= depth[name]] == []
