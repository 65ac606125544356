"""REINFORCE on a Gymnasium environment in one file, as in CleanRL."""

import gymnasium as gym
import kit
import numpy as np
import torch
import torch_kit


class Guess(gym.Env):
    """The action must name the largest of the first four observations."""

    observation_space = gym.spaces.Box(-9, 9, (16,))
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = self.np_random.normal(size=16).astype(np.float32)
        return self.seen, {}

    def step(self, action):
        reward = float(action == int(self.seen[:4].argmax()))
        self.seen = self.np_random.normal(size=16).astype(np.float32)
        return self.seen, reward, False, False, {}


def train(run):
    run.load()
    gym.register("Guess-v1", entry_point=Guess, max_episode_steps=12)
    name = "Guess-v2" if run.fault == "no_environment" and run.struck else "Guess-v1"
    environment = gym.make(name)
    agent = torch_kit.network(run)
    optimizer = torch.optim.Adam(agent.parameters(), lr=5e-3)
    torch_kit.restore(run, agent)
    observation, _ = environment.reset(seed=run.settings["seed"])
    total = 0
    for number in range(1, run.steps + 1):
        terms, returns, done = [], 0.0, False
        observation, _ = environment.reset()
        while not done:
            choice = torch.distributions.Categorical(logits=agent(torch.from_numpy(observation)))
            action = choice.sample()
            if run.fault == "bad_action" and run.struck and number == run.strike:
                action = torch.tensor([1, 2])
            observation, reward, ended, cut, _ = environment.step(int(action))
            terms.append(-choice.log_prob(action) * (reward - 0.25))
            returns, total, done = returns + reward, total + 1, ended or cut
        loss = torch.stack(terms).mean()
        if run.fault == "nan_policy" and run.struck and number >= run.strike:
            loss = loss * float("nan")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"global_step={total}, episodic_return={returns}")
        if number % 10 == 0:
            print("SPS:", 900 + number)
        try:
            run.step(number, loss.item())
        except kit.StoppedEarly:
            break
        if number % 20 == 0:
            run.save(f"agent_{total}.cleanrl_model", torch_kit.state(agent))
    environment.close()
    run.finish(total=total, returns=returns)


if __name__ == "__main__":
    kit.main(train, "reinforce.py")
