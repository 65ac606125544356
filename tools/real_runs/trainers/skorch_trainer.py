"""skorch: a table of the epochs."""

import kit
import numpy as np
import torch
import torch_kit
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, EpochScoring


class Site(Callback):
    """What the site does after each batch and each epoch."""

    def __init__(self, run):
        self.run, self.number = run, 0

    def on_batch_end(self, net, batch=None, training=None, **kwargs):
        if training:
            self.number += 1
            loss = self.run.step(self.number, kwargs["loss"].item())
            net.history.record_batch("train_loss", loss)

    def on_epoch_end(self, net, **kwargs):
        if self.run.rank == 0:
            self.run.save(f"epoch_{len(net.history):04d}.pt", torch_kit.state(net.module_))


def train(run):
    features, labels = run.load()
    run.say("start")
    epochs = max(2, run.steps // 10)
    run.rescale(epochs * 9)
    scores = [("top1", EpochScoring("accuracy", lower_is_better=False, name="valid_top1"))]
    net = NeuralNetClassifier(
        torch_kit.network(run),
        max_epochs=epochs,
        lr=0.05,
        batch_size=8,
        callbacks=[*scores, ("site", Site(run))],
    )
    net.initialize()
    torch_kit.restore(run, net.module_)
    net.fit(features, labels.astype(np.int64))
    run.finish(loss=net.history[-1, "train_loss"], epochs=epochs)


if __name__ == "__main__":
    torch.manual_seed(1)
    kit.main(train, "fit.py")
