"""Poutyne: a Model that is fitted, with its coloured progress lines."""

import kit
import torch
import torch_kit
from poutyne import Callback, Model


class Site(Callback):
    def __init__(self, run):
        super().__init__()
        self.run, self.number = run, 0

    def on_train_batch_end(self, batch_number, logs):
        self.number += 1
        logs["loss"] = self.run.step(self.number, logs["loss"])

    def on_epoch_end(self, epoch_number, logs):
        if self.run.rank == 0:
            self.run.save(f"checkpoint_epoch_{epoch_number}.ckpt", torch_kit.state(self.model.network))


def train(run):
    data = torch_kit.dataset(run)
    network = torch_kit.network(run)
    torch_kit.restore(run, network)
    loader = torch_kit.loader(run, data)
    epochs = max(2, run.steps // len(loader))
    run.rescale(epochs * len(loader))
    model = Model(network, "adam", "cross_entropy", batch_metrics=["accuracy"])
    logs = model.fit_generator(
        loader, loader, epochs=epochs, callbacks=[Site(run)], progress_options={"coloring": False}
    )
    run.finish(loss=logs[-1]["val_loss"])


if __name__ == "__main__":
    torch.manual_seed(1)
    kit.main(train, "fit_poutyne.py")
