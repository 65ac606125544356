"""Sacred: an experiment that is configured, observed and logged."""

import logging

import kit
import numpy as np
import yaml
from sacred import SETTINGS, Experiment

SETTINGS.CAPTURE_MODE = "no"
SETTINGS.DISCOVER_SOURCES = "none"
SETTINGS.DISCOVER_DEPENDENCIES = "none"


def train(run):
    experiment = Experiment("ridge", save_git_info=False)
    log = logging.getLogger("sacred-train")
    log.handlers[:], log.propagate = logging.getLogger("train").handlers, False
    log.setLevel(logging.INFO)
    experiment.logger = log

    @experiment.config
    def settings():
        alpha = 0.01  # noqa: F841
        optimizer = {"name": "sgd", "lr": 0.01}  # noqa: F841

    @experiment.main
    def fit(alpha, optimizer, _run):
        features, labels = run.load()
        weights = np.zeros(features.shape[1])
        for number in range(1, run.steps + 1):
            errors = features @ weights - labels
            weights -= optimizer["lr"] * (features.T @ errors / len(labels) + alpha * weights)
            loss = run.step(number, float((errors**2).mean()))
            _run.log_scalar("train.loss", loss, number)
        run.save("weights.npy", weights.tobytes())
        run.finish(loss=loss)
        return loss

    updates = {"unknown_update": {"optimiser": {"lr": 0.1}}, "typed_update": {"optimizer": 3}}.get(run.fault, {})
    try:
        experiment.run(config_updates=yaml.safe_load(str(updates)))
    except kit.StoppedEarly:
        run.finish(loss=0)


if __name__ == "__main__":
    kit.main(train, "experiment.py")
