"""What faults of nodes explain, `rules/node_faults.yaml`: a lost GPU does not explain a shape mismatch."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.rules.schema import Blame, Mistake, RuleSet, load_table

_TypeOrList = Annotated[FailureType | str, Field(union_mode="left_to_right")]
_Decider = Annotated[str, StringConstraints(pattern=r"^(?:rule|heuristic):[a-z0-9_]+$")]


class _FaultRow(StrictModel):
    types: Annotated[tuple[FailureType, ...], Field(min_length=1)]
    explains: tuple[_TypeOrList, ...]
    deciders: tuple[str, ...] = ()
    proof: bool


class _NodeFaultFile(StrictModel):
    version: Literal[1]
    elsewhere: tuple[_TypeOrList, ...]
    deciders: dict[Annotated[str, StringConstraints(pattern=r"^[a-z_]+$")], tuple[_Decider, ...]] = Field(
        default_factory=dict
    )
    faults: tuple[_FaultRow, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """What is to be explained. blame: of the rule that decided, NONE without one. node: where it happened, as far as
    it can be told; None when it cannot."""

    type: FailureType
    decided_by: str
    blame: Blame = Blame.NONE
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Explained:
    """What faults of one type explain: types of failures, and single deciders. proof: whether such a fault justifies
    taking the node out."""

    types: frozenset[FailureType]
    deciders: frozenset[str]
    proof: bool


@dataclass(frozen=True, slots=True)
class NodeFaultTable:
    """faults: by the type of the fault. elsewhere: failures that a fault of another node can cause."""

    faults: Mapping[FailureType, Explained] = field(default_factory=dict)
    elsewhere: frozenset[FailureType] = frozenset()

    def can_explain(self, failure: Failure) -> bool:
        """Whether some fault of some node would explain it."""
        return any(_covers(explained, failure) for explained in self.faults.values())

    def explains(self, fault: FailureType, node: str, failure: Failure) -> bool:
        """Whether a fault of this type on ``node`` can be the cause of the failure."""
        explained = self.faults.get(fault)
        if explained is None:
            return False
        if not _covers(explained, failure):
            return False
        if failure.node in (None, node):
            return True
        if failure.type not in self.elsewhere:
            return False
        return failure.blame is not Blame.SELF

    def proves(self, fault: FailureType) -> bool:
        """Whether a fault of this type justifies taking its node out."""
        if fault not in self.faults:
            return False
        return self.faults[fault].proof


def _covers(explained: Explained, failure: Failure) -> bool:
    if failure.decided_by in explained.deciders:
        return True
    if failure.type not in explained.types:
        return False
    return failure.blame is not Blame.ALL


def load(path: str, text: str, ruleset: RuleSet) -> NodeFaultTable:
    """Raises RuleFaults with every fault: shape, names that do not exist, types that stand twice or cannot be meant."""
    table = load_table(path, text, _NodeFaultFile, lambda table: _mistakes(table, ruleset))
    rows: dict[FailureType, Explained] = {}
    for row in table.faults:
        deciders = chain.from_iterable(table.deciders.get(name, (name,)) for name in row.deciders)
        explained = Explained(_types(row.explains, ruleset), frozenset(deciders), row.proof)
        rows |= dict.fromkeys(row.types, explained)
    return NodeFaultTable(rows, _types(table.elsewhere, ruleset))


def _types(names: Iterable[FailureType | str], ruleset: RuleSet) -> frozenset[FailureType]:
    return frozenset(FailureType(kind) for name in names for kind in ruleset.lists.get(name, (name,)))


def _mistakes(table: _NodeFaultFile, ruleset: RuleSet) -> Iterator[Mistake]:
    yield from _type_mistakes(("elsewhere",), table.elsewhere, ruleset)
    known = {f"rule:{rule.id}" for rule in ruleset.rules}
    for name, deciders in table.deciders.items():
        yield from _decider_mistakes(("deciders", name), deciders, known)
    seen = set[FailureType]()
    for number, row in enumerate(table.faults):
        where = ("faults", number)
        yield from _fault_mistakes((*where, "types"), row.types, seen)
        yield from _type_mistakes((*where, "explains"), row.explains, ruleset)
        yield from _decider_mistakes((*where, "deciders"), row.deciders, known, table.deciders)


_Where = tuple[str | int, ...]
"""A list in the file."""


def _fault_mistakes(where: _Where, kinds: Iterable[FailureType], seen: set[FailureType]) -> Iterator[Mistake]:
    """Types that stand twice, or that no node has.

    seen: types of the rows before; those of this one are added.
    """
    for index, kind in enumerate(kinds):
        if kind in seen:
            yield (*where, index), f"'{kind}' appears twice"
        if category_of(kind) not in (Category.INFRASTRUCTURE, Category.FRAMEWORK):
            yield (*where, index), f"'{kind}' is no fault of a node"
        seen.add(kind)


def _type_mistakes(where: _Where, names: Iterable[FailureType | str], ruleset: RuleSet) -> Iterator[Mistake]:
    for index, name in enumerate(names):
        kinds = ruleset.lists.get(name) or (name,)
        if not set(kinds) <= set(FailureType):
            yield (*where, index), f"'{name}' is neither a failure type nor one of {', '.join(ruleset.lists)}"
        elif Category.NONE in map(category_of, map(FailureType, kinds)):
            yield (*where, index), f"'{name}' is no failure"


def _decider_mistakes(
    where: _Where, deciders: Iterable[str], known: Collection[str], lists: Collection[str] = ()
) -> Iterator[Mistake]:
    """Rules that do not exist, and names that are no deciders.

    known: deciders that are rules.
    lists: names of lists of deciders.
    """
    for index, decider in enumerate(deciders):
        if decider in lists:
            continue
        if ":" not in decider:
            yield (*where, index), f"'{decider}' is neither a decider nor a list of them"
        elif decider.startswith("rule:") and decider not in known:
            yield (*where, index), f"no rule '{decider.removeprefix('rule:')}'"
