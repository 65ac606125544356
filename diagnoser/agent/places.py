"""Where nodes stand: leaf switches, blocks, racks, NVLink domains. Pure.

A place is a word and a name, ``switch:leaf-07``. What stands under one switch, or shares one domain, fails together.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from diagnoser.dialects import node_lists
from diagnoser.model.errors import BadInput

PLACES_OF_NODE = 4
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,80}")
_PLACE = re.compile(r"([a-z]{1,20}:[A-Za-z0-9_./-]{1,80})\s+(\S+)")
_LEAF = re.compile(r"SwitchName=(?P<switch>\S+) Level=0 |BlockName=(?P<block>\S+) ")
LABELS = {
    "topology.kubernetes.io/rack": "rack",
    "topology.kubernetes.io/block": "block",
    "network.topology.nvidia.com/leaf": "switch",
    "network.topology.nvidia.com/accelerator": "domain",
    "nvidia.com/gpu.clique": "domain",
}
"""Label of a node -> word of the place that it names. Zones and regions hold too many nodes to fail together."""

Places = Mapping[str, tuple[str, ...]]
"""Node -> its places."""


def from_topology(text: str) -> Places:
    """Leaf switches and blocks, of ``scontrol -o show topology``; none where the cluster has no topology."""
    return _by_node(_topology_lines(text))


def from_file(text: str) -> Places:
    """Lines of a place and its nodes: ``rack:r07 gpu-[001-018]``. Raises BadInput."""
    pairs = []
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        match = _PLACE.fullmatch(said)
        if match is None:
            raise BadInput(f"line {number}: expected a place and its nodes, such as `rack:r07 gpu-[001-018]`")
        pairs.append((match[1], match[2]))
    return _by_node(pairs)


def from_labels(labels: Mapping[str, str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for label, word in LABELS.items():
        name = labels.get(label, "")
        if _NAME.fullmatch(name):
            found[f"{word}:{name}"] = None
    return tuple(found)[:PLACES_OF_NODE]


def merged(*given: Places) -> Places:
    """Each node with the places of all, the first ones first."""
    named: dict[str, dict[str, None]] = {}
    for places in given:
        for node, of_node in places.items():
            named.setdefault(node, {}).update(dict.fromkeys(of_node))
    return {node: tuple(of_node)[:PLACES_OF_NODE] for node, of_node in named.items()}


def _topology_lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        match = _LEAF.match(line)
        _, _, nodes = line.partition(" Nodes=")
        if match is None:
            continue
        if not nodes.strip():
            continue
        word = "switch" if match["switch"] else "block"
        name = match[word]
        if _NAME.fullmatch(name):
            yield f"{word}:{name}", nodes.split()[0]


def _by_node(pairs: Iterable[tuple[str, str]]) -> Places:
    """pairs: (place, list of nodes). Raises BadInput for what is no such list."""
    places: dict[str, list[str]] = {}
    for place, nodes in pairs:
        try:
            for node in node_lists.expanded(nodes):
                places.setdefault(node, []).append(place)
        except ValueError as error:
            raise BadInput(str(error)) from None
    return {node: tuple(named)[:PLACES_OF_NODE] for node, named in places.items()}
