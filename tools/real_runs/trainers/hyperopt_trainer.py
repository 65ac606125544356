"""hyperopt: trials of a small model, with its own log and a bar."""

import kit
import mishaps  # noqa: F401
import numpy as np
from hyperopt import STATUS_OK, Trials, fmin, hp, tpe


def train(run):
    features, labels = run.load()
    run.say("start")
    run.rescale(max(12, run.steps // 3))
    state = {"number": 0}

    def objective(space):
        state["number"] += 1
        if run.fault == "no_loss" and run.struck and state["number"] == run.strike:
            return {"status": STATUS_OK}
        weights = np.random.default_rng(state["number"]).normal(size=16) * space["scale"]
        loss = float(np.mean((features @ weights - labels) ** 2) + space["ridge"])
        loss = run.step(state["number"], loss)
        if state["number"] % 10 == 0 and run.rank == 0:
            run.save(f"trials_{state['number']}.npy", weights.tobytes())
        return {"loss": loss, "status": STATUS_OK}

    space = {"scale": hp.loguniform("scale", -5, 0), "ridge": hp.uniform("ridge", 0, 1)}
    if run.fault == "twice_a_label" and run.struck:
        space["ridge"] = hp.uniform("scale", 0, 1)
    trials = Trials()
    try:
        best = fmin(
            objective, space, algo=tpe.suggest, max_evals=run.steps, trials=trials, rstate=np.random.default_rng(1)
        )
    except kit.StoppedEarly:
        best = trials.argmin
    run.finish(best=best)


if __name__ == "__main__":
    kit.main(train, "search.py")
