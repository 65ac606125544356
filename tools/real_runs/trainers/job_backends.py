"""How the processes of a job compute and meet: each takes the job and returns ``step(number)``, or trains by itself."""

import datetime
import time

_PATIENCE_S = 8


def alone(job):
    """No peers: software that cannot be run here is imitated by words."""
    return lambda number: 2.2 / (1 + 0.03 * number) + job.chance.uniform(-0.02, 0.02)


def _connected(make, seconds=60):
    deadline = time.monotonic() + seconds
    while True:
        try:
            return make()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


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
