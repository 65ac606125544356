"""`diagnoser explain`: a diagnosis for people: verdict, chain, lines with context, what was rejected and why."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from diagnoser.commands.render import COLOURS, answer, clipped, contract, model_part, places_of
from diagnoser.hang.report import HangReport
from diagnoser.hang.report import contract as hang_contract
from diagnoser.hang.wait_graph import GroupState
from diagnoser.model import Diagnosis, Line, Rollback, RootCause, Symptom, cited_place
from diagnoser.model.lines import printable, shortened
from diagnoser.web.pages.excerpt import Excerpt, ExcerptRow, LineRole, excerpts
from diagnoser.web.pages.hang_view import waiting
from diagnoser.wording.collapse_ranks import ranges
from diagnoser.wording.phrases import after

_STYLES = {LineRole.ROOT: "bold red", LineRole.EVIDENCE: "bold", LineRole.SYMPTOM: "yellow", LineRole.CONTEXT: "dim"}
SIGNS = {LineRole.ROOT: ">>", LineRole.EVIDENCE: " >", LineRole.SYMPTOM: " ~", LineRole.CONTEXT: "  "}
_SHOWN = 160
"""Characters of a line in a list; in its context more of it is shown."""
_LISTED = 4
"""Rejected lines listed for each reason, and suspects of a hang."""
_GROUPS = 12
"""Groups of ranks listed."""


def explained(verdict: Diagnosis, kept: Sequence[Line], hang: HangReport | None = None) -> dict[str, Any]:
    """What `explain --json` prints: the contract of `diagnose`, ``context``, the lines around those it cites, and under
    ``hang`` also what `hang --json` prints."""
    verdict_json = contract(verdict)
    if hang:
        verdict_json["hang"] = {**(verdict_json["hang"] or {}), **hang_contract(hang)}
    return {**verdict_json, "context": list(map(asdict, excerpts(verdict, kept)))}


def explain(
    console: Console, name: str, verdict: Diagnosis, kept: Sequence[Line], hang: HangReport | None = None
) -> None:
    """kept: all lines that the compressor kept. hang: what the dumps of the ranks show, if there are any. No line of a
    log is folded, and a pipe gets each line as one."""
    console.print(_plain(name), style="bold", markup=False, highlight=False, soft_wrap=True)
    for sentence in _verdict(verdict):
        indented = Padding(sentence, (0, 0, 0, 2), expand=False)
        console.print(indented if console.is_terminal else Text("  ") + sentence, soft_wrap=not console.is_terminal)
    parts = (
        _chain(verdict),
        _new_lines(verdict),
        _hang(hang),
        _context(excerpts(verdict, kept)),
        _rejected(verdict),
        _aside(verdict),
    )
    for part in parts:
        for line in part:
            console.print(line, soft_wrap=True, highlight=False)


def _verdict(verdict: Diagnosis) -> Iterable[Text]:
    colour = COLOURS[verdict.category]
    yield Text.assemble(
        (answer(verdict), f"bold {colour}"),
        f"  ({verdict.category}, {verdict.outcome}), {verdict.confidence:.0%} sure, decided by {verdict.decided_by}",
    )
    if verdict.held_up:
        yield Text(_plain(verdict.held_up), style="bold")
    if where := _where(verdict.root_cause):
        yield Text(where)
    for suspect in verdict.nodes:
        yield Text(f"suspect {_plain(suspect.node)} ({suspect.score:.2f}): {_plain(suspect.why)}")
    yield Text.assemble(("action ", "bold"), f"{verdict.recovery.action} ({_plain(verdict.recovery.reason)})")
    yield Text.assemble(("what to do ", "bold"), _plain(verdict.mitigation))
    for name, text in model_part(verdict):
        label = "  "
        if name:
            label = f"{name} "
        yield Text.assemble((label, "bold"), _plain(text))


def _where(root: RootCause | None) -> str:
    if root is None:
        return ""
    return ", ".join(f"{name} {_plain(value)}" for name, value in places_of(root))


def _chain(verdict: Diagnosis) -> Iterable[Text]:
    """The root, then its consequences by type, in the order in which each type first appears."""
    yield _heading("Chain")
    root = verdict.root_cause
    if root is None:
        yield Text("  no line shows a cause")
        return
    yield Text.assemble("  ", (f"{_plain(cited_place(root.source, root.line))} {verdict.type}", "bold red"))
    kinds: dict[str, list[Symptom]] = {}
    for symptom in verdict.symptoms:
        kinds.setdefault(symptom.type, []).append(symptom)
    for kind, group in kinds.items():
        more = ""
        if len(group) > 1:
            more = f", and {len(group) - 1} more"
        head = f"    -> {_plain(cited_place(group[0].source, group[0].line))} {kind}{more}: "
        yield Text.assemble((head, "yellow"), _short(group[0].text))
    if not kinds:
        yield Text("    -> nothing else in the log is its consequence")


def _hang(hang: HangReport | None) -> Iterable[Text]:
    """Say who is suspected, who waits for whom, and where each group stands; nothing without dumps."""
    if hang is None:
        return
    yield _heading("Who waits for whom")
    for suspect in hang.suspects[:_LISTED]:
        where = after(" on ", _plain(suspect.node))
        yield Text.assemble("  ", (f"rank {suspect.rank}", "bold red"), f"{where}: {_plain(suspect.why)}")
    for note in hang.notes:
        yield Text(f"  {_plain(note)}")
    for wait in waiting(hang.graph)[:_LISTED]:
        yield Text(f"    {ranges(wait.waiters)} -> {ranges(wait.awaited)}  {_plain(wait.operation)}".rstrip())
    yield from _group_table(hang.graph.groups[:_GROUPS])
    if hang.graph.not_seen:
        yield Text(f"  no dump of {ranges(hang.graph.not_seen)}")


def _group_table(groups: Sequence[GroupState]) -> Iterable[Text]:
    if not groups:
        return
    rows = [("group", "ranks", "at", "stands in", "behind"), *map(_group_row, groups)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *lines = ("  ".join(map(str.ljust, row, widths)) for row in rows)
    yield Text(f"  {head}".rstrip(), style="dim")
    for line in lines:
        yield Text(f"  {line}".rstrip())


def _group_row(state: GroupState) -> tuple[str, str, str, str, str]:
    behind = [f"{rank} at {sequence}" for rank, sequence in state.behind.items()]
    highest = ""
    if state.highest >= 0:
        highest = str(state.highest)
    return (
        _plain(state.group.title),
        ranges(state.group.ranks),
        highest,
        _plain(state.operation),
        ", ".join(behind[:_LISTED]),
    )


def _new_lines(verdict: Diagnosis) -> Iterable[Text]:
    if verdict.new_lines:
        yield _heading("Not in clean runs")
    width = max((len(str(line.line)) for line in verdict.new_lines), default=0)
    for why, group in groupby(verdict.new_lines, key=lambda line: line.why):
        for line in group:
            yield Text.assemble((f" + {line.line:>{width}} ", "cyan"), _short(line.text))
        yield Text(f"   {'':{width}} ^ {why}", style="italic")


def _context(excerpts: Sequence[Excerpt]) -> Iterable[Text]:
    if excerpts:
        yield _heading("Evidence")
    for excerpt in excerpts:
        if excerpt.stream.node:
            yield Text(f"  {_plain(excerpt.stream.source)} of {_plain(excerpt.stream.node)}", style="underline")
        elif len(excerpts) > 1:
            yield Text(f"  {_plain(excerpt.stream.source)}", style="underline")
        width = max(len(str(row.number)) for row in excerpt.rows)
        for row in excerpt.rows:
            yield from _row(row, width)


def _row(row: ExcerptRow, width: int) -> Iterable[Text]:
    if row.gap > 0:
        yield Text(f"  {'':{width}}    ... {row.gap:,} lines", style="dim italic")
    colour = "cyan"
    if row.role is LineRole.CONTEXT:
        colour = "dim"
    yield Text.assemble(
        (f"{SIGNS[row.role]} {row.number:>{width}} ", colour),
        (_plain(clipped(row.text)), _STYLES[row.role]),
    )
    if row.note:
        yield Text(f"   {'':{width}} ^ {_plain(row.note)}", style="italic")


def _rejected(verdict: Diagnosis) -> Iterable[Text]:
    """Candidates that are not the cause, by reason; consequences of the cause are in the chain."""
    consequences = {(item.line, item.text) for item in verdict.symptoms}
    by_reason = defaultdict(list)
    for item in sorted(verdict.rejected, key=lambda item: (item.why, item.line)):
        if (item.line, item.text) not in consequences:
            by_reason[item.why].append(item)
    if by_reason:
        yield _heading("Not the cause")
    for why, items in by_reason.items():
        yield Text(f"  {_plain(why)}:", style="italic")
        for item in items[:_LISTED]:
            yield Text.assemble((f"    {item.line} {item.type}: ", "dim"), _short(item.text))
        if len(items) > _LISTED:
            yield Text(f"    and {len(items) - _LISTED} more", style="dim")


def _aside(verdict: Diagnosis) -> Iterable[Text]:
    """Notes, the last step, the rollback, and how many lines were not shown."""
    yield _heading("Notes")
    for note in verdict.notes:
        yield Text(f"  {_plain(note)}")
    if verdict.step is not None:
        yield Text(f"  last training step in the log: {verdict.step}")
    if verdict.rollback:
        yield Text(f"  go back to {_checkpoint(verdict.rollback)}")
    figures = verdict.compression
    yield Text(f"  read {figures.lines_in:,} lines, kept {figures.lines_out:,}")
    if verdict.left_out.lines:
        yield Text(f"  left out {verdict.left_out.lines:,} lines: {_plain(verdict.left_out.why)}")


def _checkpoint(rollback: Rollback) -> str:
    """Name the checkpoint, and the steps whose batches to skip."""
    name = "the last checkpoint before the break"
    if rollback.checkpoint:
        proof = "verified" if rollback.verified else "not verified"
        name = f"{_plain(rollback.checkpoint)} ({proof})"
    if rollback.skip_from is None or rollback.skip_to is None:
        return name
    return f"{name}, skip the batches of steps {rollback.skip_from}..{rollback.skip_to}"


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _short(text: str) -> str:
    return shortened(_plain(text), _SHOWN)


def _plain(text: str) -> str:
    return printable(text.replace("\t", " "), hidden="�")
