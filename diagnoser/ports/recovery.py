"""Plans, nodes and breakers."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from diagnoser.model import ClusterHistory, Plan, TransitionResult

PlanTransition = Callable[[Plan, ClusterHistory], TransitionResult]
"""Decides what becomes of a plan. Pure: the store calls it inside the transaction that writes the result."""


ClaimTransition = Callable[[Plan, Collection[str]], TransitionResult]
"""Decides whether an executor gets a plan, given the nodes that the scheduler gave its attempt. Pure, as above."""


@dataclass(frozen=True, slots=True)
class PlanFilter:
    state: str = ""
    job: str = ""
