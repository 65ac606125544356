"""Lines that belong to no job are counted here by their labels, and handed on now and then.

A site may point everything that it runs at this service: most of that is no training job, and must cost next to
nothing. So a stream is written once in a while, not once a request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from diagnoser.ingest.batch import Batch, Labels, RecordDefaults
from diagnoser.model import UnplacedStream
from diagnoser.model.errors import DiagnoserError, Unavailable
from diagnoser.observability.metrics import Metrics

FLUSH_SECONDS = 5.0
STREAMS = 1000
"""Streams that wait for the sink; the lines of further ones are only counted, under the reason alone."""
LABELS_SHOWN = 64
VALUE_LENGTH = 256
SAMPLE_LENGTH = 1000


@dataclass(eq=False)
class UnattributedStreams:
    """record: stores streams (``adapters.sql.unplaced``). redact: hides secrets in what is kept. ``run`` must be
    running; one instance per process."""

    record: Callable[[Sequence[UnplacedStream]], Awaitable[None]]
    redact: Callable[[str], str]
    metrics: Metrics

    def __post_init__(self) -> None:
        self._waiting: dict[tuple[object, ...], UnplacedStream] = {}

    def note(self, batch: Batch, protocol: str, defaults: RecordDefaults, received: float) -> None:
        """Count what a request brought that belongs to nothing."""
        for unplaced, (lines, sample) in batch.unplaced.items():
            self.metrics.unplaced_lines.labels(unplaced.reason).inc(lines)
            key = (unplaced, protocol, defaults.sender, defaults.cluster)
            known = self._waiting.get(key)
            if known:
                self._waiting[key] = replace(known, lines=known.lines + lines, received=received)
            elif len(self._waiting) < STREAMS:
                self._waiting[key] = UnplacedStream(
                    labels=self._shown_labels(unplaced.labels),
                    reason=unplaced.reason,
                    detail=self._shown(unplaced.detail),
                    protocol=protocol,
                    sample=self._shown(sample)[:SAMPLE_LENGTH],
                    lines=lines,
                    sender=defaults.sender,
                    cluster=defaults.cluster,
                    received=received,
                )

    def _shown(self, text: str) -> str:
        """Without secrets, and without the character that no database stores in a text."""
        return self.redact(text.replace("\0", "\N{REPLACEMENT CHARACTER}"))

    def _shown_labels(self, labels: Labels) -> Labels:
        """All at once, as ``name=value``: names tell secrets too."""
        names, lines = [], []
        for label, value in labels[:LABELS_SHOWN]:
            name = " ".join(label[:VALUE_LENGTH].split())
            names.append(name)
            lines.append(f"{name}={' '.join(value[:VALUE_LENGTH].split())}")
        shown = self._shown("\n".join(lines)).split("\n")
        return tuple((name, line.removeprefix(f"{name}=")) for name, line in zip(names, shown, strict=False))

    async def flush(self) -> None:
        """Hand on what waits. Raises Unavailable; then it still waits. Raises DiagnoserError for what is refused."""
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        try:
            await self.record(list(waiting.values()))
        except Unavailable:
            waiting.update(self._waiting)
            self._waiting = waiting
            raise

    async def run(self) -> None:
        """Flush until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(FLUSH_SECONDS)
                await self._try_flush()
        finally:
            await self._try_flush()

    async def _try_flush(self) -> None:
        try:
            await self.flush()
        except DiagnoserError as error:
            structlog.get_logger().warning("unplaced_not_stored", why=str(error))
