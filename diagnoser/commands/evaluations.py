"""`evaluations`: evaluation of checkpoints."""

import typer

from diagnoser.commands import (
    evaluations_export,
    evaluations_init,
    evaluations_plan,
    evaluations_run,
    evaluations_status,
)

evaluations_cli = typer.Typer(no_args_is_help=True, help="Evaluate checkpoints without idle GPUs.")
for command in (
    evaluations_init.init,
    evaluations_plan.plan,
    evaluations_run.run,
    evaluations_run.score,
    evaluations_run.cancel,
    evaluations_status.status,
    evaluations_export.export,
):
    evaluations_cli.command()(command)
