"""`rules diff`: what a site changed of the shipped rules, and what an upgrade changed below it."""

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from diagnoser.commands.terminal import AsJson, out, print_json, site
from diagnoser.config.folders import RuleFiles, folder_texts, read_rule_files
from diagnoser.model.errors import BadInput
from diagnoser.model.lines import printable

RECORD = ".shipped"
"""Folder in the site's, with the shipped files as they were when the site last looked at them."""
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class Change:
    """kind: added, replaced, equal, disabled, or upgraded: the shipped file is not the recorded one any more. diff: of
    a replaced file against the shipped one, of an upgraded one against the recorded one."""

    kind: str
    name: str
    diff: tuple[str, ...] = ()


def rules_diff(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of the site's rules. Default: that of DIAGNOSER_RULES_DIR.")
    ] = None,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept", help=f"Record the shipped files that the site replaces, in {RECORD}: upgrades are compared."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a site changed of the shipped rules, and what an upgrade changed in files that the site replaces."""
    folder = folder or site().rules_dir
    if folder is None:
        raise BadInput("this site has no rules: name their folder, or set DIAGNOSER_RULES_DIR")
    rule_files = read_rule_files(folder)
    record = folder / RECORD
    if accept:
        _write_record(rule_files, record)
    changes = [*changes_of(rule_files, _recorded(record))]
    if as_json:
        for change in changes:
            print_json(asdict(change))
    else:
        _print(changes, len(_recorded(record)), rule_files)


def changes_of(rule_files: RuleFiles, recorded: dict[str, str]) -> Iterator[Change]:
    """recorded: path -> text of the shipped files as they were."""
    for path, text in sorted(rule_files.site.items()):
        shipped = rule_files.replaced.get(path)
        if shipped is None:
            yield Change("added", path)
        elif text == rule_files.shipped[shipped]:
            yield Change("equal", path)
        else:
            yield Change("replaced", path, _diff(rule_files.shipped[shipped], text))
    for name in (*rule_files.disabled.rules, *(f"filters/{name}" for name in rule_files.disabled.filters)):
        yield Change("disabled", name)
    for path, text in sorted(recorded.items()):
        now = rule_files.shipped.get(path, "")
        if now != text:
            yield Change("upgraded", path, _diff(text, now))


def _diff(before: str, after: str) -> tuple[str, ...]:
    lines = unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return tuple(lines)[2:]  # without the two lines of names


def _recorded(record: Path) -> dict[str, str]:
    return folder_texts(record) if record.is_dir() else {}


def _write_record(rule_files: RuleFiles, record: Path) -> None:
    if record.exists():
        shutil.rmtree(record)
    for path in rule_files.replaced.values():
        target = record / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(rule_files.shipped[path], "utf-8")


def _print(changes: list[Change], recorded: int, rule_files: RuleFiles) -> None:
    for change in changes:
        if change.kind == "equal":
            continue
        out.print(Text(f"{change.kind:<9} {printable(change.name)}", style="bold"))
        for line in change.diff:
            out.print(Text(f"  {printable(line)}", style=_COLOURS.get(line[:1], "")), soft_wrap=True)
    equal = sum(change.kind == "equal" for change in changes)
    if equal:
        out.print(f"{equal} files are equal to the shipped ones: delete them, and upgrades reach them", style="dim")
    if len(set(rule_files.replaced.values())) > recorded:
        out.print("`diagnoser rules diff --accept` records what is replaced, to compare the next upgrade", style="dim")
    if not changes:
        out.print("nothing differs from the shipped rules", style="dim")
