"""`evaluations plan`: what would run where, and when; nothing is run."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.table import Table

from diagnoser.adapters import files
from diagnoser.commands.open_store import with_store
from diagnoser.commands.terminal import AsJson, out, print_json, site
from diagnoser.evaluations import gantt
from diagnoser.evaluations.runtime_estimates import RuntimeEstimates, estimate_runtimes
from diagnoser.evaluations.schedule import gpu_seconds, in_line, schedule
from diagnoser.evaluations.suite import read_suite
from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.model.evaluations import Node, Runtime, Schedule, Suite
from diagnoser.model.record_json import RecordJson
from diagnoser.wording.phrases import plural

_RUNTIME = RecordJson(Runtime)
_BAR = 30
"""Columns of the bar of the longest time in the table of choices."""
_TEXT_ROWS = 40
"""Of the chart in a terminal; more than these are for --svg."""


def plan(
    suite_file: Annotated[Path, typer.Argument(metavar="SUITE.yaml", help="What to evaluate.")],
    nodes: Annotated[int, typer.Option(min=1, max=4096, help="Nodes that take part.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=1, max=1024, help="GPUs of each.")] = 8,
    runtimes: Annotated[
        Path | None, typer.Option(help="Earlier runtimes, a JSON object a line. Default: those of the database.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Use all nodes, also where fewer would end within 2 % of the same time.")
    ] = False,
    as_json: AsJson = False,
    svg: Annotated[Path | None, typer.Option(help="Write the Gantt chart to this file.")] = None,
) -> None:
    """Say what would run where and when, how long it takes, and how long at least; nothing is run."""
    suite = load_suite(suite_file)
    if suite.follow is not None:
        suite = replace(suite, checkpoints=("checkpoint",))
    earlier, source = (_runtimes(runtimes), f"of {runtimes}") if runtimes else _stored_runtimes(suite)
    expected = estimate_runtimes(suite, earlier)
    pool = [Node(f"node-{number}", gpus_per_node) for number in range(nodes)]
    planned = schedule(suite, expected, pool, fast)
    choices = _choices(suite, expected, pool)
    usual = in_line(suite, expected, pool)
    summary = _summary(suite, planned, usual)
    chart = gantt.bars(planned, expected)
    if svg:
        from diagnoser.web.pages import gantt_chart  # loads the web's packages, which a terminal's chart does not need

        svg.write_text(gantt_chart.svg(chart, f"Schedule of {suite.name}", summary), "utf-8")
    if as_json:
        print_json(
            {**_as_json(planned, expected, suite, usual), "choices": list(map(asdict, choices)), "runtimes": source}
        )
        return
    rows = len({bar.row for bar in chart})
    if rows <= _TEXT_ROWS:
        out.print(gantt.text(chart, min(out.width, 120)), soft_wrap=True)
    else:
        out.print(f"The chart has {rows} rows: write it to a file with --svg.")
    if len(choices) > 1:
        out.print(_choices_table(choices))
    out.print(summary, soft_wrap=True)
    out.print(f"Expected times: {source}.", soft_wrap=True)


@dataclass(frozen=True, slots=True)
class _Choice:
    """What the suite takes with all of so many nodes."""

    nodes: int
    makespan: float
    gpu_seconds: float


def _choices(suite: Suite, expected: RuntimeEstimates, pool: Sequence[Node]) -> list[_Choice]:
    counts = [1]
    while counts[-1] < len(pool):
        counts.append(min(2 * counts[-1], len(pool)))
    choices = []
    for count in counts:
        planned = schedule(suite, expected, pool[:count], fast=True)
        choices.append(_Choice(count, planned.makespan, gpu_seconds(planned.placements, suite)))
    return choices


def _choices_table(choices: Sequence[_Choice]) -> Table:
    table = Table("nodes", "ends after", "GPU hours", "", box=None)
    longest = max(choice.makespan for choice in choices) or 1.0
    for choice in choices:
        bar = "▇" * math.ceil(_BAR * choice.makespan / longest)
        table.add_row(str(choice.nodes), gantt.duration(choice.makespan), f"{choice.gpu_seconds / 3600:.1f}", bar)
    return table


def load_suite(path: Path) -> Suite:
    """Raises BadInput where it cannot be read, RuleFaults with all of its faults."""
    return read_suite(str(path), files.text(path))


def _stored_runtimes(suite: Suite) -> tuple[list[Runtime], str]:
    """Read runtimes of earlier runs, and where they are from. A database is neither made nor upgraded for a plan."""
    from diagnoser.adapters.sql import administration
    from diagnoser.adapters.sql.migrations import head
    from diagnoser.evaluations.coordinator import RUNTIMES

    names = [task.name for task in suite.tasks]
    try:
        if asyncio.run(administration.schema(site().database_url)) != head():
            raise BadInput("the database has another version")
        found = with_store(lambda store: store.evaluations.runtimes(names, RUNTIMES), "evaluations plan")
    except (BadInput, Unavailable) as error:
        return [], f"of the suite, and guesses by size ({error})"
    if not found:
        return [], "of the suite, and guesses by size (nothing of these tasks has run)"
    return found, f"of the database (shards of these tasks that ran before: {len(found)})"


def _runtimes(path: Path) -> list[Runtime]:
    found = []
    for number, line in enumerate(files.text(path).splitlines(), 1):
        if line.strip():
            try:
                found.append(_RUNTIME.load(line))
            except ValidationError as error:
                fault = error.errors()[0]
                raise BadInput(f"{path}:{number}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    return found


def _summary(suite: Suite, plan: Schedule, in_line_seconds: float) -> str:
    trials = len(suite.checkpoints) * len(suite.tasks)
    shards = sum(len(placement.batch.shards) for placement in plan.placements)
    hours = gpu_seconds(plan.placements, suite) / 3600
    nodes = plural(len({placement.node for placement in plan.placements}), "node")
    slots = len({(placement.node, placement.slot) for placement in plan.placements})
    return (
        f"{trials} trials in {shards} shards behind {len(plan.placements)} loads, on {slots * suite.gpus} GPUs of "
        f"{nodes}: {gantt.duration(plan.makespan)} "
        f"(no schedule takes less than {gantt.duration(plan.lower_bound)}), {hours:.1f} GPU hours. "
        f"A job a data set, the longest first: {gantt.duration(in_line_seconds)}."
    )


def _as_json(plan: Schedule, expected: RuntimeEstimates, suite: Suite, in_line_seconds: float) -> dict[str, Any]:
    """As programs read it: shards are "pieces" there."""
    placements = []
    for placement in plan.placements:
        batch = {"pieces": list(map(asdict, placement.batch.shards)), "seconds": placement.batch.seconds}
        placements.append({**asdict(placement), "batch": batch})
    return {
        "suite": suite.name,
        "makespan": plan.makespan,
        "lower_bound": plan.lower_bound,
        "in_line": in_line_seconds,
        "gpu_seconds": gpu_seconds(plan.placements, suite),
        "load": expected.load,
        "start": expected.start,
        "placements": placements,
        "scorings": list(map(asdict, plan.scorings)),
    }
