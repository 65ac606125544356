"""HOT PATH 1: bytes -> lines -> compressor -> one committed delta -> acknowledgement.

An acknowledgement means durable. Requests that arrive while a commit runs share the next one. The compressor keeps no
state between commits, so a failed commit leaves nothing half counted in memory.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diagnoser.compress import Compressor, Losses, to_bytes
from diagnoser.compress.lines import LONGEST
from diagnoser.diagnosis import node_logs
from diagnoser.ingest import (
    ERRORS_TOLD,
    Batch,
    OffsetRanges,
    RecordDefaults,
    Target,
    covered_with,
    missing,
    parse_array,
    parse_ndjson,
    parse_text,
)
from diagnoser.model import NODE_LOG, AttemptKey, LineBlock, Stream
from diagnoser.model.errors import BadInput, Conflict, OutOfScope, Unavailable
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import Append, Cursor, LogStore

FORMATS = {"text": parse_text, "ndjson": parse_ndjson, "json": parse_array}
COMMIT_BYTES = 4 << 20
CONFLICT_TRIES = 8

RefusedJobs = Callable[[Collection[str]], Awaitable[Mapping[str, str]]]
"""Those of some jobs that the sender may send nothing of, each with the reason."""

AttemptCursors = dict[AttemptKey, dict[Stream, Cursor]]


@dataclass(frozen=True, slots=True)
class IngestReceipt:
    """What became of a request. duplicates: numbered lines that were stored already. cut: lines over the line limit."""

    lines: int = 0
    duplicates: int = 0
    rejected: int = 0
    cut: int = 0
    errors: tuple[str, ...] = ()


@dataclass(slots=True)
class _Pending:
    """A parsed request that waits for its commit."""

    batch: Batch
    received: float
    done: asyncio.Future[IngestReceipt]
    size: int


@dataclass(slots=True)
class _AttemptCommit:
    """What one commit writes for one attempt."""

    compressor: Compressor
    received: float
    versions: dict[Stream, int] = field(default_factory=dict)
    covered: dict[Stream, OffsetRanges] = field(default_factory=dict)


class IngestService:
    """Accepts requests and commits them in groups. ``run`` must be running; one instance per process."""

    def __init__(
        self,
        store: LogStore,
        compressor: Callable[[], Compressor],
        metrics: Metrics,
        *,
        pending_limit: int,
    ) -> None:
        self._store = store
        self._compressor = compressor
        self._metrics = metrics
        self._pending_limit = pending_limit
        self._pending: list[_Pending] = []
        self._arrived = asyncio.Event()

    async def accept(
        self,
        body: bytes,
        format: str,
        defaults: RecordDefaults,
        received: float,
        refused: RefusedJobs | None = None,
    ) -> IngestReceipt:
        """Returns once the lines are committed. refused: None when the sender may send lines of any job.

        Raises BadInput, OutOfScope when all lines are of refused jobs, or Unavailable when they could not be committed.
        """
        batch = await asyncio.to_thread(FORMATS[format], body, defaults, received)
        if not batch.blocks:
            raise BadInput("no usable line: " + ("; ".join(batch.errors) or "the body holds no record"))
        reasons = await refused({target.job for target in batch.blocks}) if refused else {}
        if reasons and not batch.drop(reasons):
            raise OutOfScope("; ".join(list(reasons.values())[:ERRORS_TOLD]))
        if sum(pending.size for pending in self._pending) + batch.size > self._pending_limit:
            raise Unavailable("too many lines wait for the database")
        pending = _Pending(batch, received, asyncio.get_running_loop().create_future(), batch.size)
        self._pending.append(pending)
        self._arrived.set()
        return await pending.done

    async def run(self) -> None:
        """Commit until cancelled; what is pending then is refused, and the shipper sends it again."""
        try:
            while True:
                await self._arrived.wait()
                await self.commit()
        finally:
            self._refuse(self._pending, Unavailable("the service is stopping"))

    async def commit(self) -> None:
        """One group commit of what has arrived, up to ``COMMIT_BYTES`` (at least one request)."""
        await self._settle(self._next_group())

    async def _settle(self, group: Sequence[_Pending]) -> None:
        try:
            receipts = await self._commit(group)
        except asyncio.CancelledError:
            self._refuse(group, Unavailable("the service is stopping"))
            raise
        except Exception as error:
            if isinstance(error, BadInput) and len(group) > 1:
                for pending in group:  # one request that cannot be stored must not take the others with it
                    await self._settle([pending])
                return
            self._metrics.observe_failed_commit(error)
            refusal = (
                error
                if isinstance(error, Unavailable | BadInput)
                else Unavailable(f"the lines were not stored: {error}")
            )
            self._refuse(group, refusal)
            return
        for pending, receipt in zip(group, receipts, strict=True):
            self._metrics.observe_ingest(receipt, pending.size)
            if not pending.done.done():
                pending.done.set_result(receipt)

    def _next_group(self) -> list[_Pending]:
        size, count = 0, 0
        for pending in self._pending:
            if count and size + pending.size > COMMIT_BYTES:
                break
            size, count = size + pending.size, count + 1
        group, self._pending = self._pending[:count], self._pending[count:]
        if not self._pending:
            self._arrived.clear()
        return group

    def _refuse(self, group: Sequence[_Pending], error: Exception) -> None:
        for pending in group:
            if not pending.done.done():
                pending.done.set_exception(error)

    async def _commit(self, group: Sequence[_Pending]) -> list[IngestReceipt]:
        keys = await self._attempts(group)
        for _ in range(CONFLICT_TRIES):
            cursors = await self._cursors(set(keys.values()))
            appends, receipts, losses = await asyncio.to_thread(self._build, group, keys, cursors)
            try:
                await self._store.append(appends)
            except Conflict:
                continue  # another replica wrote to one of the streams: look again at what is covered
            self._metrics.observe_losses(losses)
            await self._revisit(appends)
            return receipts
        raise Unavailable("other writers of the same streams kept winning")

    async def _attempts(self, group: Sequence[_Pending]) -> dict[Target, AttemptKey]:
        targets = {target for pending in group for target in pending.batch.blocks}
        latest = {job: await self._store.current_attempt(job) for job in {t.job for t in targets if t.attempt is None}}
        hour = node_logs.hour_of(max(pending.received for pending in group))
        latest = {job: max(number, hour) if _is_node(job) else number for job, number in latest.items()}
        return {t: AttemptKey(t.job, latest[t.job] if t.attempt is None else t.attempt) for t in targets}

    async def _cursors(self, keys: Collection[AttemptKey]) -> AttemptCursors:
        """A new part of a node's log continues the line numbers of the part before."""
        cursors = await self._store.cursors(sorted(keys))
        for key in keys:
            if _is_node(key.job) and not cursors[key]:
                latest = AttemptKey(key.job, await self._store.current_attempt(key.job))
                previous = (await self._store.cursors([latest]))[latest]
                cursors[key] = {stream: Cursor(cursor.covered) for stream, cursor in previous.items()}
        return cursors

    async def _revisit(self, appends: Sequence[Append]) -> None:
        """A node reported a fault: attempts that failed there shortly before are diagnosed again."""
        for append in appends:
            if _is_node(append.attempt.job) and append.fatal:
                await self._store.revisit(append.attempt.job, append.received - node_logs.AFTER, append.received)

    def _build(
        self, group: Sequence[_Pending], keys: Mapping[Target, AttemptKey], cursors: AttemptCursors
    ) -> tuple[list[Append], list[IngestReceipt], list[Losses]]:
        commits: dict[AttemptKey, _AttemptCommit] = {}
        receipts = []
        for pending in group:
            accepted = offered = cut = 0
            for target, blocks in pending.batch.blocks.items():
                key = keys[target]
                commit = commits.get(key) or commits.setdefault(
                    key, _new_commit(self._compressor(), pending.received, cursors.get(key, {}))
                )
                commit.received = max(commit.received, pending.received)
                for block in map(node_logs.with_times, blocks) if _is_node(key.job) else blocks:
                    offered += block.data.count(b"\n") + (not block.data.endswith(b"\n"))
                    accepted += _feed_missing(commit, block, cursors.get(key, {}).get(block.stream, Cursor()))
                    cut += _too_long(block.data)
            batch = pending.batch
            receipts.append(IngestReceipt(accepted, offered - accepted, batch.rejected, cut, tuple(batch.errors)))
        appends, losses = zip(*(_append(key, commit) for key, commit in commits.items()), strict=True)
        return list(appends), receipts, list(losses)


