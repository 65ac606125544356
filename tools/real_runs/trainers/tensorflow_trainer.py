"""A small network in plain TensorFlow: a loop of its own around a traced step; several processes by tf.distribute."""

import faulthandler
import json
import os

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf
from support import Job, fit

faulthandler.enable()


class Network(tf.Module):
    """Variables and the traced step; ``strategy`` runs it on every worker and averages the gradients."""

    def __init__(self, settings, strategy):
        super().__init__()
        self.strategy, self.lr = strategy, settings["lr"]
        initial = tf.random.Generator.from_seed(settings.get("seed", 1))
        widths = (settings["features"], settings["hidden"], len(settings["sources"]))
        with strategy.scope():
            self.body = tf.Variable(initial.normal(widths[:2], 0.0, 0.3), name="body")
            self.head = tf.Variable(initial.normal(widths[1:], 0.0, 0.3), name="head")
        self.checkpoint = tf.train.Checkpoint(body=self.body, head=self.head)

    def scores(self, features):
        return tf.matmul(tf.tanh(tf.matmul(features, self.body)), self.head)

    @tf.function
    def train_step(self, features, labels):
        return self.strategy.run(self.one_worker, args=(features, labels))

    def one_worker(self, features, labels):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self.scores(features))
            loss = tf.reduce_mean(losses)
        variables = [self.body, self.head]
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, tape.gradient(loss, variables))
        for variable, gradient in zip(variables, gradients, strict=True):
            context.merge_call(self.update, args=(variable, gradient))
        return loss

    def update(self, strategy, variable, gradient):
        strategy.extended.update(variable, lambda own, by: own.assign_sub(self.lr * by), args=(gradient,))

    def step(self, features, labels):
        loss = self.train_step(tf.constant(features), tf.constant(labels))
        return float(self.strategy.experimental_local_results(loss)[0])

    def accuracy(self, features, labels):
        return float((tf.argmax(self.scores(tf.constant(features)), axis=1).numpy() == labels).mean())

    def save(self, path):
        self.checkpoint.write(str(path / "ckpt"))

    def load(self, path):
        self.checkpoint.read(str(path / "ckpt")).assert_existing_objects_matched()


def main():
    rank, world = int(os.environ.get("PROCESS_ID", "0")), int(os.environ.get("NUM_PROCESSES", "1"))
    job = Job(rank, world)
    if world > 1:
        task = {"cluster": {"worker": os.environ["WORKERS"].split(",")}, "task": {"type": "worker", "index": rank}}
        os.environ["TF_CONFIG"] = json.dumps(task)
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    tf.random.set_seed(job.settings.get("seed", 1))
    fit(job, Network(job.settings, strategy))


if __name__ == "__main__":
    main()
