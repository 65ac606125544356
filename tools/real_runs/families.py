"""Families of trainers, launchers and loggers, and their two halves.

Half of the families of each kind are drawn by a seed and held out: a case that is held out has no trainer, launcher or
logger that a case to develop on has (but for a bare process, which both know).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tools.real_runs import newer_families, newer_imitations, newer_launchers, newer_native
from tools.real_runs.clusters import CLUSTERS
from tools.real_runs.frameworks import Framework
from tools.real_runs.imitations import IMITATIONS
from tools.real_runs.launchers import LAUNCHERS, Launcher
from tools.real_runs.native import NATIVE
from tools.real_runs.python_families import PYTHON
from tools.real_runs.workflows import WORKFLOWS

_Family = TypeVar("_Family")
TRAINERS: tuple[Framework, ...] = (*PYTHON, *NATIVE, *WORKFLOWS, *IMITATIONS, *CLUSTERS)
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
"""Loggers of the trainers in Python: module and form. The others write their own lines."""
LOGGER_FAMILIES = tuple(dict.fromkeys(name.split(":")[0] if not name.startswith("json_") else name for name in LOGGERS))
"""Forms of one library are one family; forms of JSON have nothing in common."""
NAMES_RANK = {
    "structlog_logger",
    "rich_logger",
    "logfmt_logger",
    "stdlib_logger:rank",
    "stdlib_logger:host",
    "loguru_logger:json",
    "json_logger:library",
    "json_logger:zap",
    "json_logger:bunyan",
    "json_logger:cloud",
    "json_logger:winston",
    "json_logger:gelf",
    "json_logger:pino",
    "json_logger:datadog",
    "library_logger:coloredlogs",
    "text_logger:zerolog",
    "text_logger:tracing",
    "text_logger:ltsv",
}
"""Loggers whose records state the rank where there are several processes."""
_FIRST_LOGGERS = (
    "library_logger:logbook",
    "library_logger:eliot",
    "library_logger:bar",
    "text_logger:log4j",
    "text_logger:tracing",
    "text_logger:zerolog",
    "text_logger:util",
    "text_logger:ltsv",
    "text_logger:env_logger",
    "json_logger:winston",
    "json_logger:gelf",
)
_SECOND_LOGGERS = (
    "library_logger:coloredlogs",
    "library_logger:otel",
    "text_logger:serilog",
    "text_logger:zap",
    "text_logger:celery",
    "text_logger:klog",
    "text_logger:hclog",
    "text_logger:csv",
    "json_logger:pino",
    "json_logger:logstash",
    "json_logger:datadog",
)
"""Of the second generation, whose forms have nothing in common but the code that writes them."""
DRAW = 32
"""The seed of the halves: changed only when a half has been looked into."""


@dataclass(frozen=True, slots=True)
class Half:
    """The families of one half."""

    trainers: tuple[Framework, ...]
    launchers: tuple[Launcher, ...]
    loggers: tuple[str, ...]


def halves(seed: int = DRAW, generation: int = 1) -> tuple[Half, Half]:
    """Draw the families to develop on and those that are held out; those of the second generation have their places."""
    if generation == 2:
        return NEWER
    plain, *others = LAUNCHERS
    trainers = _split(seed, TRAINERS, _kind_of_trainer)
    launchers = _split(seed, others, _kind_of_launcher)
    families = _split(seed, LOGGER_FAMILIES, lambda family: family.split("_")[0])
    first, second = (Half(tuple(trainers[half]), (plain, *launchers[half]), _forms(families[half])) for half in (0, 1))
    return first, second


NEWER: tuple[Half, Half] = (
    Half((*newer_families.FIRST, *newer_native.FIRST, *newer_imitations.FIRST), newer_launchers.FIRST, _FIRST_LOGGERS),
    Half(
        (*newer_families.SECOND, *newer_native.SECOND, *newer_imitations.SECOND),
        newer_launchers.SECOND,
        _SECOND_LOGGERS,
    ),
)
"""The second generation."""


def _forms(families: Sequence[str]) -> tuple[str, ...]:
    return tuple(logger for logger in LOGGERS if any(logger.startswith(family) for family in families))


def _kind_of_trainer(trainer: Framework) -> str:
    if trainer.imitation:
        return "imitation"
    if trainer in WORKFLOWS:
        return "workflow"
    if trainer in CLUSTERS:
        return "cluster"
    return "python" if trainer.environment else "native"


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
