"""The vitals, remembered for some seconds so that pages and scrapes may ask as often as they like; and as metrics."""

import asyncio
import platform
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.registry import Collector

from diagnoser.model.vitals import BlindSpot, BlindSpotKind, PoolUse, Vitals, Waiting
from diagnoser.observability.blind_spots import AGENT_REQUEST, FIRST_JOB_LINE, JOB_LINE, find_blind_spots
from diagnoser.ports import Clock

FRESH_SECONDS = 5.0


class VitalsReader:
    """read: as ``VitalRepository.read``."""

    def __init__(self, read: Callable[[float, float, float], Awaitable[Vitals]], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._vitals: Vitals | None = None
        self._reading = asyncio.Lock()

    async def vitals(self) -> Vitals:
        """Raises Unavailable: nothing old is given out for what is there now."""
        async with self._reading:
            if self._vitals is None or not 0 <= self._clock() - self._vitals.time < FRESH_SECONDS:
                self._vitals = await self._read(self._clock(), JOB_LINE, FIRST_JOB_LINE)
            return self._vitals

    async def blind_spots(self) -> list[BlindSpot]:
        """The most serious first. Raises Unavailable."""
        return find_blind_spots(await self.vitals())


class VitalsCollector(Collector):
    """vitals: None while the database does not answer: nothing old is shown then. pool: connections to it."""

    def __init__(self, vitals: Vitals | None, pool: PoolUse, version: str) -> None:
        self._vitals = vitals
        self._pool = pool
        self._version = version

    def collect(self) -> Iterator[Metric]:
        yield _gauge(
            "diagnoser_build_info",
            "Version of the service and of its Python; always 1",
            [({"version": self._version, "python": platform.python_version()}, 1.0)],
        )
        yield _gauge(
            "diagnoser_database_up",
            "1 while the database answers; the figures that come from it are missing while it does not",
            [({}, float(self._vitals is not None))],
        )
        yield _gauge(
            "diagnoser_database_connections",
            "Connections to the database of the process that answers",
            [({"state": "used"}, self._pool.used), ({"state": "idle"}, self._pool.idle)],
        )
        if self._vitals:
            yield from _families(self._vitals)


def _families(vitals: Vitals) -> Iterator[Metric]:
    kinds = Counter(spot.kind for spot in find_blind_spots(vitals))
    silent = sum(vitals.time - agent.last_seen > AGENT_REQUEST for agent in vitals.agents)
    yield _gauge(
        "diagnoser_blind_spots",
        "What the service cannot see at the moment, by kind",
        [({"kind": kind.value}, kinds[kind]) for kind in BlindSpotKind],
    )
    yield _gauge(
        "diagnoser_last_line_timestamp_seconds",
        "When the newest line of any job came in, in seconds since the epoch; 0 when none did within a day",
        [({}, vitals.newest_line)],
    )
    yield _gauge(
        "diagnoser_attempts",
        "Attempts that have begun and not ended, as a scheduler or launcher says, without a verdict",
        [
            ({"state": "printing"}, vitals.running - vitals.silent.count),
            ({"state": "silent"}, vitals.silent.count),
            ({"state": "without_lines"}, vitals.mute.count),
        ],
    )
    yield _gauge(
        "diagnoser_agents",
        "Agents seen within a week, by whether they ask for plans",
        [({"state": "heard"}, len(vitals.agents) - silent), ({"state": "silent"}, silent)],
    )
    yield _gauge(
        "diagnoser_nodes_with_logs",
        "Nodes whose own log sent a line within a day",
        [({}, sum(map(len, vitals.node_logs.values())))],
    )
    yield _gauge(
        "diagnoser_attempts_due", "Attempts that failed or ended and wait for a verdict", [({}, vitals.due.count)]
    )
    yield _gauge(
        "diagnoser_attempts_oldest_due_age_seconds",
        "For how long the first of them has waited; 0 where none waits",
        [({}, _age(vitals, vitals.due))],
    )
    yield _gauge(
        "diagnoser_outbox_messages",
        "Messages that wait: due and not tried yet or again, or tried in vain",
        [({"state": "due"}, vitals.messages.count), ({"state": "undelivered"}, vitals.undelivered.count)],
    )
    yield _gauge(
        "diagnoser_outbox_oldest_age_seconds",
        "For how long the first of them has been due, or exists and was tried in vain; 0 where none is",
        [
            ({"state": "due"}, _age(vitals, vitals.messages)),
            ({"state": "undelivered"}, _age(vitals, vitals.undelivered)),
        ],
    )
    yield _gauge(
        "diagnoser_leases",
        "What workers have claimed at the moment",
        [({"of": name}, count) for name, count in sorted(vitals.leased.items())],
    )
    yield _gauge(
        "diagnoser_uncompressed_bytes", "Log text that is stored and not compressed yet", [({}, vitals.raw_bytes)]
    )
    yield _gauge(
        "diagnoser_breakers_tripped",
        "Clusters and partitions where plans that take out nodes need approval",
        [({}, vitals.tripped)],
    )


def _age(vitals: Vitals, waiting: Waiting) -> float:
    return max(0.0, vitals.time - waiting.since) if waiting.count else 0.0


def _gauge(name: str, meaning: str, samples: Sequence[tuple[dict[str, str], float]]) -> Metric:
    family = Metric(name, meaning, "gauge")
    for labels, value in samples:
        family.add_sample(name, labels, value)
    return family
