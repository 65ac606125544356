"""`bundle`: what a bug report needs, without secrets: version, settings, health, recent errors."""

import asyncio
import os
import platform
import re
from collections import deque
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import orjson
import typer
from pydantic import SecretStr

from diagnoser.commands.terminal import out

ERRORS_SHOWN = 200
_TROUBLE = re.compile(r"\b(?:warning|error|critical|Traceback)\b")
_CREDENTIALS = re.compile(r"//[^/@\s]{1,500}@")


def bundle(
    file: Annotated[Path, typer.Argument(help="File to write; - is standard output.")] = Path("diagnoser-bundle.json"),
    log: Annotated[
        Path | None, typer.Option(help=f"The service's own log; its last {ERRORS_SHOWN} warnings and errors are taken.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no server, and do not open the database.")] = False,
) -> None:
    """Collect version, settings without secrets, health and recent errors. Read the file before you send it."""
    from diagnoser.config import self_check, settings
    from diagnoser.config.site_files import load_redactor
    from diagnoser.redaction.redact import masked

    site, faults = settings.read(os.environ)
    parts = asyncio.run(self_check.findings(os.environ, reach=not offline))
    content: dict[str, Any] = {
        "diagnoser": metadata.version("diagnoser"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "settings": {name: shown(getattr(site, name)) for name in sorted(site.model_fields_set)},
        "faults": faults,
        "health": list(map(asdict, parts)),
        "errors": recent_errors(log) if log else [],
    }
    redact = load_redactor(site, addresses=True)
    text = orjson.dumps(masked(content, lambda given: redact(without_credentials(given))), option=orjson.OPT_INDENT_2)
    if str(file) == "-":
        out.file.write(text.decode() + "\n")
        return
    file.write_bytes(text + b"\n")
    file.chmod(0o600)
    out.print(f"{file} written: read it before you send it")


def shown(value: object) -> object:
    """A setting as others may see it: a secret is only set or empty, and an address is its scheme and host."""
    if isinstance(value, SecretStr):
        return "(set)" if value.get_secret_value() else ""
    if isinstance(value, str) and "://" in value:
        parts = urlsplit(without_credentials(value))
        return f"{parts.scheme}://{parts.netloc}/..."
    if isinstance(value, str | int | float | bool | None):
        return value
    return str(value)


def without_credentials(text: str) -> str:
    return _CREDENTIALS.sub("//", text)


def recent_errors(log: Path) -> list[str]:
    with log.open(encoding="utf-8", errors="replace") as lines:
        return [*deque((line.rstrip()[:2000] for line in lines if _TROUBLE.search(line)), maxlen=ERRORS_SHOWN)]
