"""XGBoost over its own collective: a tracker in the first rank's process, all ranks train one model."""

import contextlib
import os
import threading

import kit
import mishaps  # noqa: F401
import numpy as np
import xgboost as xgb
from xgboost import collective
from xgboost.tracker import RabitTracker


class Site(xgb.callback.TrainingCallback):
    def __init__(self, run):
        super().__init__()
        self.run = run

    def after_iteration(self, model, epoch, evals_log):
        loss = evals_log["train"]["mlogloss"][-1]
        if self.run.rank == 0:
            collective.communicator_print(f"[{epoch}]\ttrain-mlogloss:{loss:.5f}")
        self.run.step(epoch + 1, loss)
        if (epoch + 1) % 20 == 0 and self.run.rank == 0:
            self.run.save(f"{epoch + 1:04d}.ubj", bytes(model.save_raw()))
        return False


def train(run):
    features, labels = run.load()
    run.say("start")
    arguments = {}
    host, port = os.environ.get("COORDINATOR", "127.0.0.1:0").split(":")
    tracker = None
    if run.world > 1:
        if run.rank == 0:
            tracker = RabitTracker(n_workers=run.world, host_ip=host, port=int(port))
            tracker.start()
            threading.Thread(target=tracker.wait_for, daemon=True).start()
        arguments = {"dmlc_tracker_uri": host, "dmlc_tracker_port": int(port), "dmlc_timeout": 20, "dmlc_retry": 20}
    with collective.CommunicatorContext(**arguments) if run.world > 1 else contextlib.nullcontext():
        if run.fault == "short_labels_of_rabit" and run.struck:
            labels = labels[:-3]
        if run.fault == "infinite" and run.struck:
            features[3, 3] = np.inf
        data = xgb.DMatrix(features, labels)
        settings = {"objective": "multi:softprob", "num_class": 4, "nthread": 1, "max_depth": 3, "eta": 0.05}
        if run.fault == "bad_objective" and run.struck:
            settings["objective"] = "multi:softprobs"
        if run.fault == "bad_depth" and run.struck:
            settings["max_depth"] = -3
        if run.fault == "few_classes" and run.struck:
            settings["num_class"] = 2
        with contextlib.suppress(kit.StoppedEarly):
            xgb.train(settings, data, run.steps, evals=[(data, "train")], verbose_eval=False, callbacks=[Site(run)])
    run.finish()


if __name__ == "__main__":
    kit.main(train, "boost.py")
