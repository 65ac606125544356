"""HOT PATH 1: bytes -> lines -> compressor -> one committed delta -> acknowledgement.

An acknowledgement means durable. Requests that arrive while a commit runs share the next one. The compressor keeps no
state between commits, so a failed commit leaves nothing half counted in memory.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diagnoser.compress import Compressor, Losses, pack, to_bytes
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
from diagnoser.ingest.fair_queue import FairQueue
from diagnoser.model import NODE_LOG, AttemptKey, LineBlock, Stream
from diagnoser.model.errors import BadInput, Conflict, OutOfScope, Unavailable
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import Append, Cursor, LogStore

FORMATS = {"text": parse_text, "ndjson": parse_ndjson, "json": parse_array}
COMMIT_BYTES = 4 << 20
COMMIT_SPACING = 0.01
"""Least seconds from one commit to the next: a commit has a price of its own, whatever is in it."""
CONFLICT_TRIES = 8
CURSORS_KNOWN = 100_000
INLINE_BYTES = 16 << 10
"""Smaller bodies are parsed on the event loop: a thread would cost more."""
RAW_BYTES = 256 << 10
"""An attempt's share of a commit up to this size is stored as it came, and compressed later with more of it."""

FAILED_SECONDS = 30.0
"""How long one failed commit makes a replica unready, if no other follows."""

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

    received: float
    blocks: list[LineBlock] = field(default_factory=list)
    versions: dict[Stream, int] = field(default_factory=dict)
    covered: dict[Stream, OffsetRanges] = field(default_factory=dict)


