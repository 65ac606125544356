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
class ToolSpec:
    """A tool as it is offered to a model. parameters: JSON schema of its arguments."""

    name: str
    purpose: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a model wants to look at. arguments: as the model wrote them, None where they are no JSON object."""

    name: str
    arguments: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class ToolRound:
    """Calls that were run, and what the model reads of each, in the same order."""

    calls: tuple[ToolCall, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One question.

    schema: JSON schema of the answer. max_tokens: of the answer. repair: an answer that could not be read, and the
    message to the model about it, sent as a last turn of the same conversation.
    tools: what the model may look at, () for none. may_call: whether it still may; else it has to answer.
    rounds: what it has looked at so far. follow_up: what is asked behind them. samples: answers that are wanted.
    """

    system: str
    user: str
    schema: Mapping[str, object]
    max_tokens: int
    temperature: float
    repair: tuple[str, str] | None = None
    tools: tuple[ToolSpec, ...] = ()
    may_call: bool = False
    rounds: tuple[ToolRound, ...] = ()
    follow_up: str = ""
    samples: int = 1

    @property
    def texts(self) -> tuple[str, ...]:
        """All that the model reads of it but the tools, in order."""
        looked = [text for tool_round in self.rounds for text in tool_round.results]
        return (self.system, self.user, *looked, self.follow_up, *(self.repair or ()))


@dataclass(frozen=True, slots=True)
class ModelSample:
    """One answer to a question, or what the model wants to look at before it answers."""

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """samples: at least one, at most as many as were wanted: not every server gives more than one at once."""

    samples: tuple[ModelSample, ...]
    model: str
    tokens_in: int
    tokens_out: int

    @property
    def text(self) -> str:
        return self.samples[0].text


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
