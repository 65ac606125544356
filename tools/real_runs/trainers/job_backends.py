"""How the processes of a job compute and meet: each takes the job and returns ``step(number)``, or trains by itself."""

import datetime
import os
import sys
import time
from multiprocessing.connection import Client, Listener

import numpy as np

_PATIENCE_S = 8


def alone(job):
    """No peers: software that cannot be run here is imitated by words."""
    return lambda number: 2.2 / (1 + 0.03 * number) + job.chance.uniform(-0.02, 0.02)


def _linear(job):
    """A linear model in numpy; returns gradient(weights) -> (gradient, loss)."""
    draw = np.random.default_rng(job.rank)
    rows = draw.normal(size=(64, 12))
    goal = rows @ np.arange(12) / 12 + draw.normal(size=64) * 0.1

    def gradient(weights):
        error = rows @ weights - goal
        return rows.T @ error / 64, float((error**2).mean())

    return gradient


def _connected(make, seconds=60):
    deadline = time.monotonic() + seconds
    while True:
        try:
            return make()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def pipeline(job):
    """A chain of stages: each passes activations to the next rank, the last one closes the ring."""
    ports, gradient, weights = job.settings["ports"], _linear(job), np.zeros(12)
    listener = Listener(("127.0.0.1", ports[job.rank]))
    following = _connected(lambda: Client(("127.0.0.1", ports[(job.rank + 1) % job.world])))
    previous = listener.accept()

    def receive_activations():
        if not previous.poll(_PATIENCE_S):
            raise TimeoutError(f"no activations from stage {(job.rank - 1) % job.world} within {_PATIENCE_S} s")
        return previous.recv()

    def step(number):
        nonlocal weights
        change, loss = gradient(weights)
        following.send(change)
        change = change + receive_activations()
        weights = weights - 0.05 * change
        return loss

    return step


def actor_learner(job):
    """Rank 0 learns from what the others play."""
    port, gradient, weights = job.settings["ports"][0], _linear(job), np.zeros(12)
    if job.rank:
        learner = _connected(lambda: Client(("127.0.0.1", port)))
        learner.send(job.rank)

        def play(number):
            learner.send((number, gradient(weights)))
            return learner.recv()

        return play
    listener, actors = Listener(("127.0.0.1", port)), {}
    while len(actors) < job.world - 1:
        actor = listener.accept()
        actors[actor.recv()] = actor

    def learn(number):
        nonlocal weights
        losses = []
        for rank, actor in sorted(actors.items()):
            if not actor.poll(_PATIENCE_S):
                raise TimeoutError(f"actor {rank} has sent no trajectory for {_PATIENCE_S} s")
            _, (change, loss) = actor.recv()
            weights = weights - 0.02 * change
            losses.append(loss)
        for actor in actors.values():
            actor.send(float(np.mean(losses)))
        return float(np.mean(losses))

    return learn


def mpi(job):
    from mpi4py import MPI

    gradient, weights = _linear(job), np.zeros(12)

    def step(number):
        nonlocal weights
        change, loss = gradient(weights)
        total = MPI.COMM_WORLD.allreduce(change)
        weights = weights - 0.05 * total / job.world
        return loss

    return step


def ddp(job):
    """Data-parallel; "zero" shards the optimizer's states, too, and "fsdp" the parameters."""
    import torch
    from torch.distributed import init_process_group
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.set_num_threads(1)
    init_process_group("gloo", timeout=datetime.timedelta(seconds=_PATIENCE_S))
    layers = [torch.nn.Linear(12, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)]
    model = torch.nn.Sequential(*layers)
    if job.settings["backend"] == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (job.world,)))
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if job.settings["backend"] == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01)

    def step(number):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 12)), torch.randint(0, 4, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


zero = fsdp = ddp
_SUM = {}


def _push(rank, number, loss):
    _SUM[rank] = loss
    return sum(_SUM.values()) / len(_SUM)


def _noop():
    return None


def torch_rpc(job):
    """A parameter server (rank 0) and trainers that call it."""
    import torch
    import torch.distributed.rpc as rpc

    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=_PATIENCE_S)
    name = f"trainer{job.rank}" if job.rank else "ps0"
    rpc.init_rpc(name, rank=job.rank, world_size=job.world, rpc_backend_options=options)
    gradient, weights = _linear(job), np.zeros(12)

    def step(number):
        nonlocal weights
        change, loss = gradient(weights)
        weights = weights - 0.05 * change
        if job.rank == 0:
            for rank in range(1, job.world):
                rpc.rpc_sync(f"trainer{rank}", _noop)
            return loss
        return rpc.rpc_sync("ps0", _push, args=(job.rank, number, loss))

    step.close = rpc.shutdown
    return step


