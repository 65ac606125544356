"""What a channel for alerts consists of. Adding one takes a folder with a ``Channel``, and a line in ``CHANNELS``.

A channel loads what it sends and draws with at first use: every command imports the registry for its settings.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel

if TYPE_CHECKING:
    import httpx
    from starlette.routing import BaseRoute

    from diagnoser.ports import AlertChannel, Clock, Sender


class Transport(NamedTuple):
    """What a channel sends with. allow_private: it may send to private addresses."""

    client: "httpx.AsyncClient"
    clock: "Clock"
    allow_private: bool = False


OpenReceiver = Callable[[Transport], "AlertChannel"]
"""Raises BadInput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A kind of receivers of alerts. Settings, as functions take them, hold the fields of all channels.

    settings: its group of fields; their names are public.

    receivers: those that the settings name, not opened yet. Raises BadInput.

    rate: messages that may be sent a second to its receiver of the same name; 0 for no limit.

    routes: what people press in its messages and ask there arrives here.

    answers: sends what people are answered there. Raises BadInput.
    """

    name: str
    settings: type[BaseModel]
    receivers: Callable[[Any], Mapping[str, OpenReceiver]]
    rate: float = 0.0
    routes: "Callable[[Any], Sequence[BaseRoute]] | None" = None
    answers: "Callable[[Any, Transport], Sender] | None" = None
