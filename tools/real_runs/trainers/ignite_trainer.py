"""PyTorch Ignite: an engine with handlers, which logs by itself."""

import logging

import kit
import torch
import torch_kit
from ignite.engine import Engine, Events
from torch import nn


def train(run):
    torch_kit.connect(run)
    data = torch_kit.dataset(run)
    model = torch_kit.network(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch_kit.restore(run, model)
    run.say("start")

    def update(engine, batch):
        features, labels = batch
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return run.step(engine.state.iteration, torch_kit.average(run, loss.item()))

    trainer, evaluator = (
        Engine(update),
        Engine(lambda engine, batch: model(batch[0]).argmax(1).eq(batch[1]).float().mean()),
    )
    for engine in (trainer, evaluator):
        engine.logger.handlers[:] = logging.getLogger("train").handlers or run.log.handlers
        engine.logger.setLevel(logging.INFO)
        engine.logger.propagate = False
    loader = torch_kit.loader(run, data)

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(engine):
        evaluator.run(torch_kit.loader(run, data) if "loader" not in run.fault else [])
        run.say("eval", epoch=engine.state.epoch, accuracy=float(evaluator.state.output or 0))
        if run.rank == 0:
            run.save(f"epoch_{engine.state.epoch:04d}.pt", torch_kit.state(model))

    epochs = max(1, run.steps // len(loader))
    run.rescale(epochs * len(loader))
    trainer.run(loader, max_epochs=epochs)
    run.finish(loss=trainer.state.output)


if __name__ == "__main__":
    kit.main(train, "train_ignite.py")
