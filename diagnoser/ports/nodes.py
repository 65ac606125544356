"""What is known of nodes beside their state: notes, alerts, requests to give them back, and what runs there."""

from collections.abc import Collection, Sequence
from typing import Protocol

from diagnoser.model import NodeAlert, NodeNote, NodeRun, UncordonRequest, UncordonState


class NodeStore(Protocol):
    async def add_note(self, note: NodeNote) -> None: ...

    async def notes(self, cluster: str, node: str, limit: int) -> list[NodeNote]:
        """The newest first."""

    async def unknown_alerts(self, alerts: Sequence[NodeAlert]) -> list[NodeAlert]:
        """Those that were not recorded before, by node, fingerprint and start."""

    async def record_alerts(self, alerts: Sequence[NodeAlert]) -> None:
        """One that is known takes the end that is told. Bounded: of each node the newest are kept."""

    async def nodes_like(self, cluster: str, names: Collection[str]) -> list[str]:
        """Nodes that the cluster's agents named, whose names, short or full, are one of these."""

    async def node_alerts(self, cluster: str, node: str, limit: int) -> list[NodeAlert]:
        """The newest first."""

    async def request_uncordon(self, request: UncordonRequest, oldest: float) -> bool:
        """False when one for this node is open that was made after ``oldest``."""

    async def claim_uncordons(
        self, cluster: str, now: float, lease: float, oldest: float, limit: int
    ) -> list[UncordonRequest]:
        """Open requests of a cluster that no agent holds; an agent that dies loses them after ``lease`` seconds. Those
        made before ``oldest`` are over."""

    async def finish_uncordon(self, id: str, cluster: str, now: float, state: UncordonState, result: str) -> bool:
        """False when it is not known, or of another cluster. What ended once stays as it is."""

    async def uncordons(self, cluster: str, node: str, limit: int) -> list[UncordonRequest]:
        """The newest first."""

    async def running_on(self, cluster: str, names: Collection[str], since: float) -> list[NodeRun]:
        """Launches that the scheduler gave one of the nodes, that have not ended and were heard of after ``since``; the
        last heard first. Looks at a bounded number of them."""

    async def ran_on(self, cluster: str, node: str, limit: int) -> list[NodeRun]:
        """Launches that ended and that the scheduler gave the node, the last first. Looks at a bounded number."""
