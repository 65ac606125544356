"""What receives the messages of the outbox: it is away now and then, answers that get lost, and senders that die."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diagnoser.model import OutboxMessage
from diagnoser.model.errors import DeliveryError
from diagnoser.model.plans import MessageKind
from tests.simulation.virtual_time import Killed, Process

if TYPE_CHECKING:
    from tests.simulation.site import Site

SLOW_SECONDS = 20.0
"""Longest time that a receiver takes: several leases of a sender, who renews them."""
CALM_SECONDS = 60.0
"""How long what was begun in trouble may go on behind it: leases that ran out, and tries that wait."""


@dataclass
class Deliveries:
    """What receivers got: each message at least once, however often its answer was lost.

    bodies: by key. calm: when there is no trouble any more, and how often each message came since, by key. woken: by
    messages about plans.
    """

    bodies: dict[str, bytes] = field(default_factory=dict)
    calm: float = float("inf")
    in_calm: Counter[str] = field(default_factory=Counter)
    woken: dict[str, asyncio.Event] = field(default_factory=dict)
    wrongs: list[str] = field(default_factory=list)

    def receive(self, message: OutboxMessage) -> None:
        if self.bodies.setdefault(message.key, message.body) != message.body:
            self.wrongs.append(f"message {message.key} came with two bodies")
        if asyncio.get_running_loop().time() > self.calm:
            self.in_calm[message.key] += 1
        if message.kind is MessageKind.RECOVERY:
            for woken in self.woken.values():
                woken.set()


@dataclass
class Channel:
    """The way from one replica to the receivers."""

    site: "Site"
    process: Process

    async def send(self, message: OutboxMessage) -> None:
        chance, trouble = self.site.chance, self.site.trouble
        await asyncio.sleep(chance.uniform(0.0, chance.choice((2.0, SLOW_SECONDS))))
        await self.process.go_on()
        if chance.random() < 2 * trouble:
            raise DeliveryError("the receiver is away", permanent=False)
        self._die_now_and_then()
        self.site.deliveries.receive(message)
        self._die_now_and_then()
        if chance.random() < trouble:
            raise DeliveryError("the answer was lost", permanent=False)

    def _die_now_and_then(self) -> None:
        """Raises Killed."""
        if self.site.chance.random() < self.site.trouble / 2:
            self.site.bury(self.process)
            raise Killed
