"""``make house``: how large and how dense the package is, and what a start of it costs.

``--check`` prints nothing unless a function is too complex, and then fails: the lint step runs it. The figures
themselves are no gate.
"""

import argparse
import ast
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "diagnoser"
DENSE = 10
"""Branches above which a function counts as dense."""
LIMIT = 15
"""Branches above which a function fails the check."""

_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.IfExp, ast.comprehension)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NOT_BAGS = ("model", "config", "ports", "compress")
"""Packages whose data classes hold facts or settings, and not the parts that a program is made of."""


@dataclass(frozen=True, slots=True)
class Function:
    """branches: 1, and 1 more for each if, for, while, except, case, conditional expression, comprehension, and operand
    of and/or after the first; those of lambdas inside it count, those of functions inside it do not."""

    file: str
    line: int
    name: str
    branches: int


@dataclass(frozen=True, slots=True)
class Class:
    """methods: public ones, with those of its bases. fields: of a data class, 0 for others."""

    file: str
    name: str
    methods: int
    fields: int


@dataclass(frozen=True, slots=True)
class House:
    """The figures that ``make house`` prints.

    conditionals, comprehensions, chains: in 1,000 lines that are not blank.
    """

    lines: int
    modules: int
    conditionals: float
    comprehensions: float
    chains: float
    dense: int
    densest: tuple[Function, ...]
    widest: Class
    bag: Class
    settings: int


@dataclass(frozen=True, slots=True)
class StartCosts:
    """CPU-seconds, the least of several runs."""

    help: float
    diagnose: float


class _Source:
    """A module of the package, parsed."""

    def __init__(self, path: Path) -> None:
        text = path.read_text()
        self.file = str(path.relative_to(ROOT))
        self.package = path.relative_to(PACKAGE).parts[0]
        self.lines = text.count("\n")
        self.filled = sum(1 for line in text.splitlines() if line.strip())
        self.nodes = tuple(ast.walk(ast.parse(text)))
        self._counts = Counter(map(type, self.nodes))

    def count(self, *kinds: type[ast.AST]) -> int:
        return sum(self._counts[kind] for kind in kinds)

    def functions(self) -> Iterator[Function]:
        for node in self.nodes:
            if isinstance(node, _FUNCTIONS):
                yield Function(self.file, node.lineno, node.name, _branches(node))

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in self.nodes if isinstance(node, ast.ClassDef))


def _branches(function: ast.AST) -> int:
    branches = 1
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            continue  # counted by itself
        if isinstance(node, _BRANCHES):
            branches += 1
        if isinstance(node, ast.BoolOp):
            branches += len(node.values) - 1
        waiting.extend(ast.iter_child_nodes(node))
    return branches


def _sources() -> Iterator[_Source]:
    return map(_Source, sorted(PACKAGE.rglob("*.py")))


def measure_house() -> House:
    """Read the whole package."""
    sources = list(_sources())
    filled = sum(source.filled for source in sources)
    functions = sorted((f for source in sources for f in source.functions()), key=lambda f: -f.branches)
    classes = _classes(sources)
    bags = [c for c in classes if c.file.split("/")[1] not in _NOT_BAGS]

    def in_thousand(*kinds: type[ast.AST]) -> float:
        return round(1000 * sum(source.count(*kinds) for source in sources) / filled, 1)

    return House(
        lines=sum(source.lines for source in sources),
        modules=len(sources),
        conditionals=in_thousand(ast.IfExp),
        comprehensions=in_thousand(*_COMPREHENSIONS),
        chains=in_thousand(ast.BoolOp),
        dense=sum(function.branches > DENSE for function in functions),
        densest=tuple(function for function in functions if function.branches > DENSE),
        widest=max(classes, key=lambda c: c.methods),
        bag=max(bags, key=lambda c: c.fields),
        settings=next(c.fields for c in classes if c.name == "Settings"),
    )


def _classes(sources: list[_Source]) -> list[Class]:
    """Every class of the package; bases are known by their names, which are unique enough for that."""
    by_name = {node.name: node for source in sources for node in source.classes()}
    return [
        Class(source.file, node.name, len(_public_methods(node, by_name)), _fields(node))
        for source in sources
        for node in source.classes()
    ]


def _public_methods(node: ast.ClassDef, by_name: dict[str, ast.ClassDef]) -> set[str]:
    names = {part.name for part in node.body if isinstance(part, _FUNCTIONS) and not part.name.startswith("_")}
    for base in node.bases:
        parent = by_name.get(base.id) if isinstance(base, ast.Name) else None
        if parent is not None and parent is not node:
            names |= _public_methods(parent, by_name)
    return names


def _fields(node: ast.ClassDef) -> int:
    is_data = any(ast.unparse(decorator).startswith("dataclass") for decorator in node.decorator_list)
    is_settings = node.name == "Settings"
    return sum(isinstance(part, ast.AnnAssign) for part in node.body) if is_data or is_settings else 0


def measure_starts(runs: int) -> StartCosts:
    """Start the command as a person does who installed it: with its bytecode, which the first start, not counted,
    writes. runs: of which the cheapest counts."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "train.log")
        log.write_text("step 1 loss 2.5\nTraceback (most recent call last):\nValueError: bad batch\n")
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
        _cpu_seconds(environment, "diagnose", str(log))
        return StartCosts(
            help=min(_cpu_seconds(environment, "--help") for _ in range(runs)),
            diagnose=min(_cpu_seconds(environment, "diagnose", str(log)) for _ in range(runs)),
        )


def _cpu_seconds(environment: Mapping[str, str], *arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "diagnoser", *arguments]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2)


def _table(house: House, starts: StartCosts) -> Iterator[str]:
    rows: tuple[tuple[str, object], ...] = (
        ("package lines", house.lines),
        ("modules", house.modules),
        ("conditional expressions in 1,000 lines", house.conditionals),
        ("comprehensions in 1,000 lines", house.comprehensions),
        ("and/or chains in 1,000 lines", house.chains),
        (f"functions above {DENSE} branches", house.dense),
        ("public methods of one class", f"{house.widest.methods} ({house.widest.name})"),
        ("fields of one bag", f"{house.bag.fields} ({house.bag.name})"),
        ("settings", house.settings),
        ("diagnoser --help, CPU-seconds", starts.help),
        ("diagnoser diagnose of a small file, CPU-seconds", starts.diagnose),
    )
    for name, value in rows:
        yield f"{name:50} {value}"
    yield ""
    for function in house.densest[:20]:
        yield f"{function.branches:4} {function.file}:{function.line} {function.name}"


def _check(write: Callable[[str], object]) -> int:
    functions = [function for source in _sources() for function in source.functions()]
    too_complex = [function for function in functions if function.branches > LIMIT]
    for function in too_complex:
        write(f"{function.file}:{function.line}: {function.name} has {function.branches} branches; at most {LIMIT}\n")
    return min(1, len(too_complex))


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.house", description=__doc__)
    parser.add_argument("--check", action="store_true", help=f"fail where a function has more than {LIMIT} branches")
    parser.add_argument("--json", action="store_true", help="print the figures for a program")
    parser.add_argument("--runs", type=int, default=3, help="starts of the command, of which the cheapest counts")
    options = parser.parse_args()
    if options.check:
        return _check(sys.stderr.write)
    house, starts = measure_house(), measure_starts(options.runs)
    if options.json:
        sys.stdout.write(json.dumps(asdict(house) | {"cpu_seconds": asdict(starts)}) + "\n")
    else:
        sys.stdout.write("\n".join(_table(house, starts)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
