"""LightGBM, which calls back after each boosting round and prints its own lines."""

import lightgbm as lgb
from support import distributed_job, guarded


def main():
    job = distributed_job()
    job.start()
    features, labels = job.all_records()
    half = len(labels) // 2
    train = lgb.Dataset(features[:half], labels[:half])
    valid = lgb.Dataset(features[half:], labels[half:], reference=train)

    def after_round(env):
        step = env.iteration + 1
        figures = {(data, metric): value for data, metric, value, *_ in env.evaluation_result_list}
        error = next(value for (data, metric), value in figures.items() if (data, metric[-5:]) == ("valid", "error"))
        stop = job.after_step(step, float(figures["training", "multi_logloss"]))
        if step % job.settings["eval_every"] == 0:
            stop = job.after_eval(step, 1 - float(error)) or stop
        if job.rank == 0 and step % job.settings["save_every"] == 0:
            path = f"{job.checkpoint_path(f'model_{step:04d}')}.txt"
            env.model.save_model(path)
            job.saved(path)
        if stop:
            raise lgb.callback.EarlyStopException(env.iteration, env.evaluation_result_list)

    parameters = {
        "objective": "multiclass",
        "num_class": len(job.settings["sources"]),
        "metric": ["multi_logloss", "multi_error"],
        "learning_rate": job.settings["lr"],
        "num_leaves": 7,
        "min_data_in_leaf": 5,
        "num_threads": 1,
        "verbosity": 1,
        **job.settings.get("booster", {}),
    }
    resume = job.settings.get("resume")
    previous = job.restore(lambda path: lgb.Booster(model_file=str(path)), resume) if resume else None
    lgb.train(
        parameters,
        train,
        num_boost_round=job.settings["steps"],
        valid_sets=[train, valid],
        valid_names=["training", "valid"],
        callbacks=[lgb.log_evaluation(job.settings.get("log_every", 1)), after_round],
        init_model=previous,
    )
    if not job.stopped:
        job.finish()


if __name__ == "__main__":
    guarded(main)
