"""`rules export`: write learned rules as rule files."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from diagnoser.commands.http_client import fetch_json
from diagnoser.commands.terminal import ReadToken, out, site
from diagnoser.model import LearnedState
from diagnoser.model.errors import BadInput

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
    files = _rules_to_export(url, token, state)
    for path, text in sorted(files.items()):
        target = folder / path
        if not target.resolve().is_relative_to(folder.resolve()):
            raise BadInput(f"the service returned a path outside the folder: {path!r}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    out.print(f"{len(files)} rules written to {folder}", markup=False, highlight=False)


def _rules_to_export(url: str, token: str, state: LearnedState) -> dict[str, str]:
    """Read the text of each rule by its path, of a service or of the configured database."""
    if url:
        return dict(_served(url, token, state))
    return asyncio.run(_stored(state))


def _served(url: str, token: str, state: LearnedState) -> Iterator[tuple[str, str]]:
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


async def _stored(state: LearnedState) -> dict[str, str]:
    from diagnoser.adapters.sql.store import open_store  # the other commands start without it
    from diagnoser.learning.rule_lifecycle import file_of
    from diagnoser.model.queries import LearnedRuleQuery

    store = await open_store(site().database_url)
    files: dict[str, str] = {}
    try:
        after = ""
        while page := await store.rules.page(LearnedRuleQuery((state,)), after, _PAGE):
            for rule in page:
                if rule.text:
                    files[file_of(rule)] = rule.text
            after = page[-1].id
    finally:
        await store.close()
    return files
