"""`diagnoser explain`: a diagnosis for a person: verdict, chain, lines with context, what was rejected and why."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from diagnoser.commands.render import COLOURS, contract
from diagnoser.model import Diagnosis, Line, RootCause, Symptom
from diagnoser.web.excerpt import Excerpt, ExcerptRow, LineRole, excerpts

_STYLES = {LineRole.ROOT: "bold red", LineRole.EVIDENCE: "bold", LineRole.SYMPTOM: "yellow", LineRole.CONTEXT: "dim"}
_SIGNS = {LineRole.ROOT: ">>", LineRole.EVIDENCE: " >", LineRole.SYMPTOM: " ~", LineRole.CONTEXT: "  "}
_SHOWN = 160
"""Characters of a line where it is only named; in its context it is shown whole."""
_LISTED = 4
"""Rejected lines that are named for each reason."""


def explained(found: Diagnosis, kept: Sequence[Line]) -> dict[str, Any]:
    """What `explain --json` prints: the contract of `diagnose`, and ``context``, the lines around those it cites."""
    return {**contract(found), "context": [asdict(one) for one in excerpts(found, kept)]}


def explain(console: Console, name: str, found: Diagnosis, kept: Sequence[Line]) -> None:
    """kept: all lines that the compressor kept. No line is folded, so that a pipe gets each as one line."""
    parts = (
        _verdict(name, found),
        _chain(found),
        _new_lines(found),
        _context(excerpts(found, kept)),
        _rejected(found),
        _aside(found),
    )
    for part in parts:
        for line in part:
            console.print(line, soft_wrap=True, highlight=False)


def _verdict(name: str, found: Diagnosis) -> Iterable[Text]:
    colour = COLOURS[found.category]
    yield Text.assemble((_plain(name), "bold"))
    yield Text.assemble(
        "  ",
        (found.type.replace("_", " "), f"bold {colour}"),
        f"  ({found.category}, {found.outcome}), {found.confidence:.0%} sure, decided by {found.decided_by}",
    )
    if found.root_cause and (where := _where(found.root_cause)):
        yield Text(f"  {where}")
    for suspect in found.nodes:
        yield Text(f"  suspect {_plain(suspect.node)} ({suspect.score:.2f}): {_plain(suspect.why)}")
    yield Text.assemble("  ", ("action ", "bold"), f"{found.recovery.action} ({_plain(found.recovery.reason)})")
    yield Text.assemble("  ", ("what to do ", "bold"), _plain(found.mitigation))


def _where(root: RootCause) -> str:
    named = (("rank", root.rank), ("node", root.node), ("gpu", root.gpu))
    return ", ".join(f"{name} {_plain(str(value))}" for name, value in named if value is not None)


def _chain(found: Diagnosis) -> Iterable[Text]:
    """The root, then what follows from it, types in the order in which they first show."""
    yield _heading("Chain")
    root = found.root_cause
    if root is None:
        yield Text("  no line shows a cause")
        return
    yield Text.assemble("  ", (f"{_place(root.source, root.line)} {found.type}", "bold red"))
    kinds: dict[str, list[Symptom]] = {}
    for symptom in found.symptoms:
        kinds.setdefault(symptom.type, []).append(symptom)
    for kind, same in kinds.items():
        more = f", and {len(same) - 1} more" if len(same) > 1 else ""
        head = f"    -> {_place(same[0].source, same[0].line)} {kind}{more}: "
        yield Text.assemble((head, "yellow"), _short(same[0].text))
    if not kinds:
        yield Text("    -> nothing else in the log is its consequence")


def _new_lines(found: Diagnosis) -> Iterable[Text]:
    if found.new_lines:
        yield _heading("Not in clean runs")
    width = max((len(str(one.line)) for one in found.new_lines), default=0)
    for why, group in groupby(found.new_lines, key=lambda one: one.why):
        for one in group:
            yield Text.assemble((f" + {one.line:>{width}} ", "cyan"), _short(one.text))
        yield Text(f"   {'':{width}} ^ {why}", style="italic")


def _context(shown: Sequence[Excerpt]) -> Iterable[Text]:
    if shown:
        yield _heading("Evidence")
    for one in shown:
        node = f" of {_plain(one.stream.node)}" if one.stream.node else ""
        if len(shown) > 1 or node:
            yield Text(f"  {_plain(one.stream.source)}{node}", style="underline")
        width = max(len(str(row.number)) for row in one.rows)
        for row in one.rows:
            yield from _row(row, width)


def _row(row: ExcerptRow, width: int) -> Iterable[Text]:
    if row.gap > 0:
        yield Text(f"  {'':{width}}    ... {row.gap:,} lines", style="dim italic")
    yield Text.assemble(
        (f"{_SIGNS[row.role]} {row.number:>{width}} ", "cyan" if row.role is not LineRole.CONTEXT else "dim"),
        (_plain(row.text), _STYLES[row.role]),
    )
    if row.note:
        yield Text(f"   {'':{width}} ^ {_plain(row.note)}", style="italic")


def _rejected(found: Diagnosis) -> Iterable[Text]:
    """Candidates that are not the cause, by reason; the consequences of the cause stand in the chain."""
    chained = {(one.line, one.text) for one in found.symptoms}
    others = [one for one in found.rejected if (one.line, one.text) not in chained]
    if others:
        yield _heading("Not the cause")
    for why, group in groupby(sorted(others, key=lambda one: (one.why, one.line)), key=lambda one: one.why):
        same = list(group)
        yield Text(f"  {_plain(why)}:", style="italic")
        for one in same[:_LISTED]:
            yield Text.assemble((f"    {one.line} {one.type}: ", "dim"), _short(one.text))
        if len(same) > _LISTED:
            yield Text(f"    and {len(same) - _LISTED} more", style="dim")


def _aside(found: Diagnosis) -> Iterable[Text]:
    """Notes, how far training came, and what nobody sees here."""
    yield _heading("Notes")
    for note in found.notes:
        yield Text(f"  {_plain(note)}")
    if found.step is not None:
        yield Text(f"  last training step in the log: {found.step}")
    if back := found.rollback:
        yield Text(
            f"  go back to {_plain(back.checkpoint) or 'the last checkpoint before the break'}, "
            f"skip the batches of steps {back.skip_from}..{back.skip_to}"
        )
    figures = found.compression
    yield Text(f"  read {figures.lines_in:,} lines, kept {figures.lines_out:,}")
    if found.left_out.lines:
        yield Text(f"  left out {found.left_out.lines:,} lines: {_plain(found.left_out.why)}")


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _place(source: str, line: int) -> str:
    return f"line {line}" if source == "stdout" else f"{_plain(source)} line {line}"


def _short(text: str) -> str:
    plain = _plain(text)
    return plain if len(plain) <= _SHOWN else plain[: _SHOWN - 1] + "…"


def _plain(text: str) -> str:
    """Log text must not steer the terminal it is shown on."""
    return "".join(char if char.isprintable() else " " if char == "\t" else "�" for char in text)
