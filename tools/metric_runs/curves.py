"""Curves of losses: how trainings of many kinds go, step by step, and how they diverge."""

import math
import random
from collections.abc import Callable

Curve = Callable[[int], float]


def language_model(rng: random.Random, begin: float = 10.9, floor: float = 2.0, noise: float = 0.03) -> Curve:
    """A power law from the loss of a model that guesses."""
    scale, power = rng.uniform(20.0, 120.0), rng.uniform(0.35, 0.6)
    return lambda step: floor + (begin - floor) * (1 + step / scale) ** -power + rng.gauss(0.0, noise)


def fine_tuning(rng: random.Random, begin: float = 1.5, floor: float = 0.8, noise: float = 0.2) -> Curve:
    """A model that knows most already, in small batches."""
    scale = rng.uniform(100.0, 400.0)
    return lambda step: max(0.01, floor + (begin - floor) * math.exp(-step / scale) + rng.gauss(0.0, noise * floor))


def spiky(curve: Curve, rng: random.Random, every: int = 900) -> Curve:
    """Now and then a spike that the run recovers from."""
    spikes = sorted(
        (rng.randrange(100, 20_000), rng.uniform(2.0, 6.0), rng.uniform(2.0, 12.0)) for _ in range(20_000 // every)
    )

    def at(step: int) -> float:
        value = curve(step)
        for begin, height, decay in spikes:
            if 0 <= step - begin < 80:
                value *= 1 + height * math.exp(-(step - begin) / decay)
        return value

    return at


def data_mix(curve: Curve, changes: dict[int, float], settles: float = 150.0) -> Curve:
    """Other data from these steps on: the loss is so many times as high, and half of that goes again."""

    def at(step: int) -> float:
        value = curve(step)
        for begin, factor in changes.items():
            if step >= begin:
                value *= 1 + (factor - 1) * (0.5 + 0.5 * math.exp(-(step - begin) / settles))
        return value

    return at


def restarts(curve: Curve, every: int) -> Curve:
    """The learning rate goes up again every so many steps."""
    return lambda step: curve(step) * (1 + 0.35 * math.exp(-(step % every) / (every / 8)) * (step >= every))


def drops(curve: Curve, every: int) -> Curve:
    """The learning rate falls at milestones, and the loss with it."""
    return lambda step: curve(step) * 0.7 ** min(3, step // every)


def tasks(rng: random.Random, every: int) -> Curve:
    """One task after the other, each new to the model."""
    return lambda step: max(0.002, 2.3 * math.exp(-(step % every) / (every / 14)) * rng.uniform(0.8, 1.2))


def policy(rng: random.Random) -> Curve:
    """A loss of a policy that learns from rewards: around zero, and at times far from it."""
    return lambda step: rng.gauss(0.0, 0.02) + (rng.expovariate(0.3) if rng.random() < 0.1 else 0.0) * (1 + step / 2000)


def player(rng: random.Random, level: float, drift: float) -> Curve:
    """The loss of one of two players: it goes up and down with the strength of the other."""
    phase = rng.uniform(0, 6.28)
    return lambda step: level * math.exp(drift * math.sin(step / 400 + phase)) * rng.lognormvariate(0.0, 0.35)


def explodes(curve: Curve, at: int, factor: float) -> Curve:
    """The loss jumps and stays."""
    return lambda step: (
        curve(step) if step < at else factor * abs(curve(at - 1)) * (0.9 + 0.2 * ((step * 7919) % 97) / 97)
    )


def climbs(curve: Curve, at: int, top: float, steps: int) -> Curve:
    """The loss climbs within some steps to that of a model that knows nothing, and stays there."""

    def value(step: int) -> float:
        if step < at:
            return curve(step)
        share = min(1.0, (step - at + 1) / steps)
        low = curve(at - 1)
        return low + (top - low) * share + 0.05 * (((step * 7919) % 97) / 97 - 0.5)

    return value


def breaks(curve: Curve, at: int, value: float) -> Curve:
    """NaN or infinite from here on."""
    return lambda step: curve(step) if step < at else value
