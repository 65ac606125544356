"""`run`, `ship`, `send` and `checkpoint`: the client, which parses its own options and runs as a process of its own.

It takes the place of this process: what runs beside a training for weeks shall not hold all that this one has loaded.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer

from diagnoser.client import cli as client_cli

_AS_GIVEN = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def command(name: str) -> Any:
    """The client's command, or group of commands, of this name, as typer calls it."""
    client = typer.Typer(add_completion=False)
    groups: dict[tuple[str, ...], typer.Typer] = {(): client}
    for words, parser in parsers().items():
        *group, leaf = words.split()
        if tuple(group) not in groups:
            groups[tuple(group)] = typer.Typer(no_args_is_help=True, help="Verify, list and choose checkpoints.")
            client.add_typer(groups[tuple(group)], name=" ".join(group))
        first, _, _ = (parser.description or "").partition(". ")
        groups[tuple(group)].command(
            name=leaf,
            help=parser.description,
            short_help=f"{first.removesuffix('.')}.",
            context_settings=_AS_GIVEN,
        )(_become(words))
    return typer.main.get_group(client).commands[name]


def parsers() -> Mapping[str, argparse.ArgumentParser]:
    """The client's own parser of each of its commands, by its words."""
    return dict(_leaves("", client_cli.parser()))


def _leaves(words: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    groups = [
        action
        for action in parser._actions  # argparse has no public way
        if isinstance(action, argparse._SubParsersAction)
    ]
    if not groups:
        yield words, parser
    for group in groups:
        for name, child in group.choices.items():
            yield from _leaves(f"{words} {name}".strip(), child)


def _become(name: str) -> Callable[[], None]:
    def become() -> None:
        words = sys.argv[sys.argv.index(name.split()[0]) :]
        # -P: nothing of the current folder is imported
        os.execv(sys.executable, [sys.executable, "-P", "-m", "diagnoser.client", *words])  # noqa: S606

    return become
