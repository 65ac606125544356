"""The table of what faults of nodes explain."""

import pytest

from diagnoser.model.errors import RuleFaults
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules import node_faults
from diagnoser.rules.node_faults import Failure, NodeFaultTable
from diagnoser.rules.schema import Blame
from tests import accuracy_bars

T = FailureType
KNOWLEDGE = accuracy_bars.load().knowledge
RULES = KNOWLEDGE.engine.ruleset


def table(faults: str, elsewhere: str = "[peers]") -> NodeFaultTable:
    head = f"version: 1\nelsewhere: {elsewhere}\ndeciders:\n  killed: ['rule:elastic_worker_sigkill']\nfaults:\n"
    return node_faults.load("node_faults.yaml", head + faults, RULES)


def test_lists_of_types_and_deciders_are_meant_by_name() -> None:
    """A row may name lists of explains.yaml and of its own deciders, beside single ones."""
    read = table(
        "  - {types: [gpu_lost], explains: [peers], deciders: [killed, 'heuristic:exit_signal'], proof: true}\n"
    )
    row = read.faults[T.GPU_LOST]
    assert row.types == read.elsewhere == {T.NCCL_TIMEOUT_ERROR, T.NCCL_REMOTE_ERROR, T.CONNECTION_ERROR}
    assert row.deciders == {"rule:elastic_worker_sigkill", "heuristic:exit_signal"}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{types: [gpu_lost], explains: [pears], proof: true}", "'pears' is neither a failure type nor one of"),
        ("{types: [gpu_lost], explains: [completed], proof: true}", "'completed' is no failure"),
        ("{types: [key_error], explains: [], proof: true}", "'key_error' is no fault of a node"),
        ("{types: [gpu_lost, gpu_lost], explains: [], proof: true}", "'gpu_lost' appears twice"),
        ("{types: [gpu_lost], explains: [], deciders: ['rule:gone'], proof: true}", "no rule 'gone'"),
        ("{types: [gpu_lost], explains: [], deciders: [dead], proof: true}", "'dead' is neither a decider nor a list"),
        ("{types: [gpu_lost], explains: []}", "proof"),
    ],
)
def test_a_faulty_row_is_refused_with_its_line(row: str, why: str) -> None:
    """Each mistake is told with the line that it stands on."""
    with pytest.raises(RuleFaults, match=rf"node_faults.yaml:6: .*{why}"):
        table(f"  - {row}\n")


@pytest.mark.parametrize("kind", [T.SYNTAX_ERROR, T.ARGUMENT_ERROR, T.MODEL_LOADING_ERROR, T.KEY_ERROR, T.COMPLETED])
def test_no_shipped_fault_explains_an_error_of_the_script(kind: FailureType) -> None:
    """Whatever decided it, unless it is named."""
    assert not KNOWLEDGE.node_faults.can_explain(Failure(kind, "rule:any"))


def test_what_is_shared_is_explained_only_by_name() -> None:
    """A lost connection to a public hub is no fault of a GPU; one to a peer may be."""
    explains = KNOWLEDGE.node_faults.explains
    assert explains(T.GPU_LOST, "n1", Failure(T.CONNECTION_ERROR, "rule:socket_refused", Blame.PEER))
    assert not explains(T.GPU_LOST, "n1", Failure(T.CONNECTION_ERROR, "rule:hub_unreachable", Blame.ALL))
    assert explains(T.FILESYSTEM_ERROR, "n1", Failure(T.FILESYSTEM_ERROR, "rule:stale_file_handle", Blame.ALL))


def test_another_node_explains_only_a_wait() -> None:
    """A timeout seen on n2 may come from n1; n2's own link error, or its CUDA error, does not."""
    explains = KNOWLEDGE.node_faults.explains
    assert explains(T.GPU_LOST, "n1", Failure(T.NCCL_TIMEOUT_ERROR, "rule:gloo_timeout", Blame.PEER, "n2"))
    assert not explains(T.GPU_LOST, "n1", Failure(T.NETWORK_ERROR, "rule:nic_link_down", Blame.SELF, "n2"))
    assert not explains(T.GPU_LOST, "n1", Failure(T.CUDA_ERROR, "rule:cuda_error_other", Blame.SELF, "n2"))
    assert explains(T.GPU_LOST, "n2", Failure(T.CUDA_ERROR, "rule:cuda_error_other", Blame.SELF, "n2"))


def test_a_site_without_the_table_explains_nothing() -> None:
    """The empty table: no fault of a node is a cause, and none proves anything."""
    empty = NodeFaultTable()
    failure = Failure(T.UNKNOWN, "heuristic:no_evidence")
    assert not empty.can_explain(failure) and not empty.explains(T.GPU_LOST, "n1", failure)
    assert not empty.proves(T.GPU_LOST)
