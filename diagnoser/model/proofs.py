"""What proves that a node is at fault."""

from dataclasses import dataclass
from enum import StrEnum


class ProofKind(StrEnum):
    """What can prove that a node is at fault."""

    NODE_LOG = "node_log"  # a line of the node's own log
    SCHEDULER = "scheduler"  # the scheduler's word about the node
    QUERY = "query"  # the node's answer when it was asked
    CHECK = "check"  # the two-round node check
    PERSON = "person"  # somebody approved the plan although nothing else proves it


@dataclass(frozen=True, slots=True)
class NodeProof:
    """Why a node may be taken out. text: the line, answer or verdict, or a person's comment.

    source: of the line, else the name of the query. line: number in its stream, 0 where there is none.
    by: the person, or "".
    """

    node: str
    kind: ProofKind
    text: str
    source: str = ""
    line: int = 0
    time: float = 0.0
    by: str = ""