def _is_node(job: str) -> bool:
    return job.startswith(NODE_LOG)


def _new_commit(compressor: Compressor, received: float, cursors: Mapping[Stream, Cursor]) -> _AttemptCommit:
    """Cursors carried over from an earlier part are not stored yet: version 0."""
    carried = {stream: cursor.covered for stream, cursor in cursors.items() if not cursor.version}
    return _AttemptCommit(compressor, received, dict.fromkeys(carried, 0), carried)


def _too_long(data: bytes) -> int:
    """Lines whose middle the compressor will cut."""
    return sum(len(line) > LONGEST for line in data.split(b"\n")) if len(data) > LONGEST else 0


def _feed_missing(commit: _AttemptCommit, block: LineBlock, cursor: Cursor) -> int:
    """Feed the lines of ``block`` that the stream lacks; returns their number."""
    stream = block.stream
    commit.versions.setdefault(stream, cursor.version)
    covered = commit.covered.setdefault(stream, cursor.covered)
    first = block.first or (covered[-1][1] + 1 if covered else 1)
    last = first + block.data.count(b"\n") - block.data.endswith(b"\n")
    gaps = missing(covered, first, last)
    if gaps == [(first, last)]:
        commit.compressor.feed(replace(block, first=first))
    elif gaps:
        lines = block.data.removesuffix(b"\n").split(b"\n")
        for low, high in gaps:
            commit.compressor.feed(_part(block, lines, low - first, high - first + 1, low))
    commit.covered[stream] = covered_with(covered, first, last)
    return sum(high - low + 1 for low, high in gaps)


def _part(block: LineBlock, lines: list[bytes], start: int, stop: int, first: int) -> LineBlock:
    last = stop == len(lines)
    end = b"" if last and not block.data.endswith(b"\n") else b"\n"
    return LineBlock(
        stream=block.stream,
        data=b"\n".join(lines[start:stop]) + end,
        first=first,
        times=block.times[start:stop] if block.times else None,
        received=block.received,
    )


def _append(key: AttemptKey, commit: _AttemptCommit) -> tuple[Append, Losses]:
    delta = commit.compressor.take()
    cursors = {stream: (commit.versions[stream], ranges) for stream, ranges in commit.covered.items()}
    return Append(key, to_bytes(delta), commit.received, cursors, delta.fatal), delta.losses
