"""`trials`: evaluation of checkpoints."""

import typer

trials_cli = typer.Typer(no_args_is_help=True, help="Evaluate checkpoints without idle GPUs.")
for command in (trials_plan.plan, trials_run.run, trials_run.score, trials_run.cancel, trials_status.status):
    trials_cli.command()(command)
