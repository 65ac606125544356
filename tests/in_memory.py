"""Receivers and a model that hold in memory what they get."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from diagnoser.model import OutboxMessage, UnplacedStream
from diagnoser.model.errors import DeliveryError, ModelFailed, ModelFailure
from diagnoser.ports import ModelAnswer, ModelRequest


class RecordingSender:
    """A receiver in memory. ``faults`` are raised by the first sends, in order; None lets one through."""

    def __init__(self, faults: Iterable[DeliveryError | None] = ()) -> None:
        self.sent: list[OutboxMessage] = []
        self._faults = iter(faults)

    async def send(self, message: OutboxMessage) -> None:
        fault = next(self._faults, None)
        if fault is not None:
            raise fault
        self.sent.append(message)


class RecentUnplaced:
    """A sink of unplaced streams in memory: the newest ``limit`` of them, those of equal labels as one."""

    def __init__(self, limit: int = 500) -> None:
        self._limit = limit
        self._streams: dict[UnplacedStream, UnplacedStream] = {}

    @property
    def streams(self) -> list[UnplacedStream]:
        """The one with the newest lines last."""
        return list(self._streams.values())

    async def record_unplaced(self, streams: Sequence[UnplacedStream]) -> None:
        for stream in streams:
            key = replace(stream, lines=0, sample="", received=0.0)
            known = self._streams.pop(key, None)
            self._streams[key] = replace(stream, lines=stream.lines + (known.lines if known else 0))
        while len(self._streams) > self._limit:
            del self._streams[next(iter(self._streams))]


class ScriptedModel:
    """A language model that gives prepared answers, in order, and records the prompts."""

    def __init__(self, answers: Iterable[ModelAnswer | ModelFailed], name: str = "scripted") -> None:
        self.name = name
        self.asked: list[ModelRequest] = []
        self._answers = iter(answers)

    async def ask(self, request: ModelRequest) -> ModelAnswer:
        self.asked.append(request)
        answer = next(self._answers, None)
        if answer is None:
            raise ModelFailed(ModelFailure.UNAVAILABLE, "no answer is left in the script")
        if isinstance(answer, ModelFailed):
            raise answer
        return answer

    async def context(self) -> int | None:
        return None
