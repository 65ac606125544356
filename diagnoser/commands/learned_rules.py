"""`rules export`: write learned rules as rule files."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diagnoser.commands.http_client import fetch_json
from diagnoser.commands.open_store import with_store
from diagnoser.commands.terminal import ReadToken, out, site
from diagnoser.model import LearnedState
from diagnoser.model.errors import BadInput
from diagnoser.model.queries import LearnedRuleQuery

if TYPE_CHECKING:
    from diagnoser.adapters.sql.store import SqlStore

_PAGE = 500


def rules_export(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder to write <category>/<id>.yaml files to. Default: that of DIAGNOSER_RULES_DIR."),
    ] = None,
    url: Annotated[str, typer.Option(help="Address of the service. Default: the configured database.")] = "",
    token: ReadToken = "",
    state: Annotated[LearnedState, typer.Option(help="Export rules in this state.")] = LearnedState.ACTIVE,
) -> None:
    """Write learned rules as rule files, which `diagnoser rules test FOLDER` can test."""
    folder = folder or site().rules_dir
    if folder is None:
        raise BadInput("name a folder to write to, or set DIAGNOSER_RULES_DIR")
    files = dict(_served(url, token, state)) if url else with_store(partial(_stored, state), "rules export")
    for path, text in sorted(files.items()):
        target = folder / path
        if not target.resolve().is_relative_to(folder.resolve()):
            raise BadInput(f"the service returned a path outside the folder: {path!r}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    out.print(f"{len(files)} rules written to {folder}")


def _served(url: str, token: str, state: LearnedState) -> Iterator[tuple[str, str]]:
    """Read path and text of each rule of a service."""
    after = ""
    while True:
        query = f"state={state}&limit={_PAGE}&after={after}"
        page: dict[str, Any] = fetch_json(f"{url.rstrip('/')}/api/v1/rules?{query}", token)
        for rule in page["items"]:
            if rule["text"]:
                yield str(rule["path"]), str(rule["text"])
        after = page["next"]
        if not after:
            return


async def _stored(state: LearnedState, store: "SqlStore") -> dict[str, str]:
    """Read the text of each rule by its path, of the configured database."""
    from diagnoser.learning.rule_lifecycle import file_of  # the other commands start without it

    files: dict[str, str] = {}
    after = ""
    while page := await store.rules.page(LearnedRuleQuery((state,)), after, _PAGE):
        for rule in page:
            if rule.text:
                files[file_of(rule)] = rule.text
        after = page[-1].id
    return files
