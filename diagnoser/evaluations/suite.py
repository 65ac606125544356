"""The file that describes an evaluation, and the command lines of its engine.

A command is a list of words, never a text for a shell, so that no name in it can become a command. Engines differ only
in the two command lines that a task has: those of a pair are written out, those of inspect_ai are made here.
"""

import re
from collections.abc import Iterator, Sequence, Set
from itertools import pairwise
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, model_validator

from diagnoser.evaluations.runtime_estimates import billions
from diagnoser.model import yaml_loader
from diagnoser.model.errors import Fault
from diagnoser.model.evaluations import Follow, Model, Server, Suite, Task
from diagnoser.model.yaml_loader import StrictModel

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_INFER = frozenset({"checkpoint", "task", "first", "last", "start", "samples"})
_SERVER = frozenset({"checkpoint", "port"})
_SCORE = frozenset({"checkpoint", "task", "samples", "scores"})
_SHELLS = {"sh", "bash", "dash", "zsh", "ksh"}

Place = tuple[int | str, ...]


def _words(value: object) -> object:
    if isinstance(value, str):
        raise ValueError("must be a list of words, such as [python3, infer.py]; no shell reads it")
    if isinstance(value, list):
        return list(map(_word, value))
    return value


def _word(value: object) -> object:
    """A number is a word, too; whatever else is no text stays a fault."""
    return str(value) if type(value) in (int, float) else value


