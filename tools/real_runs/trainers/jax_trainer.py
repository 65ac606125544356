"""A Flax network under JAX; several processes through jax.distributed."""

import faulthandler
import os
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import serialization
from flax.training.train_state import TrainState
from support import Job, fit

faulthandler.enable()


class Classifier(nn.Module):
    hidden: int
    classes: int

    @nn.compact
    def __call__(self, features):
        return nn.Dense(self.classes, name="head")(nn.tanh(nn.Dense(self.hidden, name="body")(features)))


@jax.jit
def train_step(state, scale, features, labels):
    def loss_of(params):
        scores = state.apply_fn(params, features * scale)
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


class FlaxModel:
    def __init__(self, settings, world):
        self.settings, self.world = settings, world
        model = Classifier(settings["hidden"], len(settings["sources"]))
        self.scale = jnp.ones(settings["features"])
        params = model.init(jax.random.PRNGKey(0), jnp.zeros((1, settings["features"])))
        self.state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(settings["lr"]))

    def step(self, features, labels):
        self.state, loss = train_step(self.state, self.scale, features, labels)
        if self.world > 1:
            from jax.experimental import multihost_utils

            loss = multihost_utils.process_allgather(loss).mean()
        return float(loss)

    def accuracy(self, features, labels):
        return float((self.state.apply_fn(self.state.params, features).argmax(axis=1) == labels).mean())

    def save(self, path):
        if self.settings.get("checkpointer") == "orbax":
            import orbax.checkpoint as ocp

            with ocp.StandardCheckpointer() as checkpointer:
                checkpointer.save(path.absolute(), self.state.params)
        else:
            Path(f"{path}.msgpack").write_bytes(serialization.to_bytes(self.state.params))

    def load(self, path):
        if self.settings.get("checkpointer") == "orbax":
            import orbax.checkpoint as ocp

            with ocp.StandardCheckpointer() as checkpointer:
                params = checkpointer.restore(path.absolute(), self.state.params)
        else:
            params = serialization.from_bytes(self.state.params, path.read_bytes())
        self.state = self.state.replace(params=params)


def main():
    rank, world = int(os.environ.get("PROCESS_ID", "0")), int(os.environ.get("NUM_PROCESSES", "1"))
    job = Job(rank, world)
    if world > 1:
        jax.distributed.initialize(
            os.environ["COORDINATOR"], world, rank, initialization_timeout=15, heartbeat_timeout_seconds=10
        )
    if job.settings.get("debug_nans"):
        jax.config.update("jax_debug_nans", True)
    if rank == 0:
        job.log.info("jax %s, devices: %s", jax.__version__, jax.devices())
    fit(job, FlaxModel(job.settings, world))


if __name__ == "__main__":
    np.set_printoptions(precision=4)
    main()
