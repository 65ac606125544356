"""The clock, models, wake-ups, receivers and channels, and the archive."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from diagnoser.model import OutboxMessage
from diagnoser.model.alerts import Alert, AlertThread

Clock = Callable[[], float]
"""Seconds since the epoch. Passed in wherever time decides something."""
Pause = Callable[[float], Awaitable[object]]
"""Sleeps between two looks of a loop: for so many seconds, and for longer where nothing changes meanwhile."""


class Sender(Protocol):
    async def send(self, message: OutboxMessage) -> None:
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


class WakeSignal(Protocol):
    """Tells sleeping loops that there is work. Losing a wake-up loses nothing: due rows are swept."""

    def notify(self) -> None: ...

    async def wait(self, timeout: float) -> None: ...  # noqa: ASYNC109 - the caller's longest sleep


class AlertChannel(Protocol):
    """threaded: whether later alerts of an incident join the first one, so that none needs to be held back. resolves:
    whether a recovery ends the whole incident there."""

    threaded: bool
    resolves: bool

    async def post(self, alert: Alert, thread: AlertThread | None, place: str) -> str:
        """Tell an alert, the first of its incident without a thread. place: where, as the channel knows it; "" for its
        usual one. Returns the handle of the thread.

        Raises DeliveryError.
        """


@dataclass(frozen=True, slots=True)
class ArchivedObject:
    """changed: seconds since the epoch."""

    key: str
    changed: float


class Archive(Protocol):
    """Objects by key: letters, digits and ``._:@+=-`` in parts separated by ``/``. An object is never changed. Every
    method may raise Unavailable."""

    async def put(self, key: str, data: bytes) -> None:
        """Durable when it returns. The same object may be put again."""

    async def get(self, key: str, start: int, size: int) -> bytes | None:
        """``size`` bytes from ``start`` on; None when there is no such object."""

    async def delete(self, keys: Collection[str]) -> None:
        """Those that are gone already are no error."""

    async def objects(self, after: str, limit: int) -> list[ArchivedObject]:
        """The next ones after the key ``after``, in an order of the archive's own; "" for the first."""
