"""`run`, `ship` and `send`: the client, which parses its own options and runs as a process of its own.

It takes the place of this process: what runs beside a training for weeks shall not hold all that this one has loaded.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping

import typer

from diagnoser.client import cli as client_cli

_AS_GIVEN = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_to(cli: typer.Typer) -> None:
    for name, parser in parsers().items():
        cli.command(name=name, help=parser.description, context_settings=_AS_GIVEN)(_become(name))


def parsers() -> Mapping[str, argparse.ArgumentParser]:
    """The client's own parser of each of its commands."""
    (commands,) = (
        action
        for action in client_cli.parser()._actions  # argparse has no public way
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(commands.choices)


def _become(name: str) -> Callable[[], None]:
    def become() -> None:
        words = sys.argv[sys.argv.index(name) :]
        # -P: nothing of the current folder is imported
        os.execv(sys.executable, [sys.executable, "-P", "-m", "diagnoser.client", *words])  # noqa: S606

    return become
