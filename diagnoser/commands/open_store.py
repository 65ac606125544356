"""Commands that read or change what the service has stored; what they change is in the audit log."""

import asyncio
import getpass
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from diagnoser.commands.terminal import site
from diagnoser.model.audit import Actor, ActorKind
from diagnoser.ports import AuditedCall, auditing

if TYPE_CHECKING:
    from diagnoser.adapters.sql.store import SqlStore

Answer = TypeVar("Answer")


def with_store(act: "Callable[[SqlStore], Awaitable[Answer]]", command: str) -> Answer:
    """Open the store of the settings for one act. command: for the audit log, without its arguments."""

    async def run() -> Answer:
        from diagnoser.adapters.sql.store import open_store  # the other commands start without it

        store = await open_store(site().database_url)
        actor = Actor(_user(), ActorKind.COMMAND, socket.gethostname())
        try:
            with auditing(AuditedCall(f"diagnoser {command}", time.time(), actor.address, actor)):
                return await act(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _user() -> str:
    """Name of the operating system's user; in a container it may have a number only."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def read_password(name: str) -> str:
    """Asked for twice at a terminal; otherwise the first line of standard input."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    import typer

    password: str = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    return password
