"""Stable-Baselines3: PPO on an environment whose observations are the records."""

import gymnasium
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_checker import check_env
from support import distributed_job, guarded


class Guess(gymnasium.Env):
    """One step a record: the reward is 1 for the right class."""

    def __init__(self, job, features, labels):
        self.features, self.labels, self.at = features, labels, 0
        self.observation_space = gymnasium.spaces.Box(-10, 10, (job.settings["features"],), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(job.settings["sources"]))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.features[self.at % len(self.features)], {}

    def step(self, action):
        reward = float(action == self.labels[self.at % len(self.labels)])
        self.at += 1
        return self.features[self.at % len(self.features)], reward, self.at % 16 == 0, False, {}


class Report(BaseCallback):
    def __init__(self, job):
        super().__init__()
        self.job, self.number = job, 0

    def _on_step(self):
        if self.n_calls % 16:
            return True
        self.number += 1
        job, reward = self.job, float(self.locals["rewards"].mean())
        loss = self.logger.name_to_value.get("train/loss", 0.5)
        stop = job.after_step(self.number, loss if np.isfinite(self.locals["new_obs"]).all() else float("nan"))
        if self.number % job.settings["eval_every"] == 0:
            stop = job.after_eval(self.number, reward) or stop
        if job.rank == 0 and self.number % job.settings["save_every"] == 0:
            path = f"{job.checkpoint_path(f'ppo_{self.num_timesteps}_steps')}.zip"
            self.model.save(path)
            job.saved(path)
        return not stop


def main():
    job = distributed_job()
    job.start()
    features, labels = job.all_records()
    env = Guess(job, features, labels)
    check_env(env)
    resume = job.settings.get("resume")
    model = job.restore(lambda path: PPO.load(path, env=env), resume) if resume else None
    if model is None:
        model = PPO(
            "MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=2, verbose=1, learning_rate=job.settings["lr"] / 50
        )
    model.learn(16 * job.settings["steps"], callback=Report(job), log_interval=2)
    if not job.stopped:
        job.finish()


if __name__ == "__main__":
    guarded(main)
