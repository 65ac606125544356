"""The map in docs/architecture.md, drawn from the package tree and its imports.

Every box is a package or module at the top of ``diagnoser/``; its words are the first sentence of its docstring, its
layer is the one that the import contract in pyproject.toml gives it.
"""

import ast
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "diagnoser"
STARTERS = frozenset({"__init__", "__main__"})

Imports = Mapping[str, frozenset[str]]
"""Unit at the top of the package -> the other units that it imports."""


def units(root: Path = ROOT / PACKAGE) -> dict[str, Path]:
    """Name -> path of every package and module at the top, in alphabetical order."""
    found = {path.stem: path for path in root.glob("*.py") if path.stem not in STARTERS}
    found |= {path.parent.name: path.parent for path in root.glob("*/__init__.py")}
    return dict(sorted(found.items()))


@cache
def imports(root: Path = ROOT / PACKAGE) -> Imports:
    """What each unit imports, wherever in a file the import stands. Imports for type checking count as well."""
    known = units(root)
    return {
        name: frozenset(
            target for file in _files(path) for target in _imported(file, known) if target in known and target != name
        )
        for name, path in known.items()
    }


def reduced(graph: Imports) -> dict[str, frozenset[str]]:
    """The same graph without each edge that a longer path implies, so that a picture of it can be read."""
    below = {name: _reachable(graph, name) for name in graph}
    return {
        name: frozenset(one for one in targets if not any(one in below[other] for other in targets - {one}))
        for name, targets in graph.items()
    }


def layers(root: Path = ROOT) -> list[list[str]]:
    """The layers of the import contract, from the top down."""
    tool = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    contract = next(one for one in tool["contracts"] if one["type"] == "layers")
    return [row.replace("|", " ").replace(":", " ").split() for row in contract["layers"]]


def diagram() -> str:
    """A Mermaid flowchart: one box a layer, arrows down to what is imported, implied arrows left out."""
    graph, known = reduced(imports()), units()
    lines = ["```mermaid", "flowchart TD"]
    for number, row in enumerate(layers(), 1):
        boxes = [f"  {name}[{name}]" for name in row if name in known]
        lines += [f'  subgraph layer{number}[" "]', *boxes, "  end"] if len(boxes) > 1 else boxes
    lines += [f"  {name} --> {target}" for name in graph for target in sorted(graph[name])]
    return "\n".join([*lines, "```"])


def table() -> str:
    """A row for each unit: what it is for."""
    graph, known = imports(), units()
    order = [name for row in layers() for name in row if name in known]
    rows = [
        f"| `{PACKAGE}/{known[name].name}{'/' if known[name].is_dir() else ''}` | {_purpose(known[name])} |"
        for name in order
    ]
    edges = sum(len(targets) for targets in graph.values())
    head = [f"{len(known)} packages and modules at the top, {edges} imports between them.", ""]
    return "\n".join([*head, "| where | what it is for |", "| --- | --- |", *rows])


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _imported(file: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The second step of every dotted name below the package that the file imports."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from _second(node.module)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield from _second(alias.name)


def _second(dotted: str) -> list[str]:
    steps = dotted.split(".")
    return steps[1:2] if steps[0] == PACKAGE else []


def _reachable(graph: Imports, start: str) -> set[str]:
    found: set[str] = set()
    open_ = list(graph[start])
    while open_:
        name = open_.pop()
        if name not in found:
            found.add(name)
            open_ += graph[name]
    return found - {start}


def _purpose(path: Path) -> str:
    """The first sentence of the docstring, as one line."""
    text = ast.get_docstring(ast.parse((path / "__init__.py" if path.is_dir() else path).read_text("utf-8"))) or ""
    sentence = " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".")
    return sentence.replace("``", "`").replace("|", "\\|")
