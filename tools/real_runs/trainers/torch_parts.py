"""What the trainers on torch share: a small network and a data set that parses each record when it is asked for."""

import gzip
from pathlib import Path

import torch
from support import parse


class Shard(torch.utils.data.Dataset):
    """One rank's records, read as lines and parsed when they are needed."""

    def __init__(self, job, key="features"):
        path = Path(job.settings["data"].format(rank=job.rank))
        opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path)
        with opened as file:
            self.lines = file.readlines()
        self.sources, self.key = job.settings["sources"], key

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        values, source = parse(self.lines[index])
        return {self.key: torch.from_numpy(values), "labels": torch.tensor(self.sources[source])}


class Network(torch.nn.Module):
    def __init__(self, settings):
        super().__init__()
        torch.manual_seed(settings.get("seed", 1))
        self.body = torch.nn.Linear(settings["features"], settings["hidden"])
        self.head = torch.nn.Linear(settings["hidden"], len(settings["sources"]))

    def forward(self, features, labels=None):
        logits = self.head(torch.tanh(self.body(features)))
        if labels is None:
            return {"logits": logits}
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}
