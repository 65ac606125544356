"""Batches that a recovery plan skips: which steps, and in what the loop of a trainer sees of them."""

from collections.abc import Iterator
from random import Random
from types import SimpleNamespace

import pytest

from diagnoser.client.resume import RemainingBatches, skip_in_trainer, skipped_steps, unskipped


@pytest.mark.parametrize(
    ("first", "last", "steps"),
    [
        ("8", "11", [8, 9, 10, 11]),
        ("8", "8", [8]),
        ("11", "8", []),
        ("8", "", []),
        ("", "", []),
        ("-3", "2", []),
        ("1e3", "2000", []),
        ("8", "9" * 40, []),
    ],
)
def test_only_two_steps_in_order_skip_anything(first: str, last: str, steps: list[int]) -> None:
    """What a launcher made of the variables by mistake never leaves out data."""
    assert list(skipped_steps({"DIAGNOSER_SKIP_FROM": first, "DIAGNOSER_SKIP_TO": last})) == steps


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGNOSER_SKIP_FROM", "3")
    monkeypatch.setenv("DIAGNOSER_SKIP_TO", "5")


@pytest.mark.usefixtures("plan")
def test_a_loader_that_goes_on_by_itself_loses_the_skipped_batches() -> None:
    """Behind them the numbers of the steps go on with those of the batches."""
    assert list(unskipped("cdefgh", 2)) == [(2, "c"), (6, "g"), (7, "h")]


class Shuffled:
    """Batches in another order in each epoch, from a generator as RandomSampler has one."""

    def __init__(self, generator: Random | None) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[int]:
        assert self.generator is not None
        return iter(self.generator.sample(range(4), 4))


@pytest.mark.usefixtures("plan")
@pytest.mark.parametrize("per_step", [1, 2])
def test_a_sampler_with_a_generator_goes_on_in_a_later_epoch(per_step: int) -> None:
    """The orders of the epochs before are drawn, and not used; gradients that accumulate skip all batches of a step."""
    drawn, batches = Random(0), list[int]()
    for _ in range(4):
        batches += drawn.sample(range(4), 4)
    remaining, trained = RemainingBatches(Shuffled(Random(0)), 2, batches_per_step=per_step), []
    for epoch in range(remaining.epoch, 4):
        remaining.set_epoch(epoch)
        of_epoch = list(remaining)
        assert len(remaining) == len(of_epoch) == per_step * len(remaining.steps)
        trained += of_epoch
    expected = [batch for number, batch in enumerate(batches) if number // per_step in {2, *range(6, 16)}]
    assert trained == expected


def test_a_sampler_whose_order_cannot_come_again_is_refused() -> None:
    """Another order would skip other samples."""
    with pytest.raises(ValueError, match="generator with a seed"):
        RemainingBatches(Shuffled(None), 2)


def test_a_gradient_scaler_is_refused_before_any_plan_needs_it() -> None:
    """It would stop the first launch that a plan makes, at night."""
    trainer = SimpleNamespace(accelerator=SimpleNamespace(scaler=object()))
    with pytest.raises(ValueError, match="bf16"):
        skip_in_trainer(trainer)
