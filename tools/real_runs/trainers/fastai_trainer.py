"""fastai: a Learner and its table of epochs."""

import fastai.callback.schedule  # noqa: F401  adds fit_one_cycle
import kit
import torch
import torch_kit
from fastai.callback.core import Callback, CancelFitException
from fastai.callback.progress import ProgressCallback
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from torch import nn


class Site(Callback):
    def __init__(self, run):
        super().__init__()
        self.site, self.number = run, 0

    def after_batch(self):
        if self.training:
            self.number += 1
            try:
                self.site.step(self.number, self.loss.item())
            except kit.StoppedEarly:
                raise CancelFitException from None

    def after_epoch(self):
        if self.site.rank == 0:
            self.site.save(f"models/epoch_{self.epoch}.pth", torch_kit.state(self.model))


def train(run):
    data = torch_kit.dataset(run)
    model = torch_kit.network(run)
    torch_kit.restore(run, model)
    loader = torch_kit.loader(run, data)
    epochs = max(2, run.steps // len(loader))
    run.rescale(epochs * len(loader))
    learner = Learner(DataLoaders(loader, loader), model, loss_func=nn.CrossEntropyLoss(), cbs=[Site(run)])
    learner.remove_cbs([callback for callback in learner.cbs if isinstance(callback, ProgressCallback)])
    learner.fit_one_cycle(epochs, 1e-2)
    run.finish(epochs=epochs)


if __name__ == "__main__":
    torch.manual_seed(1)
    kit.main(train, "finetune.py")
