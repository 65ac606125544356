"""XGBoost: its own training loop, which calls back after each boosting round."""

import numpy as np
import xgboost as xgb
from support import distributed_job, guarded


class Callback(xgb.callback.TrainingCallback):
    def __init__(self, job):
        self.job = job

    def after_iteration(self, model, epoch, evals_log):
        job, step = self.job, epoch + 1
        stop = job.after_step(step, float(evals_log["train"]["mlogloss"][-1]))
        if step % job.settings["eval_every"] == 0:
            stop = job.after_eval(step, 1 - float(evals_log["valid"]["merror"][-1])) or stop
        if job.rank == 0 and step % job.settings["save_every"] == 0:
            path = f"{job.checkpoint_path(f'round_{step:04d}')}.ubj"
            model.save_model(path)
            job.saved(path)
        return stop


def main():
    job = distributed_job()
    job.start()
    features, labels = job.all_records()
    half = len(labels) // 2
    train = xgb.DMatrix(features[:half], labels[:half])
    valid = xgb.DMatrix(features[half:], labels[half:])
    parameters = {
        "objective": "multi:softprob",
        "num_class": len(job.settings["sources"]),
        "eta": job.settings["lr"],
        "max_depth": 3,
        "nthread": 1,
        "eval_metric": ["merror", "mlogloss"],
        **job.settings.get("booster", {}),
    }
    resume = job.settings.get("resume")
    previous = job.restore(lambda path: xgb.Booster(model_file=str(path)), resume) if resume else None
    booster = xgb.train(
        parameters,
        train,
        num_boost_round=job.settings["steps"],
        evals=[(train, "train"), (valid, "valid")],
        callbacks=[Callback(job)],
        verbose_eval=job.settings.get("log_every", 1),
        xgb_model=previous,
    )
    if not job.stopped:
        gain = booster.get_score(importance_type="gain")
        job.log.info("features by gain: %s", ", ".join(sorted(gain, key=gain.get, reverse=True)[:5]))
        job.finish()


if __name__ == "__main__":
    np.set_printoptions(precision=4)
    guarded(main)
