"""What all commands share: the consoles, common options, and how results and errors are printed."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.console import Console

if TYPE_CHECKING:
    from diagnoser.config.settings import Settings

PIPE_WIDTH = 1000
"""Characters of a table's row that a program reads: none of its cells is cut."""

out = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
err = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


def site() -> "Settings":
    """Read the settings of the environment. Raises BadInput, which lists every fault."""
    from diagnoser.config import removed_settings, settings

    for warning in removed_settings.warnings(os.environ):
        complain(f"diagnoser: {warning}")
    return settings.load(os.environ)


def complain(text: str) -> None:
    """One line on standard error, unwrapped: a program may read it."""
    err.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    sys.stdout.write(orjson.dumps(value).decode() + "\n")
    sys.stdout.flush()