def _name(value: str) -> str:
    """It becomes the name of a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
        raise ValueError("must be up to 100 letters, digits, dots, hyphens and underscores, a letter or digit first")
    return value


def _path(value: str) -> str:
    """It becomes a word of a command, which must not read it as an option."""
    if not re.fullmatch(r"[^-\s][^\x00-\x1f]{0,999}", value):
        raise ValueError("must be up to 1,000 characters on a line, and not start with a hyphen or a space")
    return value


def _size(value: str) -> str:
    if billions(value) is None:
        raise ValueError("must be a number with a unit, such as 7B")
    return value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Command = Annotated[Words, Field(min_length=1)]
Name = Annotated[str, AfterValidator(_name)]
Path = Annotated[str, AfterValidator(_path)]
Route = Annotated[str, Field(pattern=r"^/[!-~]{0,199}$")]


class _InspectAI(StrictModel):
    """model: as inspect_ai names it, such as vllm/{checkpoint}. eval, score: further words of its two commands."""

    program: Path = "inspect"
    model: Annotated[str, Field(min_length=1)]
    eval: Words = ()
    score: Words = ()


class _LmEval(StrictModel):
    """python: that has lm_eval. include: folder with further tasks. run: further words of `lm_eval run`.

    Its process serves all shards of a batch, unless the suite has a server that it only asks.
    """

    python: Path = "python3"
    model: Annotated[str, Field(min_length=1)] = "hf"
    model_args: Annotated[str, Field(min_length=1)] = "pretrained={checkpoint}"
    include: Path | None = None
    run: Words = ()


class _OpenCompass(StrictModel):
    """python: that has OpenCompass. run: words of `opencompass` that name the model and the data sets."""

    python: Path = "python3"
    run: Command


class _Engine(StrictModel):
    infer: Command | None = None
    score: Command | None = None
    inspect_ai: _InspectAI | None = None
    lm_eval: _LmEval | None = None
    opencompass: _OpenCompass | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        commands = [command for command in (self.infer, self.score) if command is not None]
        engines = (self.inspect_ai, self.lm_eval, self.opencompass)
        if bool(commands) + sum(engine is not None for engine in engines) != 1:
            raise ValueError("must have either infer and score, or inspect_ai, or lm_eval, or opencompass")
        if len(commands) == 1:
            raise ValueError("must have infer and score")
        return self


class _Server(StrictModel):
    """Paths behind the host and the port of the server."""

    command: Command
    ready: Route = "/v1/models"
    url: Route = "/v1"
    seconds: Annotated[float, Field(gt=0, le=86_400)] = 900.0


class _Model(StrictModel):
    checkpoint: Path
    server: _Server | None = None
    size: Annotated[str, AfterValidator(_size)] = ""


class _Task(StrictModel):
    """inspect_task: the task as inspect_ai names it; the name itself where it is not given."""

    name: Name
    samples: Annotated[int, Field(ge=1, le=10**9)]
    sample_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    score_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    splits: bool = True
    inspect_task: Path | None = None
    infer: Command | None = None
    score: Command | None = None
    after: str = ""
    model: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if bool(self.after) != bool(self.model):
            raise ValueError("must have both after and model, or neither")
        if self.after and None in (self.infer, self.score):
            raise ValueError("must have infer and score of its own, as it comes after another task")
        return self


class _Follow(StrictModel):
    job: Annotated[str, Field(min_length=1, max_length=200)]
    every: Annotated[int, Field(ge=1, le=10**9)]


class _SuiteFile(StrictModel):
    name: Name
    checkpoints: tuple[Path, ...] = ()
    follow: _Follow | None = None
    gpus: Annotated[int, Field(ge=1, le=1024)] = 1
    scorers: Annotated[int, Field(ge=0, le=10**6)] = 0
    size: Annotated[str, AfterValidator(_size)] = "1B"
    weights: ByteSize = ByteSize(0)
    hardware: str = ""
    engine: _Engine
    server: _Server | None = None
    models: dict[Name, _Model] = Field(default={}, max_length=100)
    tasks: Annotated[tuple[_Task, ...], Field(min_length=1, max_length=10_000)]

    @property
    def placeholders(self) -> frozenset[str]:
        """Of the commands that infer."""
        return _INFER | _asked(self.server)

    @model_validator(mode="after")
    def _has_checkpoints(self) -> Self:
        if bool(self.checkpoints) == (self.follow is not None):
            raise ValueError("must have either checkpoints, or follow")
        return self


def _asked(server: _Server | None) -> frozenset[str]:
    """Placeholders of commands that ask the server."""
    return frozenset({"url", "port"} if server else ())


def read_suite(path: str, text: str) -> Suite:
    """``path`` is only used in the faults. Raises RuleFaults with all of them, each with its line and field."""

    def faults(file: _SuiteFile) -> Iterator[Fault]:
        for where, message in _faults(file):
            yield Fault(path, yaml_loader.locate(text, *where), f"{'.'.join(map(str, where))}: {message}")

    file = yaml_loader.load(path, text, _SuiteFile, faults)
    tasks = []
    for task in file.tasks:
        infer, score = _engine_commands(file, task)
        own = {"infer": task.infer or infer, "score": task.score or score}
        tasks.append(Task(**task.model_dump(exclude={"inspect_task"}) | own))
    models = []
    for name, model in file.models.items():
        models.append(Model(name, model.checkpoint, _server(model.server), model.size or file.size))
    follow, server = None, _server(file.server)
    if file.follow:
        follow = Follow(**file.follow.model_dump())
    if (lm_eval := file.engine.lm_eval) and not server:
        server = Server(
            (lm_eval.python, "{lm_eval_engine}", "serve", "{port}", lm_eval.include or "", *_lm_eval_words(lm_eval)),
            ready="/",
            url="/",
        )
    plain = file.model_dump(include={"name", "checkpoints", "gpus", "weights", "hardware", "size", "scorers"})
    return Suite(**plain, tasks=tuple(tasks), follow=follow, server=server, models=tuple(models))


def _server(given: _Server | None) -> Server | None:
    return Server(**given.model_dump()) if given else None


def _engine_commands(file: _SuiteFile, task: _Task) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if lm_eval := file.engine.lm_eval:
        return _lm_eval_commands(lm_eval, has_server=file.server is not None)
    if compass := file.engine.opencompass:
        return _opencompass_commands(compass)
    if inspect := file.engine.inspect_ai:
        return _inspect_commands(inspect, task.inspect_task or task.name)
    return file.engine.infer or (), file.engine.score or ()


def _lm_eval_commands(lm_eval: _LmEval, *, has_server: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    script, shard = (lm_eval.python, "{lm_eval_engine}"), ("{samples}", "{task}", "{first}", "{last}")
    score = (*script, "score", "{samples}", "{scores}", "{task}", lm_eval.include or "")
    if has_server:
        return (*script, "infer", *shard, *_lm_eval_words(lm_eval)), score
    return (*script, "ask", "{url}", *shard), score


def _opencompass_commands(compass: _OpenCompass) -> tuple[tuple[str, ...], tuple[str, ...]]:
    script = (compass.python, "{opencompass_engine}")
    infer = (*script, "infer", "{samples}", "{checkpoint}", "{task}", "{first}", "{last}", *compass.run)
    score = (*script, "score", "{samples}", "{checkpoint}", "{task}", "{scores}", *compass.run)
    return infer, score


def _inspect_commands(inspect: _InspectAI, task: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    script, quiet = ("python3", "{inspect_engine}"), ("--display", "plain")
    evaluate = (inspect.program, "eval", task, "--model", inspect.model, "--no-score")
    logs = ("--limit", "{start}-{last}", "--log-dir", "{samples}", "--log-format", "json")
    infer = (*script, "infer", "{samples}", *evaluate, *logs, *quiet, *inspect.eval)
    score = (*script, "score", "{samples}", "{scores}", inspect.program, "score", *quiet, *inspect.score)
    return infer, score


def _lm_eval_words(lm_eval: _LmEval) -> tuple[str, ...]:
    model = ("--model", lm_eval.model, "--model_args", lm_eval.model_args)
    if lm_eval.include is None:
        return (*model, *lm_eval.run)
    return (*model, "--include_path", lm_eval.include, *lm_eval.run)


def _faults(file: _SuiteFile) -> Iterator[tuple[Place, str]]:
    """Find the faults that the shape alone does not show, with their places."""
    yield from _repeated(("checkpoints",), file.checkpoints)
    yield from _repeated(("tasks",), [task.name for task in file.tasks])
    yield from _engine_faults(file)
    yield from _server_faults(file)
    for place, task in enumerate(file.tasks):
        yield from _order_faults(file, place, task)
        yield from _task_faults(file, place, task)


def _server_faults(file: _SuiteFile) -> Iterator[tuple[Place, str]]:
    if file.server:
        yield from _command_faults(("server", "command"), file.server.command, _SERVER, {"port"})
    for name, model in file.models.items():
        if model.server:
            yield from _command_faults(("models", name, "server", "command"), model.server.command, _SERVER, {"port"})


def _task_faults(file: _SuiteFile, place: int, task: _Task) -> Iterator[tuple[Place, str]]:
    known, needed = file.placeholders, _needed(task.splits)
    if task.model in file.models:
        known, needed = _INFER | {"answers"} | _asked(file.models[task.model].server), needed | {"answers"}
    if task.infer:
        yield from _command_faults(("tasks", place, "infer"), task.infer, known, needed)
    if task.score:
        yield from _command_faults(("tasks", place, "score"), task.score, _SCORE, {"samples", "scores"})
    if task.inspect_task and not file.engine.inspect_ai:
        yield ("tasks", place, "inspect_task"), "is for the engine inspect_ai"


def _order_faults(file: _SuiteFile, place: int, task: _Task) -> Iterator[tuple[Place, str]]:
    """A task below the one that it comes after: no circle can be written."""
    if not task.after:
        return
    if task.after not in {above.name for above in file.tasks[:place]}:
        yield ("tasks", place, "after"), f"there is no task {task.after} above it"
    if task.model not in file.models:
        yield ("tasks", place, "model"), f"there is no model {task.model}"


def _engine_faults(file: _SuiteFile) -> Iterator[tuple[Place, str]]:
    engine, known = file.engine, file.placeholders
    splits = any(task.splits for task in file.tasks if task.infer is None)
    if engine.infer and engine.score:
        yield from _command_faults(("engine", "infer"), engine.infer, known, _needed(splits))
        yield from _command_faults(("engine", "score"), engine.score, _SCORE, {"samples", "scores"})
    if engine.lm_eval:
        loads = known if file.server else {"checkpoint"}
        yield from _command_faults(("engine", "lm_eval", "model_args"), (engine.lm_eval.model_args,), loads, set())
        yield from _command_faults(("engine", "lm_eval", "run"), engine.lm_eval.run, loads, set())
    if engine.opencompass:
        yield from _command_faults(("engine", "opencompass", "run"), engine.opencompass.run, _INFER & _SCORE, set())
    if engine.inspect_ai:
        yield from _command_faults(("engine", "inspect_ai", "model"), (engine.inspect_ai.model,), known, set())
        yield from _command_faults(("engine", "inspect_ai", "eval"), engine.inspect_ai.eval, known, set())
        yield from _command_faults(("engine", "inspect_ai", "score"), engine.inspect_ai.score, _SCORE, set())


def _needed(splits: bool) -> set[str]:
    """List the placeholders that a command needs: without them, each shard would infer the whole task."""
    return {"samples", "first", "last"} if splits else {"samples"}


def _repeated(where: Place, names: Sequence[str]) -> Iterator[tuple[Place, str]]:
    seen = set[str]()
    for place, name in enumerate(names):
        if name in seen:
            yield (*where, place), f"{name} is there twice"
        seen.add(name)


def _command_faults(
    where: Place, words: Sequence[str], known: Set[str], needed: Set[str]
) -> Iterator[tuple[Place, str]]:
    missing = set(needed)
    for place, word in enumerate(words):
        for name in _PLACEHOLDER.findall(word):
            if name not in known:
                yield (*where, place), f"no placeholder {{{name}}}; there are {', '.join(sorted(known))}"
            missing.discard(name)
            if name == "start":
                missing.discard("first")  # the same, counted from 1
    if missing:
        yield where, f"needs the placeholder {', '.join(f'{{{name}}}' for name in sorted(missing))}"
    yield from _shell_faults(where, words)


def _shell_faults(where: Place, words: Sequence[str]) -> Iterator[tuple[Place, str]]:
    """A name put into the text of a script would be run by the shell. The script stands behind -c, or -lc and so on."""
    if not words:
        return
    if words[0].rpartition("/")[2] not in _SHELLS:
        return
    for place, (option, word) in enumerate(pairwise(words), 1):
        if not re.fullmatch(r"-.*c", option, re.DOTALL):
            continue
        if _PLACEHOLDER.search(word):
            yield (*where, place), 'give placeholders to a shell as words of their own, and use "$1" and "$2"'
