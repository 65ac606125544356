"""Verdicts for people at a terminal, and the JSON contract for machines."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from diagnoser.model.diagnosis import ASK_REASONS, MODEL_EFFECTS, Diagnosis, ModelUse, RootCause, changed_by_model
from diagnoser.model.evidence import Compression
from diagnoser.model.hangs import cited_place
from diagnoser.model.taxonomy import Category
from diagnoser.wording.words import action_words, lower_first, reason

OnBytes = Callable[[int], None]
COLOURS = {
    Category.INFRASTRUCTURE: "red",
    Category.FRAMEWORK: "yellow",
    Category.SCRIPT: "magenta",
    Category.NONE: "green",
    Category.UNKNOWN: "bright_black",
}


PANEL_WIDTH = 160
LINE_SHOWN = 400
"""Characters of a cited line that a terminal shows; `--json` has all of them."""


def clipped(text: str) -> str:
    left = len(text) - LINE_SHOWN
    if left <= 0:
        return text
    return f"{text[:LINE_SHOWN]}… ({left:,} more characters)"


def contract(diagnosis: Diagnosis) -> dict[str, Any]:
    """The fixed contract of `diagnose --json`; fields outside the contract come after it."""
    return asdict(diagnosis)


def answer(verdict: Diagnosis) -> str:
    """The type in words; of a guess, what it most likely is."""
    return verdict.guess or verdict.type.replace("_", " ")


def diagnosis(console: Console, name: str, verdict: Diagnosis) -> None:
    """Print a box as wide as the terminal. A pipe and a CI log get a line for each row, which nothing folds."""
    colour = COLOURS[verdict.category]
    head = Text.assemble((answer(verdict), f"bold {colour}"), f"  {verdict.category}, ")
    head.append(f"{verdict.outcome}, {verdict.confidence:.0%} sure")
    if not console.is_terminal:
        lines = [Text(name), head, *(Text(f"{label:<12}{text}") for label, text in _rows(verdict))]
        console.print(*lines, sep="\n  ", soft_wrap=True)
        return
    body = Table.grid(padding=(0, 2))
    body.add_column(style="bold", no_wrap=True)
    body.add_column(overflow="fold")
    for label, text in _rows(verdict):
        body.add_row(label, Text(text))
    panel = Panel(Group(head, body), title=name, title_align="left", border_style=colour)
    console.print(panel, width=min(console.width, PANEL_WIDTH))


def _rows(verdict: Diagnosis) -> Iterator[tuple[str, str]]:
    if verdict.held_up:
        yield "hang", verdict.held_up
    yield from _root(verdict.root_cause)
    for suspect in verdict.nodes[:3]:
        yield "suspect", f"{suspect.node} ({suspect.score:.2f}) {suspect.why}"
    for symptom in verdict.symptoms[:3]:
        yield "symptom", f"{cited_place(symptom.source, symptom.line)}: {symptom.text[:160]}"
    if len(verdict.symptoms) > 3:
        yield "", f"and {len(verdict.symptoms) - 3} more"
    yield "action", f"{action_words(verdict.recovery.action)} ({lower_first(reason(verdict.recovery.reason))})"
    yield "what to do", verdict.mitigation
    for note in verdict.notes:
        yield "note", note
    yield from model_part(verdict)
    if verdict.left_out.lines:
        yield "left out", f"{verdict.left_out.lines} lines: {verdict.left_out.why}"
    yield "decided by", verdict.decided_by  # by this row a quoted diagnosis is known to end


def _root(root: RootCause | None) -> list[tuple[str, str]]:
    """The line that shows the cause, or what the runtime recorded, and its place."""
    if root is None:
        return []
    text = clipped(root.text)
    if root.line > 0:
        return [("root line", f"{root.line}: {text}"), *places_of(root)]
    return [(cited_place(root.source, 0), text), *places_of(root)]


def places_of(root: RootCause) -> Iterator[tuple[str, str]]:
    """Name the rank, node and GPU of a cause, as far as they are known."""
    for name in ("rank", "node", "gpu"):
        value = getattr(root, name)
        if value is not None:
            yield name, str(value)


def model_part(verdict: Diagnosis) -> list[tuple[str, str]]:
    """What a model had to do with the verdict: why it was asked, what came of it, and whether a person has to look."""
    rows = []
    if verdict.needs_review:
        rows.append(("needs review", verdict.needs_review))
    if use := verdict.model:
        rows.append(("model", f"asked because {'; '.join(map(ASK_REASONS.__getitem__, use.asked))}"))
        rows.append(("", f"{use.model}: {_model_effect(verdict, use)}"))
        if use.tools:
            rows.append(("looked at", "; ".join(tool.call for tool in use.tools)))
        if pair := use.hypotheses:
            rows.append(("best causes", f"{pair.first}, then {pair.second}. {pair.tells_apart}".strip()))
    return rows


def _model_effect(verdict: Diagnosis, use: ModelUse) -> str:
    if use.failure:
        return use.failure.replace("_", " ")
    effects = [MODEL_EFFECTS[use.effect]]
    for name, old, new in changed_by_model(verdict):
        effects.append(f"{name} {old or 'none'} -> {new or 'none'}")
    return ", ".join(effects)


def compression(figures: Compression, seconds: float) -> str:
    share = figures.bytes_out / max(figures.bytes_in, 1)
    speed = 0.0
    if seconds:
        speed = figures.lines_in / seconds
    return (
        f"{figures.lines_in:,} lines ({figures.bytes_in:,} bytes) -> {figures.lines_out:,} lines "
        f"({figures.bytes_out:,} bytes, {share:.2%}) in {seconds:.2f} s, {speed:,.0f} lines/s"
    )
