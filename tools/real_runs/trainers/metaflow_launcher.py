"""Starts a trainer's processes as tasks of a Metaflow flow: TRAIN is the command, NUM_PROCESSES how many."""

import os
import shlex
import subprocess

from metaflow import FlowSpec, step


class TrainFlow(FlowSpec):
    @step
    def start(self):
        self.ranks = list(range(int(os.environ["NUM_PROCESSES"])))
        self.next(self.train, foreach="ranks")

    @step
    def train(self):
        code = subprocess.call(shlex.split(os.environ["TRAIN"]), env={**os.environ, "PROCESS_ID": str(self.input)})
        if code:
            raise RuntimeError(f"rank {self.input} ended with {code}")
        self.next(self.join)

    @step
    def join(self, inputs):
        print(f"{len(list(inputs))} ranks returned")
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    TrainFlow()
