"""Tells people what the service cannot see, once when it begins and once when it is over.

Each replica does it: whoever stores the change first sends what tells of it, in the same transaction.
"""

import structlog

from diagnoser.adapters.sql.vitals import VitalRepository
from diagnoser.model.vitals import BlindSpot
from diagnoser.observability.vitals import VitalsReader
from diagnoser.planning.planner import DecisionPlanner
from diagnoser.ports import Clock, WakeSignal

PERIOD = 15.0


async def alert_blind_spots(
    store: VitalRepository, reader: VitalsReader, planner: DecisionPlanner, clock: Clock, outbox: WakeSignal
) -> None:
    """Compare what is there with what people know. outbox: notified when there is something to send. Raises
    Unavailable."""
    current = {(spot.kind, spot.subject): spot for spot in await reader.blind_spots()}
    known = {(spot.kind, spot.subject): spot for spot in await store.blind_spots()}
    now, log = clock(), structlog.get_logger()
    for key, spot in current.items():
        if key not in known and await store.begin_blind_spot(spot, planner.alert_blind_spot(spot, now)):
            outbox.notify()
            log.warning("blind_spot", change="begun", **_shown(spot))
    for key, spot in known.items():
        messages = planner.alert_blind_spot(spot, now, ended=True)
        if key not in current and await store.end_blind_spot(spot, messages):
            outbox.notify()
            log.info("blind_spot", change="ended", **_shown(spot))


def _shown(spot: BlindSpot) -> dict[str, str]:
    return {"kind": spot.kind.value, "subject": spot.subject, "what": spot.what}
