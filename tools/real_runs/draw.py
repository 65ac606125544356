"""Draws cases from the product of the families: trainer, launcher, logger, scenario and how a crash is shown."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tools.real_runs.families import Half, halves
from tools.real_runs.frameworks import Framework
from tools.real_runs.launchers import Launcher
from tools.real_runs.scenarios import Scenario, Truth

CRASHES = ("uncaught", "uncaught", "logged", "both", "critical", "line")
"""How a trainer in Python shows what it raised; an uncaught exception is the most usual."""
_KINDS = ("healthy", "all", "one")
_WEIGHTS = (25, 25, 50)
"""Shares of healthy runs, of faults of all ranks and of faults of one rank."""
_SEVERAL_SHARE, _SYNCHRONOUS_SHARE = 0.8, 0.6
_PROPAGATES = ("nan", "nan-exit")
"""Faults of one rank that an average brings to all."""
_ALONE = ("terminate", "timeout", "ok-exit-0", "deadline", "ok-early", "interrupt")
"""Scenarios of a bare process, as a shell starts it."""


@dataclass(frozen=True, slots=True)
class Combination:
    """One case to be. number: unique in the draw, and part of the id."""

    trainer: Framework
    launcher: Launcher
    logger: str
    crash: str
    scenario: Scenario
    truth: Truth
    number: int
    held_out: bool

    @property
    def slug(self) -> str:
        launcher = self.launcher.name.replace("--", "").replace(" ", "-")
        return f"{self.trainer.slug}-{launcher}-{self.scenario.name}-{self.number:04d}"


def combinations(
    seed: int, count: int, held_out: bool, only: Sequence[str] = (), generation: int = 1
) -> Iterator[Combination]:
    """Draw ``count`` cases of the families of one half: the same seed gives the same cases, another one others.

    only: names of trainers; all of the half when empty.
    """
    half = halves(generation=generation)[held_out]
    if generation == 1 and only:
        half = replace(half, trainers=tuple(trainer for trainer in half.trainers if trainer.name in only))
    shared, scenarios = random.Random(f"{seed}-{held_out}"), _Scenarios()
    chances = {trainer.name: shared for trainer in half.trainers}
    if generation > 1:  # trainers that come later leave the cases of the others as they are
        chances = {name: random.Random(f"{seed}-{held_out}-{name}") for name in chances}
    for number in range(count if half.trainers else 0):
        trainer = half.trainers[number % len(half.trainers)]
        if only and trainer.name not in only:
            continue
        chance = chances[trainer.name]
        scenario, truth = scenarios.draw(trainer, chance)
        place = number if generation == 1 else number // len(half.trainers)
        yield _combination(chance, half, trainer, scenario, truth, 1000 * seed + place, held_out)


class _Scenarios:
    """Goes through the scenarios of each trainer in an order of chance, none a second time before all others."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], list[tuple[Scenario, Truth]]] = {}

    def draw(self, trainer: Framework, chance: random.Random) -> tuple[Scenario, Truth]:
        (kind,) = chance.choices(_KINDS, _WEIGHTS)
        waiting = self._waiting.setdefault((trainer.name, kind), [])
        if not waiting:
            applying = trainer.scenarios()
            waiting += [pair for pair in applying if _kind(pair[1]) == kind] or applying
            chance.shuffle(waiting)
        return waiting.pop()


def _kind(truth: Truth) -> str:
    if truth.healthy:
        return "healthy"
    return "all" if truth.where == "all" else "one"


def _combination(
    chance: random.Random, half: Half, trainer: Framework, scenario: Scenario, truth: Truth, number: int, held_out: bool
) -> Combination:
    launcher = _launcher(chance, half, trainer, scenario, truth)
    ranks = _ranks(chance, launcher, trainer)
    logger = str(trainer.settings.get("logger", chance.choice(half.loggers)))
    crash = chance.choice(CRASHES) if "words" in trainer.settings else "uncaught"
    synchronous = ranks > 1 and chance.random() < _SYNCHRONOUS_SHARE
    settings = {**trainer.settings, "logger": logger, "crash": crash, "synchronous": synchronous, "seed": number}
    if "end" in scenario.settings:
        settings["words"] = {**settings.get("words", {}), "end": scenario.settings["end"]}
    if scenario.name in _PROPAGATES and not synchronous:
        truth = replace(truth, where="one")
    started = replace(trainer, ranks=ranks, faulty=chance.randrange(ranks), settings=settings)
    return Combination(started, launcher, logger, crash, scenario, truth, number, held_out)


def _launcher(chance: random.Random, half: Half, trainer: Framework, scenario: Scenario, truth: Truth) -> Launcher:
    """Faults of one rank are mostly started by a launcher of several."""
    launchers = [launcher for launcher in half.launchers if _fits(launcher, trainer, scenario)]
    launchers = [launcher for launcher in launchers if not (truth.healthy and launcher.cuts)]
    several = [launcher for launcher in launchers if launcher.several]
    if _kind(truth) == "one" and several and chance.random() < _SEVERAL_SHARE:
        return chance.choice(several)
    return chance.choice(launchers)


def _ranks(chance: random.Random, launcher: Launcher, trainer: Framework) -> int:
    if trainer.single or not launcher.several:
        return 1
    if launcher.alone and chance.random() > _SEVERAL_SHARE:
        return 1
    return chance.choice((2, 3, 4))


def _fits(launcher: Launcher, trainer: Framework, scenario: Scenario) -> bool:
    carried = trainer.settings.get("launchers")
    if (carried and launcher.name not in carried) or (trainer.single and not launcher.alone):
        return False
    if launcher.only_python and trainer.program != ("{python}",):
        return False
    if launcher.environment and launcher.environment != trainer.environment:
        return False
    bare = scenario.stop is not None or scenario.timeout_s > 0 or scenario.name in _ALONE
    return not bare or launcher.name == "plain"
