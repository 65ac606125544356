"""The numpy network on several workers of Ray: through Ray Train, or as plain actors where the settings say so."""

import os
import sys
from pathlib import Path

import ray
import ray.train
import yaml
from plain_trainer import Network
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from support import Job, fit, read_arguments


def train(rank, world, arguments, folder):
    """One worker, in the folder and with the arguments of the driver."""
    os.chdir(folder)
    sys.argv[1:] = arguments
    job = Job(rank, world)
    fit(job, Network(job.settings))
    return job.last


def train_loop(config):
    context = ray.train.get_context()
    loss = train(context.get_world_rank(), context.get_world_size(), config["arguments"], config["folder"])
    ray.train.report({"loss": loss})


@ray.remote(num_cpus=1)
class Worker:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def train(self, arguments, folder):
        return train(self.rank, self.world, arguments, folder)


def main():
    world = int(os.environ.get("NUM_WORKERS", "2"))
    arguments, folder = sys.argv[1:], str(Path.cwd())
    with open(read_arguments().config) as file:
        settings = yaml.safe_load(file)
    ray.init(num_cpus=world + 1, include_dashboard=False, object_store_memory=80 << 20)
    if settings.get("actors"):
        workers = [Worker.remote(rank, world) for rank in range(world)]
        losses = ray.get([worker.train.remote(arguments, folder) for worker in workers])
        print("losses of the workers:", ", ".join(f"{loss:.4f}" for loss in losses))
    else:
        trainer = DataParallelTrainer(
            train_loop,
            train_loop_config={"arguments": arguments, "folder": folder},
            scaling_config=ScalingConfig(num_workers=world),
            run_config=RunConfig(name="train", storage_path=f"{folder}/results"),
        )
        print("result:", trainer.fit().metrics)


if __name__ == "__main__":
    main()
