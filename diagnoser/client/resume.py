"""Leaves out the data batches that a recovery plan skips, in the loop of whatever trains.

A launch that goes back before a diverged loss has the steps to skip in ``DIAGNOSER_SKIP_FROM`` and
``DIAGNOSER_SKIP_TO``, both included, as the run printed them. A skipped step counts as a step and trains nothing, so
that the number of a step and that of its batch stay together in all later launches, with these variables or without.
(Only Lightning's counter stands still meanwhile; its checkpoints hold how many batches came.)

Each function takes the object of the framework, and imports nothing. On every rank call the same.
"""

from __future__ import annotations

import os
import re
from typing import Any, Iterable, Iterator, Mapping, TypeVar

Batch = TypeVar("Batch")


def skipped_steps(environment: Mapping[str, str] = os.environ) -> range:
    """Return the steps that train nothing; none without a plan, or where it does not name two steps in order."""
    bounds = environment.get("DIAGNOSER_SKIP_FROM", ""), environment.get("DIAGNOSER_SKIP_TO", "")
    if not all(re.fullmatch(r"\d{1,18}", bound) for bound in bounds):
        return range(0)
    return range(int(bounds[0]), int(bounds[1]) + 1)


def unskipped(loader: Iterable[Batch], step: int) -> Iterator[tuple[int, Batch]]:
    """Yield (step, batch) of an epoch without the skipped ones, which are read and dropped.

    For loaders that go on where they were by themselves, as torchdata's StatefulDataLoader does.

    loader: what is left of the epoch.
    step: number of its first step.
    """
    skipped = skipped_steps()
    for number, batch in enumerate(loader, step):
        if number not in skipped:
            yield number, batch


class RemainingBatches:
    """A batch sampler that goes on at a step, and does not read what is skipped.

    Takes the place of ``batch_sampler`` in a DataLoader. Call ``set_epoch`` before each epoch, the first is ``epoch``.

    batch_sampler: yields the same lists of indices in every launch: in order, or from a seed of its own.
    next_step: the first one that trains, the step of the checkpoint and one more.
    first_step: number of the first step that ``batch_sampler`` has batches of.
    batches_per_step: of each rank, where gradients accumulate.
    """

    def __init__(self, batch_sampler: Any, next_step: int, *, first_step: int = 0, batches_per_step: int = 1) -> None:
        self._batches, self._sampler = batch_sampler, getattr(batch_sampler, "sampler", batch_sampler)
        if hasattr(self._sampler, "generator") and self._sampler.generator is None:
            raise ValueError("the order of this sampler is another in each launch: give it a generator with a seed")
        self._next, self._first, self._per_step = next_step, first_step, batches_per_step
        self._skipped = skipped_steps()
        self._steps = -(-len(batch_sampler) // batches_per_step)
        self._drawn = 0
        self.epoch = max(0, next_step - first_step) // self._steps

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; shuffles as the sampler's own ``set_epoch`` does, where it has one."""
        self.epoch = epoch
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
            self._drawn = epoch

    def __len__(self) -> int:
        return sum(map(self._trains, range(len(self._batches))))

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._drawn, self.epoch):  # a generator goes on from epoch to epoch
            for _ in self._batches:
                pass
        self._drawn = self.epoch + 1
        for number, batch in enumerate(self._batches):
            if self._trains(number):
                yield batch

    @property
    def steps(self) -> list[int]:
        """The numbers of the steps that train in this epoch."""
        first = self._first + self.epoch * self._steps
        return [step for step in range(max(first, self._next), first + self._steps) if step not in self._skipped]

    def _trains(self, number: int) -> bool:
        step = self._first + self.epoch * self._steps + number // self._per_step
        return step >= self._next and step not in self._skipped


def skip_in_trainer(trainer: Any) -> None:
    """Let a Trainer of transformers pass over the skipped steps: without a gradient no optimizer changes a weight.

    Call it before ``trainer.train(resume_from_checkpoint=...)``, which goes on at the right batch by itself. A skipped
    step shows the loss of the step before it. Raises ValueError with fp16's scaler, which needs gradients.
    """
    if getattr(trainer.accelerator, "scaler", None) is not None:
        raise ValueError("a gradient scaler cannot pass over a step: train in bf16")
    skipped, train = skipped_steps(), trainer.training_step
    newest: list[Any] = []

    def training_step(model: Any, inputs: Any, *others: Any, **named: Any) -> Any:
        if trainer.state.global_step + 1 not in skipped:
            newest[:] = [train(model, inputs, *others, **named)]
        elif not newest:
            return next(model.parameters()).new_zeros(())
        return newest[0]

    trainer.training_step = training_step


def skip_in_lightning(hooks: Any) -> None:
    """Let a Trainer of Lightning drop the batches of skipped steps: to it a batch that is None is none.

    Its loader has to go on where it was, as torchdata's StatefulDataLoader does. ``trainer.global_step`` stands still
    meanwhile; save no checkpoint at a time of the clock then.

    hooks: the LightningModule, or the LightningDataModule where that has ``on_before_batch_transfer``.
    """
    skipped, transfer = skipped_steps(), hooks.on_before_batch_transfer
    first, passed = _first_steps(skipped), [0]

    def on_before_batch_transfer(batch: Any, dataloader_idx: int) -> Any:
        trainer = hooks.trainer
        if not trainer.training:
            return transfer(batch, dataloader_idx)
        if not passed[0] and trainer.global_step + 1 in first:
            passed[0] = trainer.global_step + 1
        if passed[0] not in skipped:
            return transfer(batch, dataloader_idx)
        passed[0] += _ends_step(trainer)
        return None

    hooks.on_before_batch_transfer = on_before_batch_transfer


def _first_steps(skipped: range) -> list[int]:
    """Return where skipping may begin: at the first step, or behind a checkpoint from within."""
    step = os.environ.get("DIAGNOSER_CHECKPOINT_STEP", "")
    behind = [int(step) + 1] if step.isdecimal() else []
    return [step for step in (skipped.start, *behind) if step in skipped]


def _ends_step(trainer: Any) -> bool:
    """Tell whether the optimizer of Lightning would step after the batch that comes now."""
    batches = trainer.fit_loop.batch_idx + 2  # of the epoch, with this one
    return bool(batches % trainer.accumulate_grad_batches == 0 or batches == trainer.num_training_batches)
