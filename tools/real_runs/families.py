"""Families of software, and the product of them: trainer x launcher x logger x fault x way of crashing.

Half of the families of each kind are drawn by a seed and held out: a case that is held out has no trainer, launcher or
logger that a case to develop on has (but for a bare process, which both know).
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tools.real_runs.frameworks import Framework
from tools.real_runs.launchers import LAUNCHERS, Launcher
from tools.real_runs.native import NATIVE
from tools.real_runs.imitations import IMITATIONS, SNAKEMAKE
from tools.real_runs.scenarios import SCENARIOS, Scenario, Truth

_T = TypeVar("_T")
Words = Mapping[str, str]
SHAPE = {"shape": {"marker": r"^ValueError: "}}
_DEFAULT: Words = {
    "start": "starting: {steps} steps, {world} process(es)",
    "part": "loaded part {number}/{parts} with {records} records",
    "step": "step {step}/{steps} loss {loss:.4f} lr {lr:g}",
    "eval": "eval at step {step}: accuracy {accuracy:.4f}",
    "saved": "saved {path}",
    "end": "finished after {steps} steps, best accuracy {best:.4f}",
}
_SETTINGS: Mapping[str, Any] = {"steps": 120, "batch_size": 24, "eval_every": 12, "save_every": 30, "parts": 3, "pause_s": 0.01, "log_every": 1}
_PLUGIN_TRUTHS: Mapping[str, Mapping[str, Any] | None] = {
    "cancel": None,
    "no-resume": {"marker": r"step_900000"},
    "pool": None,
}
_GBM = {
    "no-key": None,
    "nan": None,
    "nan-exit": None,
    "shape": None,
    "lr-text": {"marker": r"TypeError: '<=' not supported"},
    "interrupt": {"marker": r"^KeyboardInterrupt"},
}


def _words(**words: str) -> dict[str, str]:
    return {**_DEFAULT, **words}


def _trainer(name: str, environment: str, file: str, words: Words, truths: Mapping[str, Any], **more: Any) -> Framework:
    settings = {**_SETTINGS, "words": dict(words), **more.pop("settings", {})}
    return Framework(
        name, environment, file, settings=settings, truths={**_PLUGIN_TRUTHS, **truths}, faults=PYTHON_FAULTS, **more
    )


_SCALED = {"kernel": 9, "profile_step": 9, "warmup_steps": 9}


def _scaled(scenario: Scenario) -> Scenario:
    """A fault of a short run, later in a longer one."""
    settings = dict(scenario.settings)
    for name in ("profile_step", "warmup_steps"):
        if name in settings:
            settings[name] = 9 * settings[name]
    if "kernel" in settings:
        settings["kernel"] = {**settings["kernel"], "step": 9 * settings["kernel"]["step"]}
    if settings.get("pause_s"):
        settings["pause_s"] = 0.03
    settings.pop("language", None)
    settings.pop("log_style", None)
    settings.pop("log_every", None)
    return replace(scenario, settings=settings)


_UNUSED = {"ok-done", "ok-last-step", "ok-final", "ok-german", "ok-french", "ok-chinese", "ok-json", "ok-bar", "ok-caught-json", "cancel"}
_SILENT = Truth("completed", "clean run that says nothing after its last step", outcome="completed")
PYTHON_FAULTS: tuple[Scenario, ...] = (
    *(_scaled(scenario) for scenario in SCENARIOS if scenario.name not in _UNUSED),
    Scenario("ok-silent", _SILENT, {"end": ""}),
)

TRAINERS: tuple[Framework, ...] = (
    _trainer(
        "scikit-learn",
        "tabular",
        "sklearn_trainer.py",
        _words(
            start="Fitting pipeline: {steps} partial fits",
            part="Loaded fold {number} of {parts}: X.shape=({records}, 16)",
            step="partial_fit {step}/{steps} log_loss={loss:.4f}",
            eval="validation score {accuracy:.3f}",
            saved="Model persisted to {path}",
            end="Pipeline fitted. Best validation score: {best:.3f}",
        ),
        {"shape": {"marker": r"^ValueError: X has 16 features"}, "nan": {"type": "value_error", "marker": r"^ValueError: Input (X )?contains infinity"}, "nan-exit": None, "other-checkpoint": None, "no-key": None},
    ),
    _trainer(
        "xgboost",
        "tabular",
        "xgboost_trainer.py",
        _words(start="xgboost: {steps} rounds", step="round {step} mlogloss {loss:.5f}", eval="validation accuracy {accuracy:.4f}", saved="booster saved as {path}", end="Best round accuracy {best:.4f}; training took {steps} rounds"),
        {**_GBM, "nan": {"type": "value_error", "marker": r"XGBoostError"}, "cut-checkpoint": {"marker": r"XGBoostError"}, "other-checkpoint": None, "no-resume": {"marker": r"XGBoostError|FileNotFoundError"}},
    ),
    _trainer(
        "lightgbm",
        "tabular",
        "lightgbm_trainer.py",
        _words(start="Training GBDT with {steps} iterations", step="", eval="acc@{step}: {accuracy:.4f}", saved="Dumped model to {path}", end="Done. best acc {best:.4f}"),
        {**_GBM, "cut-checkpoint": {"marker": r"LightGBMError"}, "other-checkpoint": None, "no-resume": {"marker": r"LightGBMError|FileNotFoundError"}},
    ),
    _trainer(
        "optuna",
        "tabular",
        "optuna_trainer.py",
        _words(start="study with {steps} steps in all", step="", eval="intermediate accuracy {accuracy:.4f}", saved="wrote {path}", end="Study finished, best value {best:.4f}"),
        {"other-checkpoint": {}},
    ),
    _trainer(
        "spacy",
        "spacy",
        "spacy_trainer.py",
        _words(start="", step="", part="ℹ corpus part {number}: {records} docs", eval="", saved="", end=""),
        {"shape": None, "no-key": None, "cut-checkpoint": None, "other-checkpoint": None, "no-resume": {"marker": r"^OSError: \[E050\]"}},
        settings={"eval_every": 6},
    ),
    _trainer(
        "stable-baselines3",
        "gym",
        "sb3_trainer.py",
        _words(start="PPO on Guess-v0, {steps} updates", step="", eval="Eval num_timesteps={step}00, episode_reward={accuracy:.2f}", saved="Saving model checkpoint to {path}.zip", end="Training complete, best mean reward {best:.2f}"),
        {"shape": None, "no-key": None, "nan": {"marker": r"ValueError: Expected parameter|FloatingPointError", "also": ("value_error",)}, "nan-exit": None, "other-checkpoint": None, "cut-checkpoint": None, "no-resume": {"marker": r"^FileNotFoundError"}},
        settings={"eval_every": 20},
    ),
    _trainer(
        "pymc",
        "bayes",
        "pymc_trainer.py",
        _words(start="sampling posterior, {steps} draws", step="draw {step} energy {loss:.2f}", eval="accept {accuracy:.3f}", saved="trace chunk {path}", end="posterior written, {steps} draws"),
        {"shape": None, "no-key": None, "lr-text": {}, "other-checkpoint": None, "nan": None, "nan-exit": None, "interrupt": None, "deadline": None, "ok-early": None},
    ),
    *NATIVE,
    SNAKEMAKE,
    *IMITATIONS,
)

LOGGERS: tuple[str, ...] = (
    "stdlib_logger:basic",
    "stdlib_logger:pipes",
    "stdlib_logger:uvicorn",
    "stdlib_logger:vertical",
    "stdlib_logger:threads",
    "stdlib_logger:host",
    "stdlib_logger:rank",
    "structlog_logger:console",
    "structlog_logger:color",
    "structlog_logger:json",
    "structlog_logger:dicts",
    "structlog_logger:logfmt",
    "loguru_logger:text",
    "loguru_logger:diagnose",
    "loguru_logger:json",
    "json_logger:library",
    "json_logger:zap",
    "json_logger:bunyan",
    "json_logger:cloud",
    "json_logger:ecs",
    "rich_logger:wide",
    "rich_logger:narrow",
    "rich_logger:plain",
    "absl_logger:",
    "logfmt_logger:",
)
LOGGER_FAMILIES = tuple(dict.fromkeys(name.split(":")[0] if not name.startswith("json_") else name for name in LOGGERS))
NAMES_RANK = {"structlog_logger", "rich_logger", "logfmt_logger", "stdlib_logger:rank", "stdlib_logger:host", "loguru_logger:json", "json_logger:library", "json_logger:zap", "json_logger:bunyan", "json_logger:cloud"}
NAMES_NODE = {"structlog_logger", "stdlib_logger:host", "json_logger:zap", "json_logger:bunyan", "json_logger:cloud", "json_logger:ecs"}
DRAW = 32
"""The seed of the halves: changed only when a half has been looked into."""
CRASHES = ("uncaught", "uncaught", "logged", "both", "critical", "line")


def logger_family(logger: str) -> str:
    return next(family for family in LOGGER_FAMILIES if logger.startswith(family))


@dataclass(frozen=True, slots=True)
class Combination:
    """One case to be: what trains, what starts it, what writes its log, what goes wrong and how a crash is shown."""

    trainer: Framework
    launcher: Launcher
    logger: str
    scenario: Scenario
    truth: Truth
    number: int
    held_out: bool

    @property
    def slug(self) -> str:
        return f"{self.trainer.slug}-{self.launcher.name.replace(' ', '-').replace('--', '')}-{self.scenario.name}-{self.number:03d}"


@dataclass(frozen=True, slots=True)
class Half:
    """The families of one half."""

    trainers: tuple[Framework, ...]
    launchers: tuple[Launcher, ...]
    loggers: tuple[str, ...]


def halves(seed: int) -> tuple[Half, Half]:
    """(to develop on, held out)."""
    trainers = _split(seed, TRAINERS, _kind_of_trainer)
    launchers = _split(seed, [one for one in LAUNCHERS if one.name != "plain"], lambda one: str((bool(one.command), one.names_rank, one.names_node)))
    families = _split(seed, LOGGER_FAMILIES, lambda one: one.split("_")[0])
    plain = next(one for one in LAUNCHERS if one.name == "plain")
    loggers = [tuple(one for one in LOGGERS if logger_family(one) in half) for half in families]
    first, second = (
        Half(tuple(trainers[half]), (plain, *launchers[half]), loggers[half]) for half in (0, 1)
    )
    return first, second


def _kind_of_trainer(trainer: Framework) -> str:
    if trainer.imitation:
        return "imitation"
    if trainer.name == "snakemake":
        return "workflow"
    return "python" if trainer.environment else "native"


def _split(seed: int, families: Sequence[_T], kind: Callable[[_T], str]) -> tuple[list[_T], list[_T]]:
    """Each kind of family is halved by a chance of its own; the odd ones fall to either side in turn."""
    sides: tuple[list[_T], list[_T]] = ([], [])
    kinds = dict.fromkeys(kind(family) for family in families)
    for name in kinds:
        group = [family for family in families if kind(family) == name]
        random.Random(f"{seed}-{name}").shuffle(group)
        for family in group:
            sides[len(sides[0]) > len(sides[1])].append(family)
    return sides


def combinations(seed: int, count: int, held_out: bool, only: Sequence[str] = ()) -> Iterator[Combination]:
    """``count`` cases of the families of one half, or only of some trainers: the same seed gives the same cases."""
    half = halves(DRAW)[held_out]
    if only:
        half = replace(half, trainers=tuple(trainer for trainer in half.trainers if trainer.name in only))
    chance = random.Random(f"{seed}-{held_out}")
    ends: dict[str, list[tuple[Scenario, Truth]]] = {}
    for number in range(count if half.trainers else 0):
        trainer = half.trainers[number % len(half.trainers)]
        healthy = chance.random() < 0.25
        waiting = ends.setdefault(f"{trainer.name}{healthy}", [])
        if not waiting:
            waiting += [pair for pair in trainer.scenarios() if pair[1].healthy == healthy]
            chance.shuffle(waiting)
        scenario, truth = waiting.pop()
        yield _combination(chance, half, trainer, scenario, truth, number, held_out)


def _combination(
    chance: random.Random, half: Half, trainer: Framework, scenario: Scenario, truth: Truth, number: int, held_out: bool
) -> Combination:
    launchers = [one for one in half.launchers if _fits(one, trainer, scenario)]
    launcher = chance.choice(launchers)
    ranks = chance.choice((2, 3, 4)) if launcher.several and (not launcher.alone or chance.random() < 0.7) else 1
    if trainer.launcher == "alone":
        ranks = 1
    environment = trainer.environment
    logger = trainer.settings["logger"] if "logger" in trainer.settings else chance.choice(half.loggers)
    crash = chance.choice(CRASHES)
    settings = {**trainer.settings, "logger": logger, "crash": crash, "synchronous": ranks > 1 and chance.random() < 0.6}
    if "end" in scenario.settings:
        settings["words"] = {**settings.get("words", {}), "end": ""}
    faulty = chance.randrange(ranks) if scenario.name not in ("no-shard",) else chance.randrange(ranks)
    started = replace(trainer, launcher=launcher.name if ranks > 1 else "python", ranks=ranks, faulty=faulty, settings=settings, environment=environment)
    return Combination(started, launcher, logger, scenario, truth, number, held_out)


def _fits(launcher: Launcher, trainer: Framework, scenario: Scenario) -> bool:
    if trainer.launcher == "alone" and not launcher.alone:
        return False
    if launcher.only_python and trainer.program != ("{python}",):
        return False
    if launcher.environment and launcher.environment != trainer.environment:
        return False
    several = launcher.several and not launcher.alone
    single_only = scenario.stop is not None or scenario.timeout_s or scenario.name in ("terminate", "timeout", "ok-exit-0", "deadline", "ok-early", "interrupt")
    return not (single_only and (several or launcher.name != "plain"))
