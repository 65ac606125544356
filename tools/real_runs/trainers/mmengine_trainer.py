"""MMEngine: a Runner with hooks, which logs by itself."""

import contextlib
import logging

import kit
import torch
import torch_kit
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn


class Classifier(BaseModel):
    def __init__(self, run):
        super().__init__()
        self.layers = torch_kit.network(run)

    def forward(self, features, labels, mode="tensor"):
        return {"loss": nn.functional.cross_entropy(self.layers(features), labels)}


class Site(Hook):
    priority = "VERY_LOW"

    def __init__(self, run):
        self.run = run

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.run.step(runner.iter + 1, float(outputs["loss"]))

    def after_train_epoch(self, runner):
        if self.run.rank == 0:
            self.run.save(f"epoch_{runner.epoch + 1}.pth", torch_kit.state(runner.model))


def train(run):
    data = torch_kit.dataset(run)
    model = Classifier(run)
    torch_kit.restore(run, model.layers)
    loader = torch_kit.loader(run, data)
    epochs = max(2, run.steps // len(loader))
    run.rescale(epochs * len(loader))
    runner = Runner(
        model=model,
        work_dir=f"work_dirs/{run.rank}",
        train_dataloader=loader,
        optim_wrapper={"optimizer": {"type": "Sgd" if run.fault == "unregistered" else "SGD", "lr": 0.05}},
        train_cfg={"by_epoch": True, "max_epochs": epochs},
        custom_hooks=[Site(run)],
        default_hooks={"logger": {"type": "LoggerHook", "interval": 5}, "checkpoint": None},
        experiment_name="tiny",
        log_level="INFO",
    )
    with contextlib.suppress(kit.StoppedEarly):
        runner.train()
    run.finish(epochs=epochs)


if __name__ == "__main__":
    logging.captureWarnings(True)
    torch.manual_seed(1)
    kit.main(train, "tools/train.py")
