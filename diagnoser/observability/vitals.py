"""Reads the vitals, and remembers them for some seconds: pages and scrapes may ask as often as they like."""

import asyncio
from typing import Protocol

from diagnoser.model.blind_spots import BlindSpot
from diagnoser.model.vitals import Vitals
from diagnoser.observability.blind_spots import THRESHOLDS, find_blind_spots
from diagnoser.ports import Clock

FRESH_SECONDS = 5.0


class VitalsSource(Protocol):
    """``adapters.sql.vitals.VitalRepository``."""

    async def read(self, now: float, silent_seconds: float, begin_seconds: float) -> Vitals: ...


class VitalsReader:
    def __init__(self, source: VitalsSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._vitals: Vitals | None = None
        self._reading = asyncio.Lock()

    async def vitals(self) -> Vitals:
        """Raises Unavailable: nothing old is given out for what is there now."""
        async with self._reading:
            if self._vitals is None or self._clock() - self._vitals.time >= FRESH_SECONDS:
                self._vitals = None
                self._vitals = await self._source.read(self._clock(), THRESHOLDS.job, THRESHOLDS.first_line)
            return self._vitals

    async def blind_spots(self) -> list[BlindSpot]:
        """The most serious first. Raises Unavailable."""
        return find_blind_spots(await self.vitals())
