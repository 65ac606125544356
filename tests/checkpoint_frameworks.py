"""Runs the examples of docs/checkpoints.md on real frameworks: `python -m tests.checkpoint_frameworks NAME FOLDER`.

NAME: lightning or transformers (with accelerate), which the Python that runs this must have, beside torch's CPU build.
Prints versions, the steps that verify, and what goes on from the newest.
"""

import importlib.metadata
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from diagnoser.client.checkpoints import find, resume, verify

PAGE = Path(__file__).resolve().parents[1] / "docs/checkpoints.md"
WIDTH, ROWS, BATCH = 8, 64, 8
EVERY, STEPS = 4, 12


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    examples: dict[str, Callable[[Path, dict[str, Any]], int]] = {
        "lightning": on_lightning,
        "transformers": on_transformers,
    }
    reached = examples[name](folder, example(name))
    saved = []
    for found in reversed(find(str(folder))):
        about = found.completion.about if found.completion else None
        saved.append((about and about.step, verify(found.path).state.value, about and about.finite, *found.unlisted))
    versions = {each: importlib.metadata.version(each) for each in (name, "torch")}
    sys.stdout.write(json.dumps({"versions": versions, "saved": saved, "went on to": reached}) + "\n")


def example(name: str) -> dict[str, Any]:
    """What the page's example defines."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if re.search(rf"^(?:import|from) {name}\b", block, re.MULTILINE)]
    defined: dict[str, Any] = {}
    exec(compile(block, f"{PAGE.name}: {name}", "exec"), defined)
    return defined


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))
        return {"inputs": row, "labels": row.sum()}

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return (self[index] for index in range(len(self)))


def on_lightning(folder: Path, defined: dict[str, Any]) -> int:
    """The step that a second fit reaches, from the checkpoint of the first."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(WIDTH, 1)

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            loss = (self.layer(batch["inputs"]).squeeze(-1) - batch["labels"]).square().mean()
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    def fit(steps: int) -> int:
        trainer = lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[defined["TrustedCheckpoints"](folder, EVERY)],
        )
        found = resume(str(folder))
        path = Path(found.path) / "model.ckpt" if found else None
        trainer.fit(Module(), torch.utils.data.DataLoader(Rows(), BATCH), ckpt_path=path)
        return trainer.global_step

    fit(STEPS)
    return fit(STEPS + EVERY)


def on_transformers(folder: Path, defined: dict[str, Any]) -> int:
    """The step that a second run reaches, from the checkpoint of the first."""
    import transformers

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(WIDTH, 1)

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.layer(inputs).squeeze(-1) - labels).square().mean()}

    def train(steps: int) -> int:
        arguments = transformers.TrainingArguments(
            output_dir=str(folder),
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            save_steps=EVERY,
            logging_steps=1,
            logging_nan_inf_filter=False,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(
            model=Model(), args=arguments, train_dataset=Rows(), callbacks=[defined["SealCheckpoints"]()]
        )
        found = resume(str(folder))
        trainer.train(resume_from_checkpoint=found.path if found else None)
        return int(trainer.state.global_step)

    train(STEPS)
    return train(STEPS + EVERY)


if __name__ == "__main__":
    main()
