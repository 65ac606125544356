"""Hugging Face Accelerate around a loop of one's own, with its tqdm bar."""

import kit
import torch
import torch_kit
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from tqdm.auto import tqdm


def train(run):
    torch_kit.connect(run)
    set_seed(run.settings["seed"])
    accelerator = Accelerator(cpu=True)
    data = torch_kit.dataset(run)
    model = torch_kit.network(run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch_kit.restore(run, model)
    loader = torch_kit.loader(run, data)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    run.log.info("***** Running training *****")
    run.log.info("  Num examples = %d", len(data))
    run.log.info("  Total optimization steps = %d", run.steps)
    bar = tqdm(range(run.steps), disable=run.rank > 0, mininterval=0.3)
    batches = torch_kit.endless(loader)
    for number in range(1, run.steps + 1):
        features, labels = next(batches)
        loss = nn.functional.cross_entropy(model(features), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        try:
            mean = run.step(number, torch_kit.average(run, loss.item()))
        except kit.StoppedEarly:
            break
        bar.update(1)
        bar.set_postfix(loss=f"{mean:.3f}")
        if number % 30 == 0 and run.rank == 0:
            run.save(f"step_{number}/model.pt", torch_kit.state(model))
    bar.close()
    run.finish(loss=mean)


if __name__ == "__main__":
    kit.main(train, "run_clm_no_trainer.py")
