"""What the trainers on torch share: a small model, gloo between the ranks, and what torch itself refuses."""

import copy
import io
import os
import signal

import kit
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.set_num_threads(1)


def connect(run):
    """Joins the other ranks by gloo: through the coordinator, or as torchrun has it."""
    if run.world > 1:
        address = os.environ.get("COORDINATOR")
        method = f"tcp://{address}" if address and "MASTER_ADDR" not in os.environ else "env://"
        dist.init_process_group("gloo", init_method=method, rank=run.rank, world_size=run.world)


def average(run, loss):
    """The mean of the ranks' losses; without others, the loss."""
    if run.world == 1:
        return loss
    value = torch.tensor([loss], dtype=torch.float64)
    dist.all_reduce(value)
    return float(value) / run.world


def network(run, width=32):
    torch.manual_seed(run.settings["seed"])
    model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))
    run.weights = model[0].weight.data if width == 32 else run.weights
    return model


def dataset(run):
    features, labels = run.load()
    return TensorDataset(torch.from_numpy(features), torch.from_numpy(labels))


def endless(loader):
    while True:
        yield from loader


def restore(run, model):
    """Where the run resumes: weights of another model, or a file that was cut."""
    if run.fault == "other_width":
        model.load_state_dict(network(run, 48).state_dict())
    if run.fault == "cut_weights":
        data = state(model)
        model.load_state_dict(torch.load(io.BytesIO(data[: len(data) // 2]), weights_only=True))
    if run.fault == "no_weights":
        model.load_state_dict(torch.load("ckpt/epoch_0012.pt", weights_only=True))


def state(model):
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.getvalue()


class Doomed(Dataset):
    """One of its workers is killed."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        if index == 70:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.data[index]


class Leaving(Doomed):
    """One of its workers ends by itself."""

    def __getitem__(self, index):
        if index == 70:
            os._exit(2)
        return self.data[index]


class Raising(Doomed):
    """One of its samples has no label."""

    def __getitem__(self, index):
        features, label = self.data[index]
        return features, {"label": label}["labels" if index == 70 else "label"]


def loader(run, data, batch=8):
    wrapped = {"loader_killed": Doomed, "loader_raises": Raising, "loader_leaves": Leaving}.get(run.fault)
    if wrapped and run.struck:
        return DataLoader(wrapped(data), batch, num_workers=2, drop_last=True)
    return DataLoader(data, batch, shuffle=True, drop_last=True)


def wide_input(run):
    return network(run, 33)(torch.ones(8, 20))


def no_class(run):
    return F.cross_entropy(torch.zeros(8, 4), torch.full((8,), 7))


def far_token(run):
    return nn.Embedding(512, 8)(torch.tensor([3, 511, 512]))


def twice_backward(run):
    loss = network(run)(torch.ones(2, 16)).pow(2).sum()
    loss.backward()
    loss.backward()


def changed_in_place(run):
    weight = torch.ones(4, requires_grad=True)
    hidden = weight.exp()
    hidden += 1
    hidden.sum().backward()


def mixed_types(run):
    return torch.ones(2, 3, dtype=torch.float64) @ torch.ones(3, 2)


def cuda_wanted(run):
    return torch.ones(1).cuda()


def huge_tensor(run):
    return torch.ones(1 << 39)


def odd_sizes(run):
    return torch.ones(8, 16) * torch.ones(8, 12)


def no_gradient(run):
    torch.ones(3).sum().backward()


def bad_device(run):
    return torch.ones(1, device="gpu:0")


def uneven_stack(run):
    return torch.stack([torch.ones(16), torch.ones(14)])


def wrong_channels(run):
    return nn.Conv2d(3, 8, 3)(torch.ones(2, 1, 8, 8))


def no_view(run):
    return torch.ones(4, 6).t().view(24)


def lone_sample(run):
    return nn.BatchNorm1d(4)(torch.ones(1, 4))


def no_scalar(run):
    return torch.ones(4).item()


def unclear_truth(run):
    return 1 if torch.ones(3) > 0 else 0


def nothing_to_train(run):
    return torch.optim.SGD([], lr=0.1)


def numpy_of_gradient(run):
    return torch.ones(3, requires_grad=True).numpy()


def bad_header(run):
    from safetensors.torch import load

    return load(b"\xff" * 64)


def other_length(run):
    return F.cross_entropy(torch.zeros(8, 4), torch.zeros(6, dtype=torch.long))


def missing_weight(run):
    weights = network(run, 33).state_dict()
    del weights["2.bias"]
    network(run, 33).load_state_dict(weights)


def wrong_shape(run):
    return torch.ones(4, 6).reshape(5, 5)


def index_type(run):
    return torch.ones(4)[torch.tensor([0.5])]


def leaf(run):
    weight = torch.ones(4, requires_grad=True)
    weight += 1


def far_gather(run):
    return torch.ones(3, 4).gather(1, torch.tensor([[9]]))


def no_cuda(run):
    return torch.zeros(2).to("cuda:0")


def deep_copy(run):
    return copy.deepcopy(torch.ones(2, requires_grad=True) * 2)


kit.MISHAPS |= {
    act.__name__: ("step", act)
    for act in (
        wide_input,
        no_class,
        far_token,
        twice_backward,
        changed_in_place,
        mixed_types,
        cuda_wanted,
        huge_tensor,
        odd_sizes,
        no_gradient,
        bad_device,
        uneven_stack,
        wrong_channels,
        no_view,
        lone_sample,
        no_scalar,
        unclear_truth,
        nothing_to_train,
        numpy_of_gradient,
        bad_header,
        other_length,
        missing_weight,
        wrong_shape,
        index_type,
        leaf,
        far_gather,
        no_cuda,
        deep_copy,
    )
}