class _KnownCursors:
    """What this process wrote last of each stream: mostly nobody else writes to it, and then nothing has to be read.
    A wrong one costs a conflict, never a line."""

    def __init__(self) -> None:
        self._cursors: OrderedDict[tuple[AttemptKey, Stream], Cursor] = OrderedDict()

    def get(self, key: AttemptKey, stream: Stream) -> Cursor | None:
        return self._cursors.get((key, stream))

    def note(self, appends: Sequence[Append]) -> None:
        for append in appends:
            for stream, (version, covered) in append.cursors.items():
                self._cursors[append.attempt, stream] = Cursor(covered, version + 1)
                self._cursors.move_to_end((append.attempt, stream))
        while len(self._cursors) > CURSORS_KNOWN:
            self._cursors.popitem(last=False)

    def forget(self, appends: Sequence[Append]) -> None:
        for append in appends:
            for stream in append.cursors:
                self._cursors.pop((append.attempt, stream), None)


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
        self._pending = FairQueue[_Pending](pending_limit)
        self._committed = -COMMIT_SPACING
        self._failed = -FAILED_SECONDS
        self._known = _KnownCursors()
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

        Raises BadInput, OutOfScope when all lines are of refused jobs, Overloaded when too many lines of this job wait
        already, or Unavailable when they could not be committed.
        """
        parse = FORMATS[format]
        if format == "text" or len(body) <= INLINE_BYTES:  # text costs one count of its lines
            batch = parse(body, defaults, received)
        else:
            batch = await asyncio.to_thread(parse, body, defaults, received)
        if not batch.blocks:
            raise BadInput("no usable line: " + ("; ".join(batch.errors) or "the body holds no record"))
        reasons = await refused({target.job for target in batch.blocks}) if refused else {}
        if reasons and not batch.drop(reasons):
            raise OutOfScope("; ".join(list(reasons.values())[:ERRORS_TOLD]))
        pending = _Pending(batch, received, asyncio.get_running_loop().create_future(), batch.size)
        self._pending.put(next(iter(batch.blocks)).job, pending.size, pending)
        self._arrived.set()
        return await pending.done

    def check_commits(self, now: float) -> None:
        """Raises Unavailable when the newest commit has failed a moment ago: senders should try another replica."""
        if now < self._failed + FAILED_SECONDS:
            raise Unavailable("the newest lines could not be stored")

    async def run(self) -> None:
        """Commit until cancelled; what is pending then is refused, and the shipper sends it again."""
        try:
            while True:
                await self._arrived.wait()
                await self._spaced()
                await self.commit()
        finally:
            while waiting := self._pending.take(COMMIT_BYTES):
                self._refuse(waiting, Unavailable("the service is stopping"))

    async def _spaced(self) -> None:
        """After a quiet moment a request is committed at once; under load a commit waits for more of them."""
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._committed + COMMIT_SPACING - clock()))
        self._committed = clock()

    async def commit(self) -> None:
        """One group commit of what has arrived, up to ``COMMIT_BYTES`` (at least one request)."""
        group = self._pending.take(COMMIT_BYTES)
        if not self._pending:
            self._arrived.clear()
        await self._settle(group)

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
            self._failed = max(pending.received for pending in group)
            refusal = (
                error
                if isinstance(error, Unavailable | BadInput)
                else Unavailable(f"the lines were not stored: {error}")
            )
            self._refuse(group, refusal)
            return
        self._failed = -FAILED_SECONDS
        for pending, receipt in zip(group, receipts, strict=True):
            self._metrics.observe_ingest(receipt, pending.size)
            if not pending.done.done():
                pending.done.set_result(receipt)

    def _refuse(self, group: Sequence[_Pending], error: Exception) -> None:
        for pending in group:
            if not pending.done.done():
                pending.done.set_exception(error)

    async def _commit(self, group: Sequence[_Pending]) -> list[IngestReceipt]:
        keys, new_parts = await self._attempts(group)
        streams: dict[AttemptKey, set[Stream]] = {key: set() for key in keys.values()}
        for pending in group:
            for target, blocks in pending.batch.blocks.items():
                streams[keys[target]].update(block.stream for block in blocks)
        for _ in range(CONFLICT_TRIES):
            cursors = await self._cursors(streams, new_parts)
            appends, receipts, losses = await asyncio.to_thread(self._build, group, keys, cursors)
            try:
                await self._store.append(appends)
            except Conflict:
                self._known.forget(appends)
                continue  # another replica wrote to one of the streams: look again at what is covered
            self._known.note(appends)
            self._metrics.observe_losses(losses)
            await self._revisit(appends)
            return receipts
        raise Unavailable("other writers of the same streams kept winning")

    async def _attempts(
        self, group: Sequence[_Pending]
    ) -> tuple[dict[Target, AttemptKey], dict[AttemptKey, AttemptKey]]:
        """The attempt of each target; and the parts of node logs that begin now, each with the part before it."""
        targets = {target for pending in group for target in pending.batch.blocks}
        unnumbered = {target.job for target in targets if target.attempt is None}
        latest = await self._store.current_attempts(unnumbered) if unnumbered else {}
        hour = node_logs.hour_of(max(pending.received for pending in group))
        begun = {job: number for job, number in latest.items() if _is_node(job) and number < hour}
        latest |= dict.fromkeys(begun, hour)
        keys = {t: AttemptKey(t.job, latest[t.job] if t.attempt is None else t.attempt) for t in targets}
        return keys, {AttemptKey(job, hour): AttemptKey(job, number) for job, number in begun.items()}

    async def _cursors(
        self, streams: Mapping[AttemptKey, Collection[Stream]], new_parts: Mapping[AttemptKey, AttemptKey]
    ) -> AttemptCursors:
        """A new part of a node's log continues the line numbers of the part before, in all of its streams."""
        cursors: AttemptCursors = {key: {} for key in streams}
        unknown: dict[AttemptKey, set[Stream]] = {}
        for key, own in streams.items():
            for stream in own:
                cursor = self._known.get(key, stream)
                if cursor:
                    cursors[key][stream] = cursor
                else:
                    unknown.setdefault(key, set()).add(stream)
        if unknown:
            for key, stored in (await self._store.stream_cursors(unknown)).items():
                cursors[key] |= stored
        if new_parts:
            before = await self._store.cursors(list(new_parts.values()))
            for key, part in new_parts.items():
                if not cursors[key]:
                    cursors[key] = {stream: Cursor(cursor.covered) for stream, cursor in before[part].items()}
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
                    key, _new_commit(pending.received, cursors.get(key, {}))
                )
                commit.received = max(commit.received, pending.received)
                for block in map(node_logs.with_times, blocks) if _is_node(key.job) else blocks:
                    offered += block.lines
                    accepted += _add_missing(commit, block, cursors.get(key, {}).get(block.stream, Cursor()))
                    cut += _too_long(block.data)
            batch = pending.batch
            receipts.append(IngestReceipt(accepted, offered - accepted, batch.rejected, cut, tuple(batch.errors)))
        losses: list[Losses] = []
        return [self._append(key, commit, losses) for key, commit in commits.items()], receipts, losses

    def _append(self, key: AttemptKey, commit: _AttemptCommit, losses: list[Losses]) -> Append:
        """losses: what compression drops is added to it."""
        cursors = {stream: (commit.versions[stream], ranges) for stream, ranges in commit.covered.items()}
        compressor, size = self._compressor(), sum(len(block.data) for block in commit.blocks)
        if 0 < size <= RAW_BYTES and not _is_node(key.job):  # what nodes say is rare, and read by many attempts
            text = b"\n".join(block.data.removesuffix(b"\n") for block in commit.blocks)
            fatal = compressor.has_fatal(text)
            return Append(key, pack(commit.blocks), commit.received, cursors, fatal, size)
        for block in commit.blocks:
            compressor.feed(block)
        delta = compressor.take()
        losses.append(delta.losses)
        return Append(key, to_bytes(delta), commit.received, cursors, delta.fatal)


def _is_node(job: str) -> bool:
    return job.startswith(NODE_LOG)


def _new_commit(received: float, cursors: Mapping[Stream, Cursor]) -> _AttemptCommit:
    """Cursors carried over from an earlier part are not stored yet: version 0."""
    carried = {stream: cursor.covered for stream, cursor in cursors.items() if not cursor.version}
    return _AttemptCommit(received, versions=dict.fromkeys(carried, 0), covered=carried)


def _too_long(data: bytes) -> int:
    """Lines whose middle the compressor will cut."""
    return sum(len(line) > LONGEST for line in data.split(b"\n")) if len(data) > LONGEST else 0


def _add_missing(commit: _AttemptCommit, block: LineBlock, cursor: Cursor) -> int:
    """Add the lines of ``block`` that the stream lacks; returns their number."""
    stream = block.stream
    commit.versions.setdefault(stream, cursor.version)
    covered = commit.covered.setdefault(stream, cursor.covered)
    first = block.first or (covered[-1][1] + 1 if covered else 1)
    last = first + block.data.count(b"\n") - block.data.endswith(b"\n")
    gaps = missing(covered, first, last)
    if gaps == [(first, last)]:
        commit.blocks.append(replace(block, first=first))
    elif gaps:
        lines = block.data.removesuffix(b"\n").split(b"\n")
        for low, high in gaps:
            commit.blocks.append(_part(block, lines, low - first, high - first + 1, low))
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
