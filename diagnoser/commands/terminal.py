"""What all commands share: the consoles, common options, and how results and errors are printed."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import orjson
import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from diagnoser.config.settings import Settings

T = TypeVar("T")

PIPE_WIDTH = 1000
"""Characters of a table's row that a program reads: none of its cells is cut."""

# What is printed was partly written by jobs: nothing in it is markup, and nothing is coloured that was not asked for.
out = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, markup=False, highlight=False, emoji=False)
err = Console(stderr=True, markup=False, highlight=False, emoji=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
ReadToken = Annotated[str, typer.Option(envvar="DIAGNOSER_TOKEN", help="Token of that service with the scope read.")]


def site() -> "Settings":
    """Read the settings of the environment. Raises BadInput, which lists every fault."""
    from diagnoser.config import settings

    return settings.load(os.environ)


def complain(text: str) -> None:
    """One line on standard error, unwrapped: a program may read it."""
    err.print(text, style="red", soft_wrap=True)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table whose cells are folded where the terminal is narrow."""
    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def print_list(
    items: Sequence[T],
    as_json: bool,
    fields: Callable[[T], object],
    columns: Sequence[str],
    row: Callable[[T], Sequence[str]],
) -> None:
    """Print a JSON object for each item, or a table with a row for each."""
    if not as_json:
        print_rows(columns, map(row, items))
        return
    for item in items:
        print_json(fields(item))


def iso(moment: float | None) -> str | None:
    """Write a time for programs, in UTC; None where there is none."""
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def minute(moment: float | None) -> str:
    """Write a time for people, in UTC."""
    if moment is None:
        return "never"
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M")


def print_json(value: object) -> None:
    sys.stdout.write(orjson.dumps(value).decode() + "\n")
    sys.stdout.flush()
