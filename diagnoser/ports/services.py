"""The clock, receivers, models and wake-ups."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model import OutboxMessage

Clock = Callable[[], float]
"""Seconds since the epoch. Passed in wherever time decides something."""


class Sender(Protocol):
    async def send(self, effect: OutboxMessage) -> None:
        """Deliver once. Raises DeliveryError, which knows whether another try can help, Withheld and Deferred."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One question.

    schema: JSON schema of the answer. max_tokens: of the answer. repair: an answer that could not be read, and the
    message to the model about it, sent as a second turn of the same conversation.
    """

    system: str
    user: str
    schema: Mapping[str, object]
    max_tokens: int
    temperature: float
    repair: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    text: str
    model: str
    tokens_in: int
    tokens_out: int


class LanguageModel(Protocol):
    name: str

    async def ask(self, request: ModelRequest) -> ModelAnswer:
        """Raises ModelFailed."""

    async def context(self) -> int | None:
        """Most tokens of question and answer together, None when the server does not say. Never raises."""


class Embedder(Protocol):
    """Text to vectors of one length. name: of the model; vectors of two names are never compared."""

    name: str

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector per text. Raises ModelFailed."""


class WakeSignal(Protocol):
    """Tells sleeping loops that there is work. Losing a wake-up loses nothing: due rows are swept."""

    def notify(self) -> None: ...

    async def wait(self, timeout: float) -> None: ...  # noqa: ASYNC109 - the caller's longest sleep
