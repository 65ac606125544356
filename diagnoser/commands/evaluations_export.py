"""`evaluations export`: the scores of a run, for spreadsheets, documents and MLflow."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from diagnoser.commands.evaluations_status import progress_of
from diagnoser.commands.open_store import with_store
from diagnoser.evaluations.scores import step_of
from diagnoser.model.errors import BadInput
from diagnoser.model.evaluations import RunProgress

_COLUMNS = ("checkpoint", "step", "task", "metric", "value")
Row = tuple[str, int | None, str, str, float]


class ExportFormat(StrEnum):
    CSV = "csv"
    MARKDOWN = "markdown"
    MLFLOW = "mlflow"


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Its id, as `run` and `status` print it.")],
    form: Annotated[
        ExportFormat,
        typer.Option(
            "--format", help="mlflow logs a run for each checkpoint, by the variables of its client; it needs mlflow."
        ),
    ] = ExportFormat.CSV,
) -> None:
    """Write the scores of a run, a row a metric, or log them to MLflow."""
    progress = with_store(lambda store: progress_of(store, run), "evaluations export")
    rows = _rows(progress)
    if form is ExportFormat.MLFLOW:
        _log_to_mlflow(progress, rows)
        return
    text = _as_csv(rows) if form is ExportFormat.CSV else _as_markdown(rows)
    typer.echo(text, nl=False)


def _rows(progress: RunProgress) -> list[Row]:
    rows: list[Row] = []
    for trial in progress.trials:
        for metric, value in trial.scores.items():
            rows.append((trial.checkpoint, step_of(trial.checkpoint), trial.task, metric, value))
    return rows


def _as_csv(rows: Sequence[Row]) -> str:
    """No cell is one that a spreadsheet would compute: names of metrics are the scorer's."""
    from diagnoser.web.api.exports import csv_lines  # loads the web's packages, which no other format needs

    return csv_lines([_COLUMNS, *rows])


def _as_markdown(rows: Sequence[Row]) -> str:
    lines = [_markdown_row(_COLUMNS), _markdown_row(["---"] * len(_COLUMNS))]
    for checkpoint, step, task, metric, value in rows:
        shown = "" if step is None else str(step)
        lines.append(_markdown_row((checkpoint, shown, task, metric, f"{value:.4g}")))
    return "".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    """A metric has the name that its scorer gave it: no character of it ends the cell."""
    escaped = [" ".join(cell.replace("|", "\\|").split()) for cell in cells]
    return f"| {' | '.join(escaped)} |\n"


def _log_to_mlflow(progress: RunProgress, rows: Sequence[Row]) -> None:
    """Raises BadInput where its client is not installed."""
    try:
        import mlflow  # type: ignore[import-not-found]
    except ImportError as error:
        raise BadInput("MLflow's client is not installed: pip install mlflow-skinny") from error
    suite = progress.run.suite
    mlflow.set_experiment(suite.name)
    for checkpoint in suite.checkpoints:
        with mlflow.start_run(run_name=f"{progress.run.id} {checkpoint}"):
            mlflow.set_tags({"checkpoint": checkpoint, "diagnoser.run": progress.run.id})
            for path, step, task, metric, value in rows:
                if path == checkpoint:
                    mlflow.log_metric(_mlflow_name(f"{task}/{metric}"), value, step=step or 0)


def _mlflow_name(name: str) -> str:
    """Replace what MLflow refuses in the name of a metric, such as the comma of "acc,none"."""
    return re.sub(r"[^\w\-. /]", "_", name)
