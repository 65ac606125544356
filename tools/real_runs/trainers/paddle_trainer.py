"""A small network under Paddle; several processes through paddle.distributed.launch."""

import faulthandler
import os

import paddle
from paddle import nn
from support import Job, fit

faulthandler.enable()


class Network(nn.Layer):
    def __init__(self, settings):
        super().__init__()
        self.body = nn.Linear(settings["features"], settings["hidden"])
        self.head = nn.Linear(settings["hidden"], len(settings["sources"]))

    def forward(self, features):
        return self.head(paddle.tanh(self.body(features)))


class PaddleModel:
    def __init__(self, settings):
        paddle.seed(settings.get("seed", 1))
        self.network = Network(settings)
        self.optimizer = paddle.optimizer.SGD(settings["lr"], parameters=self.network.parameters())

    def step(self, features, labels):
        scores = self.network(paddle.to_tensor(features))
        loss = nn.functional.cross_entropy(scores, paddle.to_tensor(labels))
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        return float(loss)

    def accuracy(self, features, labels):
        scores = self.network(paddle.to_tensor(features))
        return float((scores.argmax(axis=1).numpy() == labels).mean())

    def save(self, path):
        paddle.save(self.network.state_dict(), f"{path}.pdparams")

    def load(self, path):
        self.network.set_state_dict(paddle.load(str(path)))


def main():
    paddle.set_device("cpu")
    job = Job(int(os.environ.get("PADDLE_TRAINER_ID", "0")), int(os.environ.get("PADDLE_TRAINERS_NUM", "1")))
    fit(job, PaddleModel(job.settings))


if __name__ == "__main__":
    main()
