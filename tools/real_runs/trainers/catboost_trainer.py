"""CatBoost, which prints a line for each tree."""

import catboost
import kit


class Site:
    def __init__(self, run):
        self.run = run

    def after_iteration(self, info):
        try:
            self.run.step(info.iteration, info.metrics["learn"]["MultiClass"][-1])
        except kit.StoppedEarly:
            return False
        return True


def train(run):
    features, labels = run.load()
    run.say("start")
    fault = run.fault if run.struck else ""
    if fault == "one_class":
        labels = labels * 0
    if fault == "short_labels":
        labels = labels[:-3]
    if fault == "text_column":
        features = features.astype(object)
        features[5, 3] = "high"
    options = {"depth": 40 if fault == "deep" else 4}
    if fault == "unknown_loss":
        options["loss_function"] = "MultiClas"
    if fault == "exclusive":
        options |= {"max_depth": 4, "depth": 5}
    model = catboost.CatBoostClassifier(
        **{"loss_function": "MultiClass", **options},
        iterations=run.steps,
        learning_rate=0.1,
        thread_count=1,
        train_dir="catboost_info",
        metric_period=run.settings.get("log_every", 1),
    )
    resume = None
    if fault == "cut_booster":
        with open("ckpt_last.cbm", "wb") as file:
            file.write(b"CBM1" + b"\x00" * 20)
        resume = "ckpt_last.cbm"
    if fault == "no_booster":
        resume = "ckpt/model_0400.cbm"
    model.fit(features, labels, callbacks=[Site(run)], init_model=resume)
    if run.rank == 0:
        model.save_model("model.cbm")
        with open("model.cbm", "rb") as file:
            run.save("model.cbm", file.read())
    run.finish(loss=model.best_score_["learn"]["MultiClass"])


if __name__ == "__main__":
    kit.main(train, "boost.py")
