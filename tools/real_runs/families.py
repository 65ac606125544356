"""Families of trainers, launchers and loggers, and the two halves of each generation.

Half of the families of each kind are held out: a case that is held out has no trainer, launcher or logger that a case
to develop on has (but for a bare process, which both know). A generation is written by somebody who has not read the
rules, after all families of the one before have been seen.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tools.real_runs.clusters import CLUSTERS, WORKFLOWS
from tools.real_runs.frameworks import Framework
from tools.real_runs.imitations import IMITATIONS
from tools.real_runs.kit_families import KIT
from tools.real_runs.launchers import LAUNCHERS, PLAIN, Launcher
from tools.real_runs.native import NATIVE
from tools.real_runs.python_families import PYTHON

_Family = TypeVar("_Family")
TRAINERS: tuple[Framework, ...] = (*PYTHON, *KIT, *NATIVE, *WORKFLOWS, *IMITATIONS, *CLUSTERS)
GENERATIONS = (1, 2, 3)
DRAW = 32
"""The seed that halves the first generation: changed only when a half has been looked into. The halves of later ones
stand in the tables: the third's were drawn by it, too."""


@dataclass(frozen=True, slots=True)
class Logger:
    """A logger of the trainers in Python (the others write their own lines): a module of ``trainers/loggers``, with a
    form of it behind a colon. names_rank: its records state the rank where there are several processes."""

    name: str
    names_rank: bool = False
    generation: int = 1
    half: int = 0

    @property
    def family(self) -> str:
        """Forms of one library are one family; forms of JSON have nothing in common."""
        return self.name if self.name.startswith("json_") else self.name.split(":")[0]


def _loggers(module: str, forms: str, ranks: str = "", generation: int = 1, half: int = 0) -> list[Logger]:
    """ranks: the forms that name the rank."""
    named = ranks.split()
    return [Logger(f"{module}_logger:{form}", form in named, generation, half) for form in forms.split(" ")]


_STRUCTLOG = "console color json dicts logfmt"
_JSON = "library zap bunyan cloud"
LOGGERS: tuple[Logger, ...] = (
    *_loggers("stdlib", "basic pipes uvicorn vertical threads host rank", "host rank"),
    *_loggers("structlog", _STRUCTLOG, _STRUCTLOG),
    *_loggers("loguru", "text diagnose json", "json"),
    *_loggers("json", f"{_JSON} ecs", _JSON),
    *_loggers("rich", "wide narrow plain", "wide narrow plain"),
    *_loggers("absl", ""),
    Logger("logfmt_logger:", names_rank=True),
    *_loggers("library", "logbook eliot bar", generation=2),
    *_loggers("text", "log4j tracing zerolog util ltsv env_logger", "tracing zerolog ltsv", generation=2),
    *_loggers("json", "winston gelf", "winston gelf", generation=2),
    *_loggers("library", "coloredlogs otel", "coloredlogs", generation=2, half=1),
    *_loggers("text", "serilog zap celery klog hclog csv", generation=2, half=1),
    *_loggers("json", "pino logstash datadog", "pino datadog", generation=2, half=1),
    *_loggers("library", "logzero alive", "logzero", generation=3),
    *_loggers("text", "dated spdlog boost logrus", "dated spdlog logrus", generation=3),
    *_loggers("json", "span otlp", "span otlp", generation=3),
    *_loggers("library", "daiquiri", "daiquiri", generation=3, half=1),
    *_loggers("text", "logback log4cxx nlog cef", "logback log4cxx nlog cef", generation=3, half=1),
    *_loggers("json", "slog monolog clef", "slog monolog clef", generation=3, half=1),
)
LOGGER_FAMILIES = tuple(dict.fromkeys(logger.family for logger in LOGGERS if logger.generation == 1))
NAMES_RANK = {logger.name for logger in LOGGERS if logger.names_rank}


_WITHOUT_PLAIN = {(2, 1)}
"""Halves that were drawn without the bare process."""


@dataclass(frozen=True, slots=True)
class Half:
    """The families of one half."""

    trainers: tuple[Framework, ...]
    launchers: tuple[Launcher, ...]
    loggers: tuple[str, ...]


def halves(seed: int = DRAW, generation: int = 1) -> tuple[Half, Half]:
    """Return the families to develop on and those that are held out."""
    first, second = (_first_half(seed, half) if generation == 1 else _placed(generation, half) for half in (0, 1))
    return first, second


def _placed(generation: int, half: int) -> Half:
    def has_place(family: Framework | Launcher | Logger) -> bool:
        return (family.generation, family.half) == (generation, half)

    launchers = [launcher for launcher in LAUNCHERS if launcher is not PLAIN and has_place(launcher)]
    return Half(
        tuple(filter(has_place, TRAINERS)),
        tuple(launchers if (generation, half) in _WITHOUT_PLAIN else (PLAIN, *launchers)),
        tuple(logger.name for logger in LOGGERS if has_place(logger)),
    )


def _first_half(seed: int, half: int) -> Half:
    trainers = [trainer for trainer in TRAINERS if trainer.generation == 1]
    launchers = [launcher for launcher in LAUNCHERS if launcher.generation == 1 and launcher is not PLAIN]
    families = _split(seed, LOGGER_FAMILIES, lambda family: family.split("_")[0])[half]
    return Half(
        tuple(_split(seed, trainers, lambda trainer: trainer.kind)[half]),
        (PLAIN, *_split(seed, launchers, _kind_of_launcher)[half]),
        tuple(logger.name for logger in LOGGERS if logger.generation == 1 and logger.family in families),
    )


def _kind_of_launcher(launcher: Launcher) -> str:
    return str((bool(launcher.command), launcher.names_rank, launcher.names_node))


def _split(
    seed: int, families: Sequence[_Family], kind_of: Callable[[_Family], str]
) -> tuple[list[_Family], list[_Family]]:
    """Halve each kind of family by a chance of its own; the odd ones fall to either side in turn."""
    sides: tuple[list[_Family], list[_Family]] = ([], [])
    for kind in dict.fromkeys(kind_of(family) for family in families):
        group = [family for family in families if kind_of(family) == kind]
        random.Random(f"{seed}-{kind}").shuffle(group)
        for family in group:
            sides[len(sides[0]) > len(sides[1])].append(family)
    return sides
