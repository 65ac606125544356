"""`evaluations init`: a suite for an engine that is installed here, to be edited and run."""

import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from diagnoser.commands.terminal import err
from diagnoser.evaluations.suite import read_suite
from diagnoser.model.errors import BadInput

_HEAD = "# All fields, also of judges: docs/evaluation.md. Run it: diagnoser evaluations run {path}\n"


class Engine(StrEnum):
    LM_EVAL = "lm_eval"
    INSPECT_AI = "inspect_ai"
    OPENCOMPASS = "opencompass"


def init(
    suite_file: Annotated[Path, typer.Argument(metavar="SUITE.yaml", help="File to write; it must not exist.")],
    engine: Annotated[Engine, typer.Option(help="What infers and scores.")],
    checkpoints: Annotated[list[str], typer.Option("--checkpoint", help="Folder of a checkpoint. May be given again.")],
    tasks: Annotated[
        list[str],
        typer.Option(
            "--task", metavar="NAME=SAMPLES", help="Task as the engine names it, and its size. May be given again."
        ),
    ],
    size: Annotated[str, typer.Option(help="Parameters of the model, such as 7B.")] = "1B",
) -> None:
    """Write a suite that runs with the engine, which is looked for on the PATH."""
    suite = {
        "name": suite_file.stem,
        "checkpoints": checkpoints,
        "size": size,
        "tasks": list(map(_task, tasks)),
        "engine": {engine.value: _ENGINES[engine]()},
    }
    text = _HEAD.format(path=suite_file) + yaml.safe_dump(suite, sort_keys=False)
    read_suite(str(suite_file), text)
    try:
        with suite_file.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise BadInput(f"{suite_file} is there already") from None
    err.print(f"Next: diagnoser evaluations plan {suite_file}", soft_wrap=True)


def _task(given: str) -> dict[str, Any]:
    """A path, as inspect_ai names tasks, cannot be the name of a folder: its last part is."""
    path, equals, samples = given.rpartition("=")
    if not (equals and samples.isdecimal()):
        raise BadInput(f"--task {given[:60]}: must be NAME=SAMPLES, such as gsm8k=1319")
    name = path.rpartition("/")[2].rpartition("@")[2].removesuffix(".py")
    task: dict[str, Any] = {"name": name, "samples": int(samples)}
    if name != path:
        task["inspect_task"] = path
    return task


def _lm_eval() -> dict[str, Any]:
    return {"python": _python("lm_eval"), "model": "hf", "model_args": "pretrained={checkpoint}"}


def _opencompass() -> dict[str, Any]:
    words = ["--hf-path", "{checkpoint}", "--hf-type", "base", "--datasets", "{task}_gen"]
    return {"python": _python("opencompass"), "run": words}


def _inspect_ai() -> dict[str, Any]:
    return {
        "program": _program("inspect", "inspect-ai"),
        "model": "hf/local",
        "eval": ["-M", "model_path={checkpoint}"],
    }


_ENGINES = {Engine.LM_EVAL: _lm_eval, Engine.INSPECT_AI: _inspect_ai, Engine.OPENCOMPASS: _opencompass}


def _python(name: str) -> str:
    """Find the interpreter beside a program that has the name of its package: that one has the package."""
    return str(Path(_program(name, name)).with_name("python3"))


def _program(name: str, package: str) -> str:
    """Find it beside this program, too: its environment need not be active. Raises BadInput."""
    path = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        raise BadInput(f"there is no {name} on the PATH: pip install {package}, or activate its environment")
    return path
