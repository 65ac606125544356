"""A two-layer network in numpy."""

import faulthandler
import pickle

import numpy as np
from support import Job, fit

faulthandler.enable()


class Network:
    """Sixteen features in, four classes out; ``reduce`` averages an array over the ranks."""

    def __init__(self, settings, reduce=lambda array: array):
        rng = np.random.default_rng(settings.get("seed", 1))
        self.settings, self.reduce = settings, reduce
        self.weights = [
            rng.normal(0, 0.3, (settings["features"], settings["hidden"])),
            rng.normal(0, 0.3, (settings["hidden"], len(settings["sources"]))),
        ]

    def forward(self, features):
        hidden = np.tanh(features @ self.weights[0])
        scores = hidden @ self.weights[1]
        scores = scores - scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        return hidden, chances / chances.sum(axis=1, keepdims=True)

    def step(self, features, labels):
        hidden, chances = self.forward(features)
        rows = np.arange(len(labels))
        loss = -np.log(chances[rows, labels] + 1e-9).mean()
        chances[rows, labels] -= 1
        chances /= len(labels)
        inner = (chances @ self.weights[1].T) * (1 - hidden**2)
        for weight, gradient in zip(self.weights, (features.T @ inner, hidden.T @ chances), strict=True):
            weight -= self.settings["lr"] * self.reduce(gradient)
        return float(loss)

    def accuracy(self, features, labels):
        return float((self.forward(features)[1].argmax(axis=1) == labels).mean())

    def save(self, path):
        with open(f"{path}.pkl", "wb") as file:
            pickle.dump({"weights": self.weights}, file)

    def load(self, path):
        with open(path, "rb") as file:
            state = pickle.load(file)
        for name, (own, stored) in enumerate(zip(self.weights, state["weights"], strict=True)):
            if own.shape != stored.shape:
                raise ValueError(
                    f"checkpoint does not fit: weight {name} is {stored.shape}, the model's is {own.shape}"
                )
        self.weights = state["weights"]


if __name__ == "__main__":
    job = Job()
    fit(job, Network(job.settings))
