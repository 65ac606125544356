"""`prompts`: what a model is asked."""

from pathlib import Path
from typing import Annotated

import typer

from diagnoser import pipeline
from diagnoser.commands import logfile
from diagnoser.commands.terminal import err, out, site
from diagnoser.errors import BadInput
from diagnoser.model import Facts
from diagnoser.reader import subject
from diagnoser.site import load_reader

prompts_cli = typer.Typer(no_args_is_help=True, help="Look at the prompts.")


@prompts_cli.command(name="render")
def prompts_render(
    name: Annotated[str, typer.Argument(help="<name>/v<N>, as a folder of prompts has it.")] = "failure_agent/v1",
    log: Annotated[Path | None, typer.Option(help="Fill it for this log; - is standard input.")] = None,
) -> None:
    """Show a prompt: its templates, or exactly what a model would get for a log, masked and with its marker."""
    from diagnoser import model_stage

    prompt, chosen = model_stage.load_prompt(site(), name), site()
    system, user = prompt.system, prompt.user
    if log:
        reader = load_reader(chosen)
        digest = logfile.digest(reader, log)
        diagnosis = pipeline.diagnose(digest.evidence(), Facts(), reader.knowledge)
        if prompt.meta.name == "rule_writer":
            request = model_stage.rendered_lesson(chosen, prompt, digest.evidence(), diagnosis)
        elif prompt.meta.name == "failure_agent":
            request = model_stage.rendered(chosen, prompt, subject(diagnosis, digest, Facts()))
        elif prompt.meta.name == "log_agent":
            request = model_stage.rendered_routine(chosen, prompt, digest, reader.knowledge.anchors)
        else:
            raise BadInput(f"{name} cannot be filled from a log alone")
        system, user = request.system, request.user
    err.print(f"{prompt.label} {prompt.hash}", style="dim", highlight=False)
    for part, text in (("system", system), ("user", user)):
        out.print(f"--- {part}", style="bold", highlight=False)
        out.print(text, markup=False, highlight=False, soft_wrap=True)
