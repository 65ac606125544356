"""The parts of the documents that are written from the code: `python -m tests.generated_docs` (`make docs`).

Each part stands between two comment lines, ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->``. The tests compare.
"""

import asyncio
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import typer
from prometheus_client import CollectorRegistry

from diagnoser.cli import Deferred, cli
from diagnoser.commands import client
from diagnoser.config.settings import PREFIX, SECRETS, Settings
from diagnoser.ingest.protocols import PROTOCOLS
from diagnoser.model.access import Scope, Token
from diagnoser.model.vitals import PoolUse, Vitals
from diagnoser.observability.metrics import Metrics, ProcessFigures
from diagnoser.observability.vitals import VitalsCollector
from tests import architecture_map
from tests.serving import serving

ROOT = Path(__file__).resolve().parents[1]
LEAST_FIRST = (Scope.READ, Scope.ALERTS, Scope.INGEST, Scope.AGENT, Scope.OPERATE, Scope.ADMIN)
PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def settings() -> str:
    """Every setting with its default and its description, in the order of the class."""
    rows = []
    for name, field in Settings.model_fields.items():
        is_empty = name in SECRETS or field.default in ("", None)
        default = "" if is_empty else f" (`{field.default}`)"
        rows.append(f"- `{PREFIX}{name.upper()}`{default}: {field.description}")
    return "\n".join(rows)


def protocols() -> str:
    """Every protocol by which lines come in, with its paths and the types of its bodies."""
    return "\n".join(
        f"- **{protocol.name}**: {', '.join(f'`{path}`' for path in protocol.paths)}; {', '.join(protocol.formats)}"
        for protocol in PROTOCOLS
    )


def metrics() -> str:
    """Every metric family with its type and its labels, by name."""
    registry = CollectorRegistry()
    Metrics(registry)
    registry.register(VitalsCollector(Vitals(0.0, leased={"attempt": 0}), PoolUse(0, 0), ""))
    registry.register(ProcessFigures(None))
    rows = []
    for family in sorted(registry.collect(), key=lambda one: one.name):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        own = getattr(registry._names_to_collectors.get(family.name), "_labelnames", ())
        labels = sorted({*own, *(label for sample in family.samples for label in sample.labels)} - {"le"})
        shown = f"{{{','.join(labels)}}}" if labels else ""
        rows.append(f"- `{name}{shown}` ({family.type}): {family.documentation}")
    return "\n".join(rows)


@cache
def routes() -> str:
    """Every route of the OpenAPI document, with the scope that its token needs, by path."""
    return "\n".join(asyncio.run(_route_rows()))


async def _route_rows() -> list[str]:
    """Scopes are found by asking: the first token that is not refused."""
    tokens = tuple(Token(scope, f"a-secret-for-{scope}", scope) for scope in LEAST_FIRST)
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), tokens=tokens) as web:
            paths = (await web.client.get("/openapi.json", headers=_bearer(tokens[0]))).json()["paths"]
            found = [(path, *entry) for path, methods in sorted(paths.items()) for entry in methods.items()]
            needed = [await _needed(web.client, method, path, tokens) for path, method, _ in found]
    return [
        f"- `{method.upper()} {path}` ({scope}): {about['summary']}"
        for (path, method, about), scope in zip(found, needed, strict=True)
    ]


async def _needed(client: httpx.AsyncClient, method: str, path: str, tokens: Sequence[Token]) -> str:
    """A GET is asked without a token only: it needs none or ``read``, and some of them stream without an end."""
    if (await client.request(method, path)).status_code != httpx.codes.UNAUTHORIZED:
        return "none"
    if method == "get":
        return "read"
    for token in tokens:
        answer = await client.request(method, path, headers=_bearer(token))
        if answer.status_code != httpx.codes.FORBIDDEN:
            return token.scope
    raise AssertionError(f"no token may {method} {path}")


def _bearer(token: Token) -> dict[str, str]:
    return {"Authorization": f"Bearer {token.secret}"}


def commands() -> str:
    """Every command with its arguments, and what it does in a sentence. The rest is for `--help`."""
    rows = []
    for name, command in leaf_commands():
        if parser := client.parsers().get(name.removeprefix("diagnoser ")):  # the client parses its words itself
            arguments = [str(action.metavar) for action in parser._actions if not action.option_strings]
            meaning = str(parser.description)
        else:
            arguments = [param.name.upper() for param in command.params if param.param_type_name == "argument"]
            meaning = command.help or ""
        sentence = re.split(r"(?<=\.) ", " ".join(meaning.split()), maxsplit=1)[0]
        rows.append(f"- `{' '.join([name, *arguments])}`: {sentence}")
    return "\n".join(rows)


def leaf_commands() -> Iterator[tuple[str, Any]]:
    """Full name, such as ``diagnoser rules test``, and command."""
    yield from _leaves("diagnoser", typer.main.get_command(cli))


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(command, Deferred):
        command = command.load()
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child in children.values():
        yield from _leaves(f"{name} {child.name}", child)


PARTS: dict[str, Callable[[], str]] = {
    "settings": settings,
    "protocols": protocols,
    "metrics": metrics,
    "routes": routes,
    "commands": commands,
    "diagram": architecture_map.diagram,
    "packages": architecture_map.table,
}


def rendered(text: str) -> str:
    """The document with each generated part as the code says it now."""
    return PART.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}\n{found[3]}", text)


def main() -> None:
    for path in documents():
        text = path.read_text("utf-8")
        path.write_text(rendered(text), "utf-8")


if __name__ == "__main__":
    main()
