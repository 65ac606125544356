"""Where nodes stand, as schedulers and operators write it."""

import pytest

from diagnoser.agent import places
from diagnoser.model.errors import BadInput
from diagnoser.recovery.incidents import shared_place

TREE = """SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu-[01-02]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=gpu-03
SwitchName=spine Level=1 LinkSpeed=1 Nodes=gpu-[01-03] Switches=leaf[1-2]
"""
BLOCKS = "BlockName=b1 BlockIndex=0 Nodes=gpu-[01-02] BlockSize=2\n"


def test_leaf_switches_and_blocks_of_slurm_are_places() -> None:
    """What joins switches holds everything, and is none."""
    assert places.from_topology(TREE) == {
        "gpu-01": ("switch:leaf1",),
        "gpu-02": ("switch:leaf1",),
        "gpu-03": ("switch:leaf2",),
    }
    assert places.from_topology(BLOCKS)["gpu-02"] == ("block:b1",)
    assert places.from_topology("") == {}


def test_an_operator_s_file_comes_before_what_the_scheduler_tells() -> None:
    """A line that is none is told with its number."""
    given = places.from_file("# the new hall\nrack:r07 gpu-[01-02]\n\n")
    assert places.merged(given, places.from_topology(TREE))["gpu-01"] == ("rack:r07", "switch:leaf1")
    with pytest.raises(BadInput, match="line 1"):
        places.from_file("gpu-01 is in rack 7")


def test_labels_of_kubernetes_name_places() -> None:
    """A zone holds too many nodes to fail together."""
    labels = {"topology.kubernetes.io/rack": "r07", "topology.kubernetes.io/zone": "z1", "nvidia.com/gpu.clique": "a.1"}
    assert places.from_labels(labels) == ("rack:r07", "domain:a.1")
    assert places.from_labels({"topology.kubernetes.io/rack": "r 07"}) == ()


@pytest.mark.parametrize(
    ("failing", "place"),
    [
        ((), ""),
        (("n2",), "switch:a"),
        (("n5",), ""),
        (("n1",), ""),
    ],
    ids=["alone", "its neighbour too", "a node elsewhere", "only itself again"],
)
def test_nodes_that_fail_together_share_their_smallest_place(failing: tuple[str, ...], place: str) -> None:
    """A hall that holds all of them says nothing."""
    stand = {f"n{number}": ("hall:all", f"switch:{'abc'[number // 4]}") for number in range(1, 12)}
    assert shared_place("n1", failing, stand) == place
