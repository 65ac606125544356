"""Trains on a real framework and writes down on what.

A process that loads this is a rank: the environment says which, of how many, and may hold a recovery plan. Every rank
appends lines "step index,index,..." to the file of its rank below a folder.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from diagnoser.client.resume import RemainingBatches, skip_in_lightning, skip_in_trainer, skipped_steps, unskipped

BATCH, WORKERS, EPOCHS, SEED = 2, 2, 3, 5
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PER_EPOCH = 10
ROWS = PER_EPOCH * BATCH * RANKS


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Each row holds its number."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"rows": torch.tensor(index), "labels": torch.tensor(float(index))}


class Record:
    """What this rank has trained on."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"rank-{RANK}.txt"

    def add(self, step: int, rows: torch.Tensor) -> None:
        with self._path.open("a") as file:
            file.write(f"{step} {','.join(map(str, rows.flatten().tolist()))}\n")


def distributed_sampler() -> torch.utils.data.Sampler[int]:
    return torch.utils.data.DistributedSampler(Rows(), RANKS, RANK, shuffle=True, seed=SEED)


def loop(record: Record, last: int, steps: Iterable[tuple[int, dict[str, torch.Tensor]]]) -> bool:
    """Train; tell whether the last step was reached."""
    for step, batch in steps:
        if step > last:
            return True
        record.add(step, batch["rows"])
    return False


def torchdata(folder: Path, last: int, step: int | None) -> None:
    """Steps count from 0; the loader's state is the checkpoint."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    sampler = distributed_sampler()
    loader = StatefulDataLoader(Rows(), BATCH, sampler=sampler, num_workers=WORKERS)
    first = 0
    if step is not None:
        loader.load_state_dict(torch.load(folder / f"{step}-{RANK}.pt", weights_only=False))
        first = step + 1
    record = Record(folder)
    for epoch in range(first // PER_EPOCH, EPOCHS):
        sampler.set_epoch(epoch)
        for number, batch in unskipped(loader, max(first, epoch * PER_EPOCH)):
            if number > last:
                return
            record.add(number, batch["rows"])
            torch.save(loader.state_dict(), folder / f"{number}-{RANK}.pt")


def sampler(folder: Path, last: int, step: int | None) -> None:
    """Steps count from 0, and are all that a checkpoint needs. With one rank the sampler has a generator."""
    sampler = distributed_sampler()
    if RANKS == 1:
        sampler = torch.utils.data.RandomSampler(Rows(), generator=torch.Generator().manual_seed(SEED))
    train_with(torch.utils.data.BatchSampler(sampler, BATCH, drop_last=True), Rows(), folder, last, step)


def train_with(batches: Iterable[list[int]], dataset: Any, folder: Path, last: int, step: int | None) -> None:
    remaining = RemainingBatches(batches, 0 if step is None else step + 1)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=remaining, num_workers=WORKERS)
    record = Record(folder)
    for epoch in range(remaining.epoch, EPOCHS):
        remaining.set_epoch(epoch)
        steps = remaining.steps
        assert len(steps) == len(loader)
        if loop(record, last, zip(steps, loader, strict=True)):
            return


class ConsecutiveSamples:
    """A batch sampler as Megatron's: the ranks share the samples of a step, in the order of the index."""

    def __len__(self) -> int:
        return PER_EPOCH

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(RANK * BATCH, ROWS, BATCH * RANKS):
            yield list(range(start, start + BATCH))


def megatron(folder: Path, last: int, step: int | None) -> None:
    """An index dataset of megatron-core, in a file of each rank."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    prefix = folder / f"tokens-{RANK}"
    builder = IndexedDatasetBuilder(f"{prefix}.bin")
    for row in range(ROWS):
        builder.add_document(torch.tensor([row]), [1])
    builder.finalize(f"{prefix}.idx")

    class Samples(torch.utils.data.Dataset[dict[str, Any]]):
        tokens = IndexedDataset(str(prefix))

        def __len__(self) -> int:
            return len(self.tokens)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"rows": torch.tensor(self.tokens[index].astype("int64"))}

    train_with(ConsecutiveSamples(), Samples(), folder, last, step)


class Model(torch.nn.Module):
    """Writes down what comes to it, at the step that ``step`` tells."""

    def __init__(self, record: Record, step: Callable[[], int]) -> None:
        super().__init__()
        self.layer, self._record, self._step = torch.nn.Linear(1, 1), record, step

    def forward(self, rows: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self._record.add(self._step(), rows)
        return {"loss": (self.layer(labels[:, None] / ROWS).squeeze(-1) - labels).square().mean()}


def transformers(folder: Path, last: int, step: int | None) -> None:
    """Steps count from 1, each of two batches."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Weights(TrainerCallback):
        """No skipped step changes a weight."""

        def on_step_begin(self, *_: object, **__: object) -> None:
            self.before = model.layer.weight.clone()

        def on_step_end(self, _: object, state: Any, *__: object, **___: object) -> None:
            assert torch.equal(self.before, model.layer.weight) == (state.global_step in skipped_steps())

    model = Model(Record(folder), lambda: trainer.state.global_step + 1)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=last,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=2,
        dataloader_num_workers=WORKERS,
        save_steps=1,
        seed=SEED,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        ddp_backend="gloo",
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[Weights()])
    skip_in_trainer(trainer)
    trainer.train(resume_from_checkpoint=None if step is None else str(folder / f"checkpoint-{step}"))


def lightning(folder: Path, last: int, step: int | None) -> None:
    """Steps count from 1. Its counter stands still where batches are dropped, so that the batches are written down."""
    import lightning as pl
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(Record(folder), lambda: self.trainer.fit_loop.total_batch_idx + 1)

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def on_train_batch_end(self, *_: object) -> None:
            self.trainer.save_checkpoint(folder / f"{self.trainer.global_step}.ckpt")

    module = Module()
    skip_in_lightning(module)
    trainer = pl.Trainer(
        max_steps=last - len(skipped_steps()),
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    sampler = distributed_sampler()
    sampler.set_epoch((step or 0) // (len(sampler) // BATCH))
    loader = StatefulDataLoader(Rows(), BATCH, sampler=sampler, num_workers=WORKERS)
    trainer.fit(module, loader, ckpt_path=None if step is None else folder / f"{step}.ckpt", weights_only=False)


FRAMEWORKS = {train.__name__: train for train in (torchdata, sampler, megatron, transformers, lightning)}


def train(name: str, folder: Path, last: int, step: int | None) -> None:
    """name: of a function here. It saves at each step, up to ``last``, and goes on from the checkpoint of ``step``."""
    FRAMEWORKS[name](folder, last, step)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
