"""`logs`: the lines of a job as they came, from a running service."""

import math
import sys
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from diagnoser.commands.http_client import fetch_json
from diagnoser.commands.terminal import AsJson, ReadToken, complain, print_json, site
from diagnoser.config import tls
from diagnoser.model.errors import BadInput

_WINDOW = 5_000


def logs(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    attempt: Annotated[int | None, typer.Option(min=1, help="Launch of the job. Default: the latest.")] = None,
    source: Annotated[str, typer.Option(help="Name of the stream, such as stdout.")] = "",
    node: Annotated[str, typer.Option(help="Node that the shipper named.")] = "",
    rank: Annotated[int | None, typer.Option(min=-1, help="Rank that the shipper named; -1: none.")] = None,
    first: Annotated[int, typer.Option("--from", min=1, help="Number of the first line.")] = 1,
    last: Annotated[int | None, typer.Option("--to", min=1, help="Number of the last line.")] = None,
    url: Annotated[str, typer.Option(help="Address of the service. Default: DIAGNOSER_HOST and DIAGNOSER_PORT.")] = "",
    token: ReadToken = "",
    as_json: AsJson = False,
) -> None:
    """Print the lines of one stream of a job as they came. What is left of others is printed on standard error: without
    an archive (DIAGNOSER_ARCHIVE), lines last until they are compressed."""
    settings = site()
    service = url.rstrip("/") or tls.address(settings)
    place = f"{service}/api/v1/jobs/{quote(job, safe='')}"
    if attempt is None:
        attempt = max((stored["number"] for stored in fetch_json(place, token)["attempts"]), default=0)
        if not attempt:
            raise BadInput(f"{job} has no attempt yet")
    options: dict[str, object] = {"source": source, "node": node, "rank": rank, "to": last, "limit": _WINDOW}
    given = {name: value for name, value in options.items() if value not in (None, "")}
    following: int | None = first
    end = math.inf if last is None else last
    while following is not None and following <= end:
        query = urlencode(given | {"from": following})
        window = fetch_json(f"{place}/attempts/{attempt}/lines?{query}", token)
        if as_json:
            print_json(window)
        else:
            _print(window)
        following = window["next"]


def _print(window: dict[str, Any]) -> None:
    for gap in window["compressed"]:
        complain(f"lines {gap['first']:,} to {gap['last']:,}: only the compressed log is left")
    for gap in window["never_sent"]:
        complain(f"lines {gap['first']:,} to {gap['last']:,} never arrived")
    for line in window["lines"]:
        sys.stdout.write(line["text"])
        if line["cut"]:
            sys.stdout.write(f" ...<{line['cut']} bytes cut>")
        sys.stdout.write("\n")
    sys.stdout.flush()
