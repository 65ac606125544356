"""What all commands share: the two consoles, the options they have in common, and how they print and complain."""

import os
import sys
from typing import Annotated

import orjson
import typer
from rich.console import Console

from diagnoser.config import settings
from diagnoser.config.settings import Settings

out = Console()
err = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines.")]


def site() -> Settings:
    """The settings of the environment. Raises BadInput with every fault."""
    return settings.load(os.environ)


def complain(text: str) -> None:
    """One line, however narrow the terminal: it may be read by a program."""
    err.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    sys.stdout.write(orjson.dumps(value).decode() + "\n")
    sys.stdout.flush()
