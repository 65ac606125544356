"""Plans, nodes and breakers."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model import AttemptKey, BreakerState, ClusterHistory, NodeEvent, Plan, TransitionResult

PlanTransition = Callable[[Plan, ClusterHistory], TransitionResult]
"""Decides what becomes of a plan. Pure: the store calls it inside the transaction that writes the result."""


ClaimTransition = Callable[[Plan, Collection[str]], TransitionResult]
"""Decides whether an executor gets a plan, given the nodes that the scheduler gave its attempt. Pure, as above."""


@dataclass(frozen=True, slots=True)
class PlanFilter:
    state: str = ""
    job: str = ""


class RecoveryStore(Protocol):
    async def plans(self, where: PlanFilter, after: str, limit: int) -> list[Plan]:
        """Newest first; ``after`` is the id of the last one already seen, "" for the first page."""

    async def plan(self, id: str) -> Plan | None: ...

    async def change_plan(
        self, id: str, now: float, transition: PlanTransition, *, alone: bool = False
    ) -> TransitionResult:
        """Read the plan and the cluster's history under the cluster's lock; store the result in the same transaction.

        When ``transition`` raises, nothing changes. alone: it looks at nothing but the plan, so that the history
        (up to thousands of plans) is not read. Raises NotFound.
        """

    async def claim_plan(self, cluster: str, now: float, transition: ClaimTransition) -> TransitionResult | None:
        """What becomes of the oldest plan of the cluster that can be claimed; None when there is none."""

    async def completed_attempt(self, key: AttemptKey) -> int:
        """The number of the newest attempt of the job after this one that ended well; 0 when there is none."""

    async def expired_plans(self, now: float, limit: int) -> list[str]:
        """Ids of plans that have expired and that no executor holds."""

    async def note_node(self, mark: NodeEvent) -> NodeEvent:
        """Store what happened to a node, with the feedback that it implies. Idempotent for an equal event."""

    async def node_marks(self, cluster: str) -> list[NodeEvent]:
        """The last event of each node that had one, by name. cluster: "" for all."""

    async def node_history(self, cluster: str, node: str, limit: int) -> list[NodeEvent]:
        """What happened to one node, the newest first."""

    async def node_events(self, cluster: str, nodes: Collection[str], since: float) -> list[NodeEvent]:
        """What happened to these nodes from a time on, the oldest first."""

    async def breakers(self) -> list[BreakerState]: ...

    async def trip_breaker(self, state: BreakerState) -> BreakerState:
        """Trip one by hand, whether it tripped before or not."""

    async def reset_breaker(self, state: BreakerState) -> BreakerState:
        """Close a breaker that has tripped. Raises NotFound for one that never did."""
