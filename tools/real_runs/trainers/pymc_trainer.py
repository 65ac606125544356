"""PyMC: a hierarchical model of the records, sampled in chains."""

import logging
import pickle
import sys

import numpy as np
import pymc as pm
from support import distributed_job, guarded

TUNE = 60


def main():
    job = distributed_job()
    logger = logging.getLogger("pymc")
    logger.handlers[:] = [logging.StreamHandler(sys.stderr)]
    job.start()
    features, labels = job.all_records()
    resume = job.settings.get("resume")
    if resume:
        job.restore(load, resume)
    draws = job.settings["steps"] // 2
    with pm.Model(coords={"source": list(job.settings["sources"])}):
        level = pm.Normal("level", 0.0, 1.0, dims="source")
        scale = pm.HalfNormal("scale", 1.0)
        pm.Normal("x", level[labels], scale, observed=features.mean(axis=1))

        def after_draw(trace, draw):
            step = draw.chain * draws + draw.draw_idx - TUNE + 1 if not draw.tuning else 0
            if step < 1:
                return
            stop = job.after_step(step, float(draw.stats[0].get("energy", np.nan)))
            if step % job.settings["eval_every"] == 0:
                stop = job.after_eval(step, float(draw.stats[0].get("mean_tree_accept", 0.0))) or stop
            if job.rank == 0 and step % job.settings["save_every"] == 0:
                path = f"{job.checkpoint_path(f'draws_{step:04d}')}.pkl"
                with open(path, "wb") as file:
                    pickle.dump({"point": {name: np.asarray(value) for name, value in draw.point.items()}}, file)
                job.saved(path)
            if stop:
                raise KeyboardInterrupt

        pm.sample(
            draws,
            tune=TUNE,
            chains=2,
            cores=1,
            progressbar=False,
            random_seed=1,
            callback=after_draw,
            compute_convergence_checks=True,
        )
    if not job.stopped:
        job.finish()


def load(path):
    with open(path, "rb") as file:
        state = pickle.load(file)
    return state["point"]


if __name__ == "__main__":
    guarded(main)
