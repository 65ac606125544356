"""An image classifier in the manner of timm's train.py: meters, several ranks."""

import time

import kit
import torch
import torch_kit
from torch import nn


class AverageMeter:
    def __init__(self):
        self.val = self.avg = self.sum = self.count = 0.0

    def update(self, value, n=1):
        self.val, self.sum, self.count = value, self.sum + value * n, self.count + n
        self.avg = self.sum / self.count


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, images):
        return self.head(self.stem(images).relu().mean((2, 3)))


def train(run):
    torch_kit.connect(run)
    data = torch_kit.dataset(run)
    model = Tiny()
    run.weights = model.head.weight.data
    torch_kit.restore(run, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    loader = torch_kit.loader(run, data)
    count = sum(parameter.numel() for parameter in model.parameters())
    run.log.info("Model tiny_convnet created, param count:%d", count)
    epochs = max(2, run.steps // len(loader))
    run.rescale(epochs * len(loader))
    number, best = 0, 0.0
    for epoch in range(epochs):
        losses, timer, began = AverageMeter(), AverageMeter(), time.monotonic()
        for index, (features, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(features.view(-1, 1, 4, 4)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            number += 1
            try:
                mean = run.step(number, torch_kit.average(run, loss.item()))
            except kit.StoppedEarly:
                return run.finish(best=best)
            losses.update(mean, len(labels))
            timer.update(time.monotonic() - began)
            began = time.monotonic()
            if run.rank == 0 and index % 3 == 0:
                run.log.info(
                    f"Train: {epoch} [{index:>4d}/{len(loader)} ({100 * index / len(loader):>3.0f}%)]  "
                    f"Loss: {mean:#.3g} ({losses.avg:#.3g})  Time: {timer.val:.3f}s, {8 / timer.avg:>7.2f}/s  "
                    "LR: 2.000e-01"
                )
        with torch.no_grad():
            features, labels = data.tensors
            top = float(model(features.view(-1, 1, 4, 4)).argmax(1).eq(labels).float().mean()) * 100
        best = max(best, top)
        if run.rank == 0:
            run.log.info(f"Test: {epoch}  Acc@1: {top:>7.3f}  Best: {best:>7.3f}")
            run.save(f"checkpoint-{epoch}.pth.tar", torch_kit.state(model))
    return run.finish(best=best)


if __name__ == "__main__":
    kit.main(train, "train.py")
