"""Which nodes may be at fault."""

import pytest

from diagnoser.localize import suspect_nodes
from diagnoser.localize.suspect_nodes import RootBlame
from diagnoser.model import Suspect
from diagnoser.model.taxonomy import NODE_FAULTS, FailureType
from tests.rule_files import log

ECC = FailureType.ECC_ERROR
RANKS = {0: "n1", 1: "n1", 2: "n2", 3: "n2", 4: "n3", 5: "n3"}


def test_a_fault_that_blames_itself_names_its_node() -> None:
    """The node that the root line names comes first and stands out."""
    found = suspect_nodes.suspects(log("x"), RANKS, RootBlame(ECC, "self", 2, "n2", "ECC error"))
    assert [one.node for one in found] == ["n2"] and suspect_nodes.named(found)


@pytest.mark.parametrize("kind", FailureType)
def test_only_a_fault_that_a_node_can_have_makes_its_node_suspect(kind: FailureType) -> None:
    """An assertion or a full GPU makes nobody suspect; what the code mostly causes weighs less."""
    found = suspect_nodes.suspects(log("x"), RANKS, RootBlame(kind, "self", 2, "n2", "x"))
    expected = []
    if kind in NODE_FAULTS:
        expected = [("n2", round(0.95 * NODE_FAULTS[kind].weight, 2))]
    assert [(suspect.node, suspect.score) for suspect in found] == expected


def test_shared_faults_blame_no_node() -> None:
    """Storage faults, and failures that most nodes show alike, name nobody."""
    assert suspect_nodes.suspects(log("x"), RANKS, RootBlame(ECC, "all", 2, "n2", "storage")) == ()
    assert suspect_nodes.suspects(log("x"), RANKS, RootBlame(ECC, "self", 2, "n2", "x"), alike=RANKS) == ()


def test_a_failure_on_half_of_the_nodes_is_not_shared() -> None:
    """Only what most of the job's nodes show alike is the fault of none of them."""
    ranks = {0: "n1", 1: "n2", 2: "n3", 3: "n4"}
    root = RootBlame(ECC, "self", 0, "n1", "ECC error")
    assert [one.node for one in suspect_nodes.suspects(log("x"), ranks, root, alike=(0, 1))] == ["n1"]
    assert suspect_nodes.suspects(log("x"), ranks, root, alike=(0, 1, 2)) == ()


def test_only_a_fault_that_blames_itself_names_the_node_of_its_line() -> None:
    """A line that blames nobody, or its peer, was printed by some node, which is no reason to suspect that one."""
    for kind in ("none", "peer"):
        assert suspect_nodes.suspects(log("x"), RANKS, RootBlame(ECC, kind, 2, "n2", "timeout")) == ()


@pytest.mark.parametrize(
    ("text", "suspected"),
    [
        ("Read error [127.0.0.1]:41022: Connection reset by peer", False),
        ("connect to localhost:29500 failed: Connection refused", False),
        ("recvValue failed on SocketImpl(remote=[::1]:29500): Connection reset by peer", False),
        ("Read error [10.4.0.27]:41022: Connection reset by peer", True),
        ("connect to my-localhost-27:29500 failed", True),
    ],
)
def test_a_connection_within_a_machine_makes_no_machine_suspect(text: str, suspected: bool) -> None:
    """Neither the network nor another node has a part in a connection over loopback, whoever the others waited for."""
    root = RootBlame(FailureType.NETWORK_ERROR, "self", 2, "n2", "the connection was reset", text)
    assert bool(suspect_nodes.suspects(log("x"), RANKS, root, absent=("n3",))) == suspected


def test_ranks_that_did_not_arrive_point_at_their_nodes() -> None:
    """One absent rank names its node; two on different nodes share the suspicion and none stands out."""
    assert [
        one.node
        for one in suspect_nodes.suspects(log("x"), RANKS, RootBlame(ECC, "none", None, None, ""), absent=("n3",))
    ] == ["n3"]
    both = suspect_nodes.suspects(log("x"), RANKS, RootBlame(ECC, "none", None, None, ""), absent=("n2", "n3"))
    assert {one.node for one in both} == {"n2", "n3"} and not suspect_nodes.named(both)


def test_the_first_closed_connection_names_the_peer() -> None:
    """The address of the first lost peer is its node where the log shows which node has it."""
    evidence = log(
        "n3:77:78 [0] NCCL INFO Bootstrap : Using [0]eth0:10.9.0.3<0>",
        "Connection closed by peer [10.9.0.3]:4242. This is typically caused by a remote worker crashing.",
    )
    found = suspect_nodes.suspects(evidence, {}, RootBlame(ECC, "peer", 0, None, ""))
    assert [one.node for one in found] == ["n3"]


def test_unknown_addresses_name_nobody() -> None:
    """Without a line that maps the address there is no suspect."""
    assert (
        suspect_nodes.suspects(
            log("Connection closed by peer [10.9.0.3]:4"), {}, RootBlame(ECC, "none", None, None, "")
        )
        == ()
    )


def test_named_needs_a_margin() -> None:
    """Nobody, and two that are equally likely, is not named."""
    assert not suspect_nodes.named([])
    assert not suspect_nodes.named([Suspect("a", 0.9, ""), Suspect("b", 0.8, "")])
