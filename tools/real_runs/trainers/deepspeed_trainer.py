"""A small network under DeepSpeed, started by its launcher."""

import faulthandler
import os
from pathlib import Path

import deepspeed
import torch
from support import Job, fit
from torch_parts import Network

torch.set_num_threads(1)
faulthandler.enable()


class EngineModel:
    def __init__(self, settings, world):
        config = {
            "train_batch_size": settings["batch_size"] * world,
            "train_micro_batch_size_per_gpu": settings["batch_size"],
            "optimizer": {"type": "SGD", "params": {"lr": settings["lr"]}},
            "zero_optimization": {"stage": 0},
            "steps_per_print": 4,
        }
        self.settings = settings
        network = Network(settings)
        self.engine, *_ = deepspeed.initialize(model=network, model_parameters=network.parameters(), config=config)

    def step(self, features, labels):
        loss = self.engine(torch.from_numpy(features), torch.from_numpy(labels))["loss"]
        self.engine.backward(loss)
        self.engine.step()
        return float(loss.detach())

    def accuracy(self, features, labels):
        with torch.no_grad():
            scores = self.engine.module(torch.from_numpy(features))["logits"]
        return float((scores.argmax(dim=-1).numpy() == labels).mean())

    def save(self, path):
        torch.save(self.engine.module.state_dict(), f"{path}.pt")

    def load(self, path):
        self.engine.module.load_state_dict(torch.load(Path(path)))


def main():
    job = Job(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
    fit(job, EngineModel(job.settings, job.world))


if __name__ == "__main__":
    main()
