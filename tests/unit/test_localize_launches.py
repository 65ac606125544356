"""Where launches begin in a log that holds more than one, and what an older one must not say about the newest."""

import io

import pytest

from diagnoser import compress
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.localize import launches
from diagnoser.model import Diagnosis, Evidence, Facts, LineBlock, Stream
from diagnoser.model.taxonomy import Action, FailureType
from tests import accuracy_bars

T = FailureType


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def diagnose(analyzer: LogAnalyzer, *parts: str) -> Diagnosis:
    return analyzer.diagnose_with_node_logs(read(analyzer, *parts), Facts())


def read(analyzer: LogAnalyzer, *parts: str) -> Evidence:
    return analyzer.read(io.BytesIO("".join(parts).encode())).evidence


def launch(nodes: str, ranks: int = 4) -> str:
    """Ranks come up, two on each node."""
    return "".join(f"rank {rank} on node {nodes}{rank // 2 + 1} (pid {9000 + rank})\n" for rank in range(ranks))


def steps(first: int, last: int) -> str:
    return "".join(
        f"step {n:5d} | loss {8 - n / 100:.4f} | grad norm 0.71 | 812.4 ms/step\n" for n in range(first, last)
    )


def ecc(rank: int) -> str:
    return f"[rank{rank}]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"


def test_one_launch_is_the_whole_log(analyzer: LogAnalyzer) -> None:
    """Nothing is cut from a log in which nothing was launched again."""
    evidence = read(analyzer, launch("gpu-"), steps(1, 60), ecc(3))
    assert launches.starts(evidence, ()) == []
    assert launches.around(evidence, [], 7).evidence is evidence


def test_ranks_stand_where_the_newest_launch_put_them(analyzer: LogAnalyzer) -> None:
    """The same job, launched again on other nodes in the same log: the node of the last launch is to blame."""
    found = diagnose(analyzer, launch("old-"), steps(1, 60), launch("new-"), steps(60, 120), ecc(3))
    assert [suspect.node for suspect in found.nodes] == ["new-2"]
    assert found.root_cause is not None and found.root_cause.node == "new-2"


def test_what_an_older_launch_said_places_nobody(analyzer: LogAnalyzer) -> None:
    """The newest launch does not tell where its ranks run: no node is named, and none is taken out."""
    banner = "+ torchrun --nproc-per-node 2 train.py\n"
    found = diagnose(analyzer, launch("old-"), steps(1, 60), banner, steps(60, 120), ecc(3))
    assert (found.type, found.nodes) == (T.ECC_ERROR, ())
    assert found.root_cause is not None and (found.root_cause.rank, found.root_cause.node) == (3, None)
    assert found.recovery.action is not Action.CORDON_AND_RESUBMIT


def test_labels_are_ranks_where_the_newest_launch_says_so(analyzer: LogAnalyzer) -> None:
    """An older launch had agents under its labels; in the newest one the labels are the ranks themselves."""
    agent = "2: W0301 10:00:00.000 torch/distributed/elastic/agent/server/api.py:900] [default0] starting workers\n"
    said = "2: [rank2]: preparing batches\n2: RuntimeError: CUDA out of memory. Tried to allocate 2.16 GiB. GPU 2\n"
    found = diagnose(analyzer, launch("old-"), agent, steps(1, 60), "+ srun -l python train.py\n", said)
    assert found.root_cause is not None and (found.type, found.root_cause.rank) == (T.OUT_OF_MEMORY_ERROR, 2)


def test_the_ranks_of_an_older_launch_are_not_missed(analyzer: LogAnalyzer) -> None:
    """Eight ranks trained, then four are launched: of the four one is silent, and the four old ones are not."""
    said = "RuntimeError: [/src/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation"
    waited = "".join(
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/srv/app/t.py", line 9, in step\n[rank{rank}]: {said}\n'
        for rank in (0, 1, 3)
    )
    found = diagnose(analyzer, launch("old-", 8), steps(1, 60), launch("new-"), steps(60, 90), waited)
    assert found.type is T.NCCL_TIMEOUT_ERROR
    assert found.root_cause is not None and found.root_cause.rank == 2
    assert [suspect.node for suspect in found.nodes] == ["new-2"]


def test_the_end_of_an_older_run_is_not_the_end_of_the_newest(analyzer: LogAnalyzer) -> None:
    """A run completes, another one is launched in the same log and is lost: it is not completed, though only symptoms
    show it."""
    left = "n7:411:412 [1] misc/socket.cc:484 NCCL WARN Net : Connection closed by remote peer n8<4711>\n"
    found = diagnose(analyzer, launch("a-"), steps(1, 60), "Training completed.\n", launch("b-"), steps(1, 9), left)
    assert found.type is T.NCCL_REMOTE_ERROR
    calm = diagnose(analyzer, launch("a-"), steps(1, 60), "Training completed.\n", left)
    assert calm.type is T.COMPLETED


def test_each_launch_has_its_own_losses(analyzer: LogAnalyzer) -> None:
    """A run that ended at a tiny loss, and another job behind it that begins at a high one: nothing diverged."""
    low = "".join(f"step {n:5d} | loss 0.0003 | grad norm 0.71 | 812.4 ms/step\n" for n in range(1, 40))
    found = diagnose(analyzer, launch("a-"), low, launch("b-"), steps(40, 90))
    assert found.type is not T.LOSS_DIVERGENCE


def test_streams_are_cut_at_one_moment() -> None:
    """With a stream a node, each counting its own lines, a launch begins at the same time in all of them."""
    compressor = accuracy_bars.load().compressor()
    for node, base in (("n1", 0), ("n2", 2)):
        old = [f"rank {base + rank} on node {node}\n" for rank in (0, 1)] + [steps(n, n + 1) for n in range(1, 9)]
        new = [f"rank {base + rank} on node other-{node}\n" for rank in (0, 1)] + ["ready\n"]
        lines = old + new
        times = tuple(1000.0 + 10 * index for index in range(len(lines)))
        compressor.feed(LineBlock(Stream("stdout", node), "".join(lines).encode(), times=times))
    evidence = compress.digest(compressor.take()).evidence
    begins = launches.starts(evidence, ())
    part = launches.around(evidence, begins, len(evidence.lines)).evidence
    assert set(part.rank_nodes.values()) == {"other-n1", "other-n2"}
    assert part.ranks == {0, 1, 2, 3}
    assert part.progress == ()
