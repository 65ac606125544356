"""`hang`: who holds up a run that stands still, from the dumps of its runtime."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from diagnoser.adapters import files
from diagnoser.commands.terminal import AsJson, complain, out, print_json
from diagnoser.hang import report
from diagnoser.hang.flight_recorder import BYTES_MAX
from diagnoser.hang.report import HangReport, contract
from diagnoser.hang.wait_graph import GroupState
from diagnoser.model.errors import BadInput
from diagnoser.wording.phrases import after

_SHOWN = 12


def hang(
    folder: Annotated[Path, typer.Argument(help="Folder of flight-recorder dumps, NCCL RAS answers, stack dumps.")],
    as_json: AsJson = False,
    ranks: Annotated[int, typer.Option(min=0, help="Ranks of the job, where no dump names its groups (gloo).")] = 0,
) -> None:
    """Name the ranks that hold up a hung run, from what its runtime recorded.

    Files that end in a rank (_dump_12, rank12.json, stack_12.txt) belong to that rank. What a file is shows its
    content. Nothing in a dump is ever executed.
    """
    if not folder.is_dir():
        raise BadInput(f"{folder} is no folder")
    names = report.current(path.name for path in folder.iterdir() if path.is_file())
    evidence = report.read((name, files.content(folder / name, BYTES_MAX)) for name in names)
    if not any((evidence.dumps, evidence.ras, evidence.stacks)):
        for name, why in evidence.rejected:
            complain(f"diagnoser: {folder / name}: {why}")
        raise BadInput(f"{folder} holds no flight-recorder dump, RAS answer or stack dump")
    result = report.analyze(evidence, ranks=ranks)
    if as_json:
        print_json(contract(result))
    else:
        _show(result)


def _show(result: HangReport) -> None:
    for suspect in result.suspects[:_SHOWN]:
        rest = f"{after(' on ', suspect.node)} ({suspect.score:.2f}, {suspect.kind}): {suspect.why}"
        out.print(Text.assemble((f"rank {suspect.rank}", "bold red"), rest))
    if not result.suspects:
        out.print(Text("No rank is suspected.", style="bold"))
    for note in result.notes:
        out.print(Text(note))
    if result.graph.groups:
        out.print(_groups(result.graph.groups))
    if result.graph.not_seen:
        out.print(Text(f"no dump of: {', '.join(map(str, result.graph.not_seen[: _SHOWN * 4]))}"))
    for name, why in result.rejected:
        complain(f"left out: {name}: {why}")


def _groups(groups: tuple[GroupState, ...]) -> Table:
    table = Table("group", "ranks", "stands in", "at", "behind", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for state in groups[: _SHOWN * 2]:
        behind = ", ".join(f"{rank} (at {sequence})" for rank, sequence in list(state.behind.items())[:_SHOWN])
        members = state.group.ranks
        ranks = ""
        if members:
            ranks = f"{len(members)}: {members[0]}..{members[-1]}"
        table.add_row(Text(state.group.title), ranks, Text(state.operation), str(state.highest), Text(behind))
    return table
