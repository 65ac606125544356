"""`prompts`: show what a model is asked."""

from pathlib import Path
from typing import Annotated

import typer

from diagnoser.commands import logfile
from diagnoser.commands.terminal import err, out, site
from diagnoser.config.loader import load_analyzer
from diagnoser.diagnosis import pipeline
from diagnoser.diagnosis.llm_stage import consultation_input
from diagnoser.model import Facts
from diagnoser.model.errors import BadInput

prompts_cli = typer.Typer(no_args_is_help=True, help="Show prompts.")


@prompts_cli.command(name="render")
def prompts_render(
    name: Annotated[str, typer.Argument(help="Name and version, as in the folder of prompts.")] = "failure_agent/v4",
    log: Annotated[Path | None, typer.Option(help="Log to fill the prompt with. - is standard input.")] = None,
) -> None:
    """Print a prompt: its templates, or with --log exactly what the model would be sent, masked."""
    from diagnoser.config import llm_factory

    prompt, settings = llm_factory.load_prompt(site(), name), site()
    system, user = prompt.system, prompt.user
    if log:
        analyzer = load_analyzer(settings)
        log_read = logfile.read_log(analyzer, log)
        diagnosis = pipeline.diagnose(log_read.evidence, Facts(), analyzer.knowledge)
        if prompt.meta.name == "rule_writer":
            request = llm_factory.render_rule_prompt(settings, prompt, log_read.evidence, diagnosis)
        elif prompt.meta.name == "failure_agent":
            question = consultation_input(diagnosis, log_read, Facts(), analyzer.knowledge)
            request = llm_factory.render_failure_prompt(settings, prompt, question)
        else:
            raise BadInput(f"{name} cannot be filled from a log alone")
        system, user = request.system, request.user
    err.print(f"{prompt.label} {prompt.hash}", style="dim")
    for role, text in (("system", system), ("user", user)):
        out.print(f"--- {role}", style="bold")
        out.print(text, soft_wrap=True)
