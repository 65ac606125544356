"""Lightning Fabric: a loop of one's own on several ranks."""

import kit
import torch
import torch_kit
from lightning_fabric import Fabric, seed_everything
from torch import nn


def train(run):
    torch_kit.connect(run)
    seed_everything(run.settings["seed"] % 2**31)
    fabric = Fabric(accelerator="cpu", devices=1)
    data = torch_kit.dataset(run)
    model = torch_kit.network(run)
    torch_kit.restore(run, model)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    loader = torch_kit.loader(run, data)
    batches = torch_kit.endless(loader)
    run.say("start")
    for number in range(1, run.steps + 1):
        features, labels = next(batches)
        loss = nn.functional.cross_entropy(model(features), labels)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        try:
            mean = run.step(number, torch_kit.average(run, loss.item()))
        except kit.StoppedEarly:
            break
        if number % 30 == 0 and run.rank == 0:
            run.save(f"fabric-{number:05d}.ckpt", torch_kit.state(model))
    run.finish(loss=mean)


if __name__ == "__main__":
    kit.main(train, "train_fabric.py")
