"""`mcp`: lets an assistant read what this service knows, over the Model Context Protocol."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from diagnoser.adapters import files
from diagnoser.commands.terminal import site
from diagnoser.model.errors import BadInput

TOKEN = "DIAGNOSER_TOKEN"  # noqa: S105 - the name of a variable


def mcp(
    url: Annotated[str, typer.Option(help="Address of the service.")] = "http://127.0.0.1:8321",
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with a token of the scope read. Without it: the variable DIAGNOSER_TOKEN, or none."),
    ] = None,
) -> None:
    """Serve an assistant over standard input and output: it can read incidents, diagnoses and logs, and change nothing.
    Needs the extra `mcp`."""
    token = os.environ.pop(TOKEN, "")
    if token_file:
        token = files.text(token_file).strip()
    try:
        from diagnoser.integrations import mcp_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise BadInput("this needs the extra mcp: pip install 'diagnoser[mcp]'") from None
    from diagnoser.config.site_files import load_redactor

    asyncio.run(mcp_server.serve(url, token, load_redactor(site())))
