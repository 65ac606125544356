"""Tells people what the service cannot see, once when it begins and once when it is over.

Each replica does it: whoever stores the change first sends what tells of it, in the same transaction.
"""

from dataclasses import dataclass

import structlog

from diagnoser.adapters.sql.vitals import VitalRepository
from diagnoser.model.vitals import BlindSpot
from diagnoser.observability.vitals import VitalsReader
from diagnoser.planning.planner import DecisionPlanner
from diagnoser.ports import Clock, WakeSignal

PERIOD = 15.0


@dataclass(frozen=True)
class BlindSpotWatch:
    """``step`` it each ``PERIOD``. outbox: notified when there is something to send."""

    store: VitalRepository
    reader: VitalsReader
    planner: DecisionPlanner
    clock: Clock
    outbox: WakeSignal

    async def step(self) -> None:
        """Compare what is there with what was told. Raises Unavailable."""
        current = {(spot.kind, spot.subject): spot for spot in await self.reader.blind_spots()}
        told = {(spot.kind, spot.subject): spot for spot in await self.store.blind_spots()}
        now = self.clock()
        for key, spot in current.items():
            if key not in told and await self.store.begin_blind_spot(spot, self.planner.alert_blind_spot(spot, now)):
                self._report(spot, "begun")
        for key, spot in told.items():
            messages = self.planner.alert_blind_spot(spot, now, ended=True)
            if key not in current and await self.store.end_blind_spot(spot, messages):
                self._report(spot, "ended")

    def _report(self, spot: BlindSpot, change: str) -> None:
        self.outbox.notify()
        level = structlog.get_logger().warning if change == "begun" else structlog.get_logger().info
        level("blind_spot", change=change, kind=spot.kind.value, subject=spot.subject, what=spot.what)
