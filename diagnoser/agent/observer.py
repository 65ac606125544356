"""Reports to the service what happens on a cluster: jobs with their nodes and ends, their logs, and the nodes."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

import structlog

from diagnoser.agent import state_file
from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.changes import JobRegistration, LifecycleEvent
from diagnoser.agent.cluster import ClusterSnapshot, J, JobSource
from diagnoser.agent.nodes import NodeRecord, NodeStatus, node_events
from diagnoser.agent.places import Places, merged
from diagnoser.agent.state_file import AgentState
from diagnoser.model.errors import BadInput, NotFound, Unavailable

JOBS_AT_ONCE = 8
LONGEST_WAIT = 30.0

log = structlog.get_logger()


@dataclass(slots=True)
class Observer(Generic[J]):
    """path: of the state file. state: shared with the source, and changed in place. saved: what the file holds.
    places: of nodes, as the operator says. reported_places: what was reported of them."""

    client: ApiClient
    source: JobSource[J]
    cluster: str
    path: Path
    state: AgentState
    saved: bytes = b""
    places: Places = field(default_factory=dict)
    reported_places: Places = field(default_factory=dict)

    async def run(self, poll: float) -> None:
        """For ever, at most ``poll`` seconds between two looks, more after failures. An agent that is stopped within a
        look saves what it has reported until then."""
        try:
            pause = poll
            while True:
                try:
                    await self.poll_once()
                    pause = poll
                except (Unavailable, BadInput, OSError) as error:
                    pause = min(2 * pause, max(LONGEST_WAIT, poll))
                    log.warning("look_failed", why=str(error), again_in=pause)
                    await asyncio.sleep(pause - poll)
                await self.source.wait(poll)
        finally:
            with suppress(OSError):
                self._save()

    async def poll_once(self) -> None:
        """One look at everything. Raises Unavailable when the cluster or the service is away; what was sent until then
        is not sent again."""
        snapshot = await self.source.snapshot(self.state)
        self.state.jobs = {key: checkpoint for key, checkpoint in self.state.jobs.items() if key in snapshot.jobs}
        away = await self._report_nodes(snapshot.nodes.values())
        await self._report_places(snapshot)
        turn = asyncio.Semaphore(JOBS_AT_ONCE)

        async def follow(key: str) -> None:
            async with turn:
                await self._follow(key, snapshot)

        outcomes = await asyncio.gather(*map(follow, snapshot.jobs), return_exceptions=True)
        failures = [*away, *(outcome for outcome in outcomes if outcome is not None)]
        if not failures:
            self.state.time = snapshot.time
        self._save()
        if failures:
            raise failures[0]

    async def _follow(self, key: str, snapshot: ClusterSnapshot[J]) -> None:
        """Updates the state after each report, so that a retry does not repeat it."""
        job, jobs = snapshot.jobs[key], self.state.jobs
        if key not in jobs:
            checkpoint = await self.source.first_checkpoint(job)
            if checkpoint is None:
                return
            jobs[key] = checkpoint
        after, changes = self.source.diff(job, snapshot.nodes, jobs[key])
        for change, known in changes:
            if isinstance(change, LifecycleEvent) and change.ends:
                await self.source.ship(job, jobs[key], rest=True)
            await self._report(known.job, change)
            jobs[key] = known
        jobs[key] = after
        await self.source.ship(job, after, rest=False)

    async def _report(self, job: str, change: JobRegistration | LifecycleEvent) -> None:
        """Report a change of a job; one that the service will never accept is skipped. Raises Unavailable."""
        try:
            if isinstance(change, JobRegistration):
                await self.client.register(change.body)
                return
            if change.lines:
                body = "".join(f"{line}\n" for line in change.lines).encode()
                await self.client.lines(job, change.attempt, self.source.log_source, 0, body)
            await self.client.event(job, change.body)
        except BadInput as error:
            log.warning("job_refused", job=job, why=str(error))

    async def _report_nodes(self, nodes: Iterable[NodeRecord]) -> list[Unavailable]:
        """Report changes of nodes; what could not be sent now is sent at the next look."""
        current = list(nodes)
        names, away = {node.name for node in current}, list[Unavailable]()
        self.state.nodes = {name: status for name, status in self.state.nodes.items() if name in names}
        for node, status, event in node_events(self.state.nodes, current, self.state.returned):
            try:
                if event:
                    await self._report_node(node, status, event)
            except Unavailable as error:
                log.warning("node_event_waits", node=node.name, why=str(error))
                away.append(error)
                continue
            except BadInput as error:
                log.warning("node_event_refused", node=node.name, why=str(error))
            self.state.nodes[node.name] = status
            if status.kind != "cordoned":
                self.state.returned.pop(node.name, None)
        return away

    async def _report_node(self, node: NodeRecord, status: NodeStatus, event: Mapping[str, object]) -> None:
        """Report what is new about a node. The event proves that it is down; the scheduler's own line about that makes
        failures there be looked at again."""
        await self.client.node(node.name, {**event, "cluster": self.cluster})
        if status.kind == "down" and node.record:
            await self.client.node_lines(self.cluster, node.name, f"{node.record}\n".encode())

    async def _report_places(self, snapshot: ClusterSnapshot[J]) -> None:
        """Report where nodes stand, once and when one has changed. Nothing waits for it: without places each node fails
        by itself."""
        by_record = {node.name: node.places for node in snapshot.nodes.values() if node.places}
        places = merged(self.places, snapshot.places, by_record)
        known = {node: places[node] for node in sorted(places) if node in snapshot.nodes}
        if known == self.reported_places:
            return
        try:
            await self.client.places(self.cluster, known)
        except (BadInput, NotFound) as error:
            log.warning("places_refused", why=str(error))  # an older service knows none
        except Unavailable as error:
            log.warning("places_wait", why=str(error))
            return
        self.reported_places = known

    def _save(self) -> None:
        """Only what has changed. Raises OSError."""
        data = state_file.encode(self.state)
        if data != self.saved:
            state_file.save(self.path, data)
            self.saved = data
