"""pytorch-tabnet: its own table of epochs."""

import contextlib

import kit
import mishaps  # noqa: F401
import numpy as np
import torch
import torch_kit  # noqa: F401
from pytorch_tabnet.callbacks import Callback
from pytorch_tabnet.tab_model import TabNetClassifier


class Site(Callback):
    """What the site does after each epoch."""

    def __init__(self, run):
        super().__init__()
        self.run = run

    def on_epoch_end(self, epoch, logs=None):
        self.run.step(epoch + 1, float(self.trainer.history["loss"][-1]))
        if (epoch + 1) % 10 == 0 and self.run.rank == 0:
            self.run.save(f"tabnet_{epoch + 1}.zip", b"PK" + b"0" * 4096)


def train(run):
    torch.set_num_threads(1)
    features, labels = run.load()
    run.say("start")
    epochs = max(12, run.steps // 4)
    run.rescale(epochs)
    if run.fault == "nan_features" and run.struck:
        features[3, 3] = np.nan
    if run.fault == "flat_features" and run.struck:
        features = features[:, 0]
    model = TabNetClassifier(n_d=4, n_a=4, n_steps=2, seed=1, verbose=1)
    valid = labels[:24] + (5 if run.fault == "new_classes" and run.struck else 0)
    with contextlib.suppress(kit.StoppedEarly):
        model.fit(
            features, labels, eval_set=[(features[:24], valid)], eval_name=["valid"], eval_metric=["accuracy"],
            max_epochs=epochs, patience=0, batch_size=32, virtual_batch_size=16, callbacks=[Site(run)],
        )  # fmt: skip
    run.finish(epochs=epochs)


if __name__ == "__main__":
    kit.main(train, "fit_tabnet.py")
