"""The types of the Python client, drawn from the description of the API: `python -m tests.generated_client`."""

import ast
import asyncio
import keyword
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diagnoser.integrations import api_client
from tests.serving import serving

TARGET = Path(__file__).resolve().parents[1] / "diagnoser" / "integrations" / "api_types.pyi"
HEAD = '''"""What the API answers, drawn from its description: `python -m tests.generated_client` writes it again."""

from typing import {names}
'''
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


async def description() -> dict[str, Any]:
    """The OpenAPI document of this code."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder)) as web:
            document: dict[str, Any] = (await web.client.get("/openapi.json")).json()
            return document


def roots() -> set[str]:
    """Types that the client uses."""
    tree = ast.parse(Path(api_client.__file__).read_text())
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in imports if node.module == "diagnoser.integrations.api_types" for alias in node.names}


def render(document: Mapping[str, Any], wanted: set[str]) -> str:
    """Each schema that the wanted ones need, by name: classes before whatever names them."""
    schemas = document["components"]["schemas"]
    needed: dict[str, None] = {}

    def need(name: str) -> None:
        if name in needed:
            return
        for other in _references(schemas[name]):
            need(other)
        needed[name] = None

    for name in sorted(wanted):
        need(name)
    body = "".join(_definition(name, schemas[name]) for name in needed)
    names = [name for name in ("Any", "Literal", "NotRequired", "TypedDict") if re.search(rf"\b{name}\b", body)]
    return HEAD.format(names=", ".join(names)) + body


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _definition(name: str, schema: Mapping[str, Any]) -> str:
    if "properties" not in schema:
        return f"\n{name} = {_type(schema)}\n"
    required = set(schema.get("required", ()))
    fields = {
        field: _type(one) if field in required else f"NotRequired[{_type(one)}]"
        for field, one in schema["properties"].items()
    }
    if any(keyword.iskeyword(field) or not field.isidentifier() for field in fields):
        rows = "".join(f'    "{field}": {kind},\n' for field, kind in fields.items())
        return f'\n{name} = TypedDict("{name}", {{\n{rows}}})\n'
    rows = "".join(f"    {field}: {kind}\n" for field, kind in fields.items())
    return f"\n\nclass {name}(TypedDict):\n{rows}\n"


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return f"Literal[{schema['const']!r}]"
    if "enum" in schema:
        return f"Literal[{', '.join(map(repr, schema['enum']))}]"
    if kinds := schema.get("anyOf") or schema.get("oneOf"):
        return " | ".join(dict.fromkeys(map(_type, kinds)))
    kind = schema.get("type")
    if kind == "array":
        return f"list[{_type(schema.get('items', {}))}]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {_type(values)}]" if isinstance(values, dict) else "dict[str, Any]"
    return _PLAIN.get(str(kind), "Any")


def formatted(source: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def main() -> None:
    TARGET.write_text(formatted(render(asyncio.run(description()), roots())))


if __name__ == "__main__":
    main()
