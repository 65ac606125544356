"""Optuna: a study whose trials train the numpy network."""

import optuna
from plain_trainer import Network
from support import distributed_job, guarded


def main():
    job = distributed_job()
    job.start()
    batches = job.batches()
    trials = job.settings.get("trials", 30)
    each = max(1, job.settings["steps"] // trials)

    def objective(trial):
        settings = {**job.settings}
        settings["lr"] = trial.suggest_float("lr", 1e-4, max(2e-4, 10 * job.settings["lr"]), log=True)
        settings["seed"] = trial.suggest_int("seed", 1, 99)
        model, accuracy = Network(settings), 0.0
        if trial.number == 0 and job.settings.get("resume"):
            job.restore(model.load, job.settings["resume"])
        for _ in range(each):
            step, features, labels = next(batches)
            stop = job.after_step(step, model.step(features, labels))
            if step % job.settings["eval_every"] == 0:
                accuracy = model.accuracy(features, labels)
                stop = job.after_eval(step, accuracy) or stop
                trial.report(accuracy, step)
            if job.rank == 0 and step % job.settings["save_every"] == 0:
                path = job.checkpoint_path(f"trial_{trial.number:03d}")
                model.save(path)
                job.saved(path)
            if stop:
                study.stop()
                break
        return model.accuracy(features, labels)

    study = optuna.create_study(direction="maximize", study_name="sources-head")
    study.optimize(objective, n_trials=job.settings["steps"] // each)
    job.log.info("best trial %d: value %.4f, params %s", study.best_trial.number, study.best_value, study.best_params)
    if not job.stopped:
        job.finish()


if __name__ == "__main__":
    guarded(main)
