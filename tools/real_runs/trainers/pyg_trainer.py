"""PyTorch Geometric: node classification on a small graph."""

import kit
import mishaps  # noqa: F401
import torch
import torch.nn.functional as F
import torch_kit
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv


class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = GCNConv(width, 24), GCNConv(24, 4)

    def forward(self, x, edges):
        return self.second(F.relu(self.first(x, edges)), edges)


def train(run):
    torch_kit.connect(run)
    features, labels = run.load()
    torch.manual_seed(run.settings["seed"])
    count = len(features)
    edges = torch.randint(0, count, (2, 5 * count))
    if run.fault == "far_node" and run.struck:
        edges[0, 7] = count + 40
    if run.fault == "float_edges" and run.struck:
        edges = edges.float()
    graph = Data(x=torch.from_numpy(features), edge_index=edges, y=torch.from_numpy(labels))
    run.say("start")
    print(graph)
    model = Net(20 if run.fault == "other_width_of_graph" and run.struck else 16)
    print(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    torch_kit.restore(run, model)
    for number in range(1, run.steps + 1):
        optimizer.zero_grad()
        out = model(graph.x, graph.edge_index)
        loss = F.cross_entropy(out, graph.y)
        loss.backward()
        optimizer.step()
        try:
            mean = run.step(number, torch_kit.average(run, loss.item()))
        except kit.StoppedEarly:
            break
        hits = float((out.argmax(1) == graph.y).float().mean())
        if run.rank == 0:
            print(
                f"Epoch: {number:03d}, Loss: {mean:.4f}, Train: {hits:.4f}, "
                f"Val: {hits - 0.02:.4f}, Test: {hits - 0.03:.4f}"
            )
        if number % 25 == 0 and run.rank == 0:
            run.save(f"gcn_{number}.pt", torch_kit.state(model))
    run.finish(loss=mean, accuracy=hits)


if __name__ == "__main__":
    kit.main(train, "gcn.py")
