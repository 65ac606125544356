"""A small language model trained by a plain loop, as in nanoGPT: prints, no logger, but for what the site adds."""

import math
import time

import kit
import torch
import torch_kit
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, hidden):
        seen, _ = self.attention(hidden, hidden, hidden, need_weights=False)
        return hidden + self.out(self.norm(seen).relu())


class Model(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.tokens, self.block, self.head = nn.Embedding(64, width), Block(width), nn.Linear(width, 64)

    def forward(self, tokens):
        return self.head(self.block(self.tokens(tokens)))


def train(run):
    torch_kit.connect(run)
    features, _ = run.load()
    tokens = torch.from_numpy(features).mul(8).long().clamp(0, 63).flatten()
    model = Model()
    run.weights = model.tokens.weight.data
    if run.rank == 0:
        count = sum(parameter.numel() for parameter in model.parameters())
        print(f"tokens per iteration will be: {512 * run.world:,}")
        print(f"number of parameters: {count / 1e6:.2f}M")
        print(f"num decayed parameter tensors: {len(list(model.parameters()))}, with {count:,} parameters")
        print("using fused AdamW: False")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if run.fault in ("other_width", "cut_weights", "no_weights"):
        print("Resuming training from ckpt")
        torch_kit.restore(run, model)
    for number in range(1, run.steps + 1):
        began = time.monotonic()
        start = torch.randint(0, len(tokens) - 33, (4,))
        batch = torch.stack([tokens[at : at + 33] for at in start])
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        try:
            mean = run.step(number, torch_kit.average(run, loss.item()))
        except kit.StoppedEarly:
            break
        took = 1000 * (time.monotonic() - began)
        if run.rank == 0:
            print(f"iter {number}: loss {mean:.4f}, time {took:.2f}ms, mfu {100 / took:.2f}%")
        if number % 25 == 0 and run.rank == 0:
            print(f"step {number}: train loss {mean:.4f}, val loss {mean + 0.01:.4f}")
            print("saving checkpoint to ckpt")
            run.save("ckpt.pt", torch_kit.state(model))
    run.finish(loss=mean, perplexity=math.exp(min(20, mean)) if math.isfinite(mean) else mean)


if __name__ == "__main__":
    kit.main(train, "train.py")
