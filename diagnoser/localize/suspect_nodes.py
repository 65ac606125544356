"""Which nodes may be at fault, ranked, with a reason for each.

Empty when the log does not show it, and for failures that no node can cause: those only name where they happened.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from diagnoser.localize.node_names import NodeNames, names_loopback
from diagnoser.model import Evidence, Suspect
from diagnoser.model.taxonomy import NODE_FAULTS, FailureType, NodeFault

_T = FailureType
_CONNECTIONS = frozenset({_T.CONNECTION_ERROR, _T.NETWORK_ERROR, _T.NCCL_REMOTE_ERROR, _T.NCCL_TIMEOUT_ERROR})
_CLOSED = re.compile(r"[Cc]onnection closed by peer \[?(?P<ip>[\da-fA-F.:]+?)\]?[:<]")
_DIRECT, _BY_RANK, _ABSENT, _PEER = 0.95, 0.9, 0.85, 0.75
_OWN_LOG, _OWN_LOG_TOO = 0.95, 0.9
"""Of the node whose own log states the cause; of others whose own logs state a fault as well."""
_MARGIN = 0.2
"""A node is named to the policy only if its score leads the second by this much."""


@dataclass(frozen=True, slots=True)
class RootBlame:
    """Whom the root speaks of.

    failure: what happened.
    kind: the rule's blame (self, peer, none, all).
    node, rank: None when not shown.
    text: the line of the root.
    """

    failure: FailureType
    kind: str
    rank: int | None
    node: str | None
    why: str
    text: str = ""

    @property
    def is_within_machine(self) -> bool:
        """Whether a connection broke that never left its machine: no network and no other node had a part in it."""
        return self.failure in _CONNECTIONS and names_loopback(self.text)


def suspects(
    evidence: Evidence,
    ranks: Mapping[int, str],
    root: RootBlame,
    absent: Sequence[str | None] = (),
    alike: Collection[int] = (),
    names: NodeNames | None = None,
) -> tuple[Suspect, ...]:
    """Nodes, highest score first.

    A connection that closed names nobody where something shared is at fault.

    absent: nodes of the ranks that the others waited for, None where not known.
    alike: ranks that fail in the same way as the root.
    names: of the log's machines; None to read them from the evidence.
    """
    fault = NODE_FAULTS.get(root.failure)
    if fault is None or root.is_within_machine:
        return ()
    by_node: dict[str, Suspect] = {}
    if root.kind == "self" and not _shared(alike, ranks):
        _add(by_node, root.node, _DIRECT, root.why)
        _add(by_node, _node_of(root, ranks), _BY_RANK, root.why)
    for node in absent:
        _add(by_node, node, _ABSENT / len(set(absent)), "the others waited for a rank of this node")
    if _may_be_peer(root, by_node):
        node, why = _closed_peer(evidence, names or NodeNames(evidence))
        _add(by_node, node, _PEER, why)
    weighted = [_weighted(suspect, fault) for suspect in by_node.values()]
    return tuple(sorted(weighted, key=lambda suspect: (-suspect.score, suspect.node)))


def _node_of(root: RootBlame, ranks: Mapping[int, str]) -> str | None:
    """The node where the root's rank runs."""
    if root.rank is None:
        return None
    return ranks.get(root.rank)


def _may_be_peer(root: RootBlame, by_node: Mapping[str, Suspect]) -> bool:
    """Whether the node whose connection closed is a suspect: always of a failure of peers, and where nobody else is,
    unless the failure is of all."""
    if root.kind == "peer":
        return True
    if root.kind == "all":
        return False
    return not by_node


def _weighted(suspect: Suspect, fault: NodeFault) -> Suspect:
    """Score the suspect of a failure that mostly is the job's own lower, and say how the node could still cause it."""
    if fault.weight == 1:
        return suspect
    return replace(suspect, score=round(suspect.score * fault.weight, 2), why=f"{suspect.why}; {fault.reason}")


def by_own_logs(node: str, why: str, rivals: Mapping[str, str]) -> tuple[Suspect, ...]:
    """Nodes whose own logs state a fault, highest score first. rivals: other nodes than that of the cause, and why:
    they are too close to the first for it to be named alone."""
    others = (Suspect(rival, _OWN_LOG_TOO, reason) for rival, reason in sorted(rivals.items()))
    return (Suspect(node, _OWN_LOG, why), *others)


def named(suspects: Sequence[Suspect]) -> bool:
    """Whether the first one stands out enough to act on."""
    if not suspects:
        return False
    if len(suspects) == 1:
        return suspects[0].score >= _MARGIN
    return suspects[0].score - suspects[1].score >= _MARGIN


def _shared(alike: Collection[int], ranks: Mapping[int, str]) -> bool:
    """The same failure on several nodes, and on most of the job's: something shared is at fault, not a node."""
    nodes = set(filter(None, map(ranks.get, alike)))
    if len(nodes) <= 1:
        return False
    return len(nodes) * 2 > len(set(ranks.values()))


def _add(by_node: dict[str, Suspect], node: str | None, score: float, why: str) -> None:
    if not node:
        return
    if node not in by_node or by_node[node].score < score:
        by_node[node] = Suspect(node, round(score, 2), why)


def _closed_peer(evidence: Evidence, names: NodeNames) -> tuple[str | None, str]:
    """The first connection that broke names the culprit's node in 60 of 64 injected multi-node runs."""
    for line in evidence.lines:
        match = _CLOSED.search(line.body)
        if match:
            return names.at(match["ip"]), f"the first connection that closed was to {match['ip']}"
    return None, ""