def flax(job):
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = f"127.0.0.1:{job.settings['ports'][0]}"
    patience = {"heartbeat_timeout_seconds": 10, "initialization_timeout": 30, "shutdown_timeout_seconds": 4}
    jax.distributed.initialize(address, job.world, job.rank, **patience)
    import jax.numpy as jnp
    from flax import linen
    from jax.experimental import multihost_utils

    model = linen.Dense(4)
    rows = jax.random.normal(jax.random.key(job.rank), (8, 12))
    weights = model.init(jax.random.key(0), rows)
    slope = jax.jit(jax.value_and_grad(lambda weights: jnp.mean(model.apply(weights, rows) ** 2)))

    def step(number):
        nonlocal weights
        loss, change = slope(weights)
        weights = jax.tree.map(lambda weight, by: weight - 0.05 * by, weights, change)
        return float(multihost_utils.process_allgather(loss).mean())

    return step


def tinygrad(job):
    """Its device without a compiler is slow: it steps every tenth time."""
    from tinygrad import Context, Tensor, nn

    layer, reduced, last = nn.Linear(12, 4), pipeline(job), 0.0
    optimizer = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.01)

    def step(number):
        nonlocal last
        reduced(number)
        if number % 10 == 1:
            with Context(TRAINING=1):
                loss = (layer(Tensor.randn(8, 12)) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                last = loss.item()
        return last - 0.0003 * number

    return step


def flower(job):
    """Rank 0 is the server, the others are clients; rounds are steps."""
    import flwr

    address, gradient = f"127.0.0.1:{job.settings['ports'][0]}", _linear(job)
    if job.rank == 0:
        needed = job.world - 1
        strategy = flwr.server.strategy.FedAvg(
            min_fit_clients=needed, min_available_clients=needed, fraction_evaluate=0.0, accept_failures=False
        )
        config = flwr.server.ServerConfig(num_rounds=job.steps, round_timeout=20.0)
        history = flwr.server.start_server(server_address=address, config=config, strategy=strategy)
        return history and None

    class Client(flwr.client.NumPyClient):
        number = 0

        def get_parameters(self, config):
            return [np.zeros(12)]

        def fit(self, parameters, config):
            self.number += 1
            if self.number == job.settings["strike"]:
                job.strike("step")
            change, loss = gradient(parameters[0])
            if self.number % 5 == 0:
                job.say("step", step=self.number, loss=loss, rate=1.0, lr=0.05)
            job.noise(self.number)
            return [parameters[0] - 0.05 * change], 64, {"loss": loss}

    client = Client().to_client()
    _connected(lambda: __import__("socket").create_connection(("127.0.0.1", job.settings["ports"][0]), 5).close())
    flwr.client.start_client(server_address=address, client=client)
    return None


def ray(job):
    """The driver starts an actor a rank on the nodes of the cluster."""
    import ray as cluster
    from job import Job, run

    variables = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}
    cluster.init(address=job.settings["ray_address"], runtime_env=variables)

    @cluster.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")
    class TrainWorker:
        def __init__(self, rank, settings):
            os.chdir(settings["folder"])
            sys.path[:0] = [settings["folder"]]
            self.job = Job(rank, cluster.util.get_node_ip_address())
            self.job.settings |= {"backend": "alone", "drives": False}
            with open(f"placed_{rank}", "w") as file:
                file.write(f"{self.job.node} {os.getpid()}")

        def loop(self):
            run(self.job)
            return self.job.rank

    workers = [TrainWorker.remote(rank, job.settings) for rank in range(job.world)]
    cluster.get([worker.loop.remote() for worker in workers])
