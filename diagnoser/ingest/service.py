"""HOT PATH 1: requests that arrive together are parsed, share one commit, and are acknowledged once it is durable.

Lines are stored as they came, after one look for fatal ones; ``worker.compaction`` compresses them behind that.
Offsets make a request that comes again count once, also where several replicas take it.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

from diagnoser.adapters.sql.logs import LogRepository
from diagnoser.compress import Compressor, Losses, pack, to_bytes
from diagnoser.compress.lines import measure
from diagnoser.diagnosis import node_logs
from diagnoser.ingest import (
    ERRORS_TOLD,
    Batch,
    IngestReceipt,
    OffsetRanges,
    RecordDefaults,
    Target,
    covered_with,
    missing,
)
from diagnoser.ingest.backlog import CompressionBacklog
from diagnoser.ingest.fair_queue import FairQueue
from diagnoser.ingest.job_access import JobSender
from diagnoser.ingest.mapping import DEFAULT, FieldMapping
from diagnoser.ingest.protocols.protocol import BodyFormat
from diagnoser.ingest.unattributed import UnattributedStreams
from diagnoser.model import NODE_LOG, AttemptKey, LineBlock, Stream, spoken_job_id
from diagnoser.model.access import EVERYTHING, Viewer
from diagnoser.model.errors import BadInput, Conflict, OffsetsMoved, OutOfScope, OwnerMoved, Unavailable
from diagnoser.model.jobs import MAX_LEAP
from diagnoser.model.logs import Append, Cursor, OffsetAdvance
from diagnoser.model.recent import Recent
from diagnoser.observability.metrics import Metrics
from diagnoser.observability.tracing import Trace, TraceStep, untraced

COMMIT_BYTES = 1 << 20
"""Bounds the time of a commit, and so how long a small request waits for one that has begun."""
COMMIT_SPACING = 0.01
"""Least seconds from one commit to the next: a commit has a price of its own, whatever is in it."""
CONFLICT_TRIES = 8
CURSORS_KNOWN = 100_000
INLINE_BYTES = 64 << 10
"""Smaller bodies are parsed on the event loop: a thread would cost more."""
INLINE_BUILD_BYTES = 256 << 10
"""A commit of less is also built there: it takes milliseconds, and a thread would cost each one more."""
PENDING_BYTES = 256 << 20
"""Log text that waits for the database. Beyond that, requests get 503: a shipper keeps its lines and comes again."""
RAW_BYTES = 512 << 10
"""An attempt's share of a commit up to this size is stored as it came, and compressed later with more of it. A larger
one is compressed at once: its delta is hardly larger than that of more lines, and to store it raw first costs a look
for fatal lines and two passes of zstd besides."""

FAILED_SECONDS = 30.0
"""How long one failed commit makes a replica unready, if no other follows."""

OWNER_TRIES = 3

AttemptCursors = dict[AttemptKey, dict[Stream, Cursor]]


@dataclass(slots=True)
class _Pending:
    batch: Batch
    received: float
    done: asyncio.Future[IngestReceipt]
    size: int
    advances: Sequence[OffsetAdvance] = ()
    viewer: Viewer = EVERYTHING


@dataclass(slots=True)
class _AttemptCommit:
    """What one commit writes for one attempt. senders: those that speak for one tenant only."""

    received: float
    senders: set[Viewer] = field(default_factory=set)
    blocks: list[LineBlock] = field(default_factory=list)
    versions: dict[Stream, int] = field(default_factory=dict)
    covered: dict[Stream, OffsetRanges] = field(default_factory=dict)


class _KnownCursors(Recent[tuple[AttemptKey, Stream], Cursor]):
    """What this process wrote last of each stream: mostly nobody else writes to it, and then nothing has to be read.
    A wrong one costs a conflict, never a line."""

    def note(self, appends: Sequence[Append]) -> None:
        for append in appends:
            for stream, (version, covered) in append.cursors.items():
                self[append.attempt, stream] = Cursor(covered, version + 1)

    def forget(self, appends: Sequence[Append]) -> None:
        for append in appends:
            for stream in append.cursors:
                self.pop((append.attempt, stream), None)


@dataclass(frozen=True, slots=True)
class _GroupCommit:
    """What a commit writes, and what it answers to each of its requests. losses: what compression dropped."""

    appends: list[Append]
    receipts: list[IngestReceipt]
    losses: list[Losses]


@dataclass(eq=False)
class IngestService:
    """Accepts requests and commits them in groups. ``run`` must be running; one instance per process.

    mapping: places what carries labels. unplaced: is told what cannot be placed. raw_bytes: see ``RAW_BYTES``; where
    lines are archived as they came, all of them are stored so first.
    """

    logs: LogRepository
    compressor: Callable[[], Compressor]
    metrics: Metrics
    _: KW_ONLY
    mapping: FieldMapping = DEFAULT
    unplaced: UnattributedStreams | None = None
    raw_bytes: int = RAW_BYTES
    trace: Trace = untraced

    def __post_init__(self) -> None:
        self._pending = FairQueue[_Pending](PENDING_BYTES)
        self._committed = -COMMIT_SPACING
        self._failed, self._failure = 0.0, ""
        self._known = _KnownCursors(CURSORS_KNOWN)
        self._backlog = CompressionBacklog(self.logs)
        self._arrived = asyncio.Event()

    async def parse_body(self, body: bytes, format: BodyFormat, defaults: RecordDefaults, received: float) -> Batch:
        """For ``accept_batch``. Raises BadInput."""
        if format.is_cheap or len(body) <= INLINE_BYTES:
            return format.parse(body, defaults, received, self.mapping)
        return await asyncio.to_thread(format.parse, body, defaults, received, self.mapping)

    async def accept_batch(
        self,
        batch: Batch,
        protocol: str,
        defaults: RecordDefaults,
        received: float,
        sender: JobSender | None = None,
    ) -> IngestReceipt:
        """Returns once the lines of the batch, if it has any, are committed.

        protocol: as streams of lines that belong to no job have it.

        sender: None when it may send lines of any job.

        Raises OutOfScope when all lines are of refused jobs, Overloaded when too many lines of this job wait already,
        for a commit or to be compressed, or Unavailable when they could not be committed.
        """
        if self.unplaced and batch.unplaced:
            self.unplaced.note(batch, protocol, defaults, received)
        if not batch.blocks:
            receipt = IngestReceipt(rejected=batch.rejected, errors=tuple(batch.errors), unplaced=batch.unplaced_lines)
            self._count(receipt, 0)
            return receipt
        for _ in range(OWNER_TRIES):
            if sender:
                await self._admit(batch, sender)
            await self._backlog.check(target.job for target in batch.blocks)
            turn, viewer = next(iter(batch.blocks)).job, sender.caller.viewer if sender else EVERYTHING
            try:
                return await self._committed_with_others(turn, batch, received, viewer=viewer)
            except OwnerMoved:
                assert sender is not None, "only what speaks for one tenant is compared with the owner"
                sender.access.forget(batch.jobs)
        raise Unavailable("the owner of a job kept changing")

    async def _admit(self, batch: Batch, sender: JobSender) -> None:
        """Leaves in the batch what the sender may send, under the names that the store has for its jobs. Raises
        OutOfScope when nothing is left."""
        access, caller = sender
        batch.rename(await access.names(caller, batch.jobs))
        reasons = batch.of_jobs(await access.refused(caller, batch.jobs))
        if not caller.vouches:
            reasons |= await self.ahead(batch)
        if not reasons:
            return
        if not batch.drop(reasons):
            raise OutOfScope("; ".join(list(dict.fromkeys(reasons.values()))[:ERRORS_TOLD]))

    async def ahead(self, batch: Batch) -> dict[Target, str]:
        """Launches that no agent has told of, of jobs that one registered: a shipper may be faster by one. Of others,
        numbers that leave no room for those that follow."""
        later = [target for target in batch.blocks if not self._is_known(batch, target)]
        if not later:
            return {}
        newest = await self.logs.newest_of_registered({target.job for target in later})
        ahead: dict[Target, str] = {}
        for job, attempt in later:
            if attempt is not None and attempt > newest.get(job, MAX_LEAP) + 1:
                ahead[Target(job, attempt)] = f"the job {spoken_job_id(job)!r} has no launch {attempt} yet"
        return ahead

    def _is_known(self, batch: Batch, target: Target) -> bool:
        """Whether it is a first launch, or this process has stored lines of the same attempt and stream before."""
        attempt = target.attempt or 1
        if attempt <= 1:
            return True
        key = AttemptKey(target.job, attempt)
        return any(self._known.get((key, block.stream)) for block in batch.blocks[target])

    async def store(self, batch: Batch, received: float, advances: Sequence[OffsetAdvance]) -> IngestReceipt:
        """Returns once the lines, and how far their partitions are read, are committed together. The batch may be
        empty. Raises OffsetsMoved, BadInput, or Unavailable."""
        return await self._committed_with_others("", batch, received, advances)

    async def _committed_with_others(
        self,
        turn: str,
        batch: Batch,
        received: float,
        advances: Sequence[OffsetAdvance] = (),
        viewer: Viewer = EVERYTHING,
    ) -> IngestReceipt:
        """turn: whose turn it is when many wait."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pending = _Pending(batch, received, loop.create_future(), batch.size, advances, viewer)
        self._pending.put(turn, pending.size, pending)
        self._arrived.set()
        receipt = await pending.done
        self.metrics.commit_seconds.observe(loop.time() - began)
        return receipt

    def check_commits(self) -> None:
        """Raises Unavailable, with the cause, when the store did not take the newest commit, a moment ago: senders
        should try another replica. A request that no store would take says nothing about this one."""
        if self._failure and asyncio.get_running_loop().time() < self._failed + FAILED_SECONDS:
            raise Unavailable(f"the newest lines could not be stored: {self._failure}")

    async def run(self) -> None:
        """Commit until cancelled; what is pending then is refused, and the shipper sends it again."""
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await self._arrived.wait()
                # After a quiet moment a request is committed at once; under load a commit waits for more of them.
                await asyncio.sleep(max(0.0, self._committed + COMMIT_SPACING - clock()))
                self._committed = clock()
                await self.commit()
        finally:
            while waiting := self._pending.take(COMMIT_BYTES):
                self._refuse(waiting, Unavailable("the service is stopping"))

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
        except (BadInput, OffsetsMoved, OwnerMoved) as fault:
            if len(group) == 1:
                self._refuse(group, fault)
                return
            for pending in group:  # one request that cannot be stored must not take the others with it
                await self._settle([pending])
            return
        except Exception as error:
            self.metrics.observe_failed_commit(error)
            if not isinstance(error, Unavailable):
                error = Unavailable(f"the lines were not stored: {error}")
            self._failed, self._failure = asyncio.get_running_loop().time(), str(error)
            self._refuse(group, error)
            return
        self._failure = ""
        for pending, receipt in zip(group, receipts, strict=True):
            self._count(receipt, pending.size)
            if not pending.done.done():
                pending.done.set_result(receipt)

    def _refuse(self, group: Sequence[_Pending], error: Exception) -> None:
        for pending in group:
            if not pending.done.done():
                pending.done.set_exception(error)

    async def _commit(self, group: Sequence[_Pending]) -> list[IngestReceipt]:
        keys, new_parts = await self._attempts(group)
        advances = list[OffsetAdvance]()
        streams: dict[AttemptKey, set[Stream]] = {key: set() for key in keys.values()}
        for pending in group:
            advances += pending.advances
            for target, blocks in pending.batch.blocks.items():
                streams[keys[target]].update(block.stream for block in blocks)
        for _ in range(CONFLICT_TRIES):
            cursors = await self._cursors(streams, new_parts)
            if sum(pending.size for pending in group) <= INLINE_BUILD_BYTES:
                commit = self._build(group, keys, cursors)
            else:
                commit = await asyncio.to_thread(self._build, group, keys, cursors)
            try:
                await self.logs.append(commit.appends, advances)
            except (OffsetsMoved, OwnerMoved):
                raise
            except Conflict:
                self._known.forget(commit.appends)
                continue  # another replica wrote to one of the streams: look again at what is covered
            self._known.note(commit.appends)
            self.metrics.observe_losses(commit.losses)
            await self._follow_up(commit.appends)
            return commit.receipts
        raise Unavailable("other writers of the same streams kept winning")

    async def _attempts(
        self, group: Sequence[_Pending]
    ) -> tuple[dict[Target, AttemptKey], dict[AttemptKey, AttemptKey]]:
        """The attempt of each target; and the parts of node logs that begin now, each with the part before it."""
        targets = set[Target]()
        for pending in group:
            targets.update(pending.batch.blocks)
        unnumbered = {target.job for target in targets if target.attempt is None}
        latest = await self.logs.current_attempts(unnumbered) if unnumbered else {}
        hour = node_logs.hour_of(max(pending.received for pending in group))
        over = _parts_before(hour, latest)
        latest |= dict.fromkeys(over, hour)
        keys = {}
        for target in targets:
            number = latest[target.job] if target.attempt is None else target.attempt
            keys[target] = AttemptKey(target.job, number)
        return keys, {AttemptKey(job, hour): AttemptKey(job, number) for job, number in over.items()}

    def _count(self, receipt: IngestReceipt, size: int) -> None:
        counts = {"accepted": receipt.lines, "duplicate": receipt.duplicates}
        self.metrics.observe_ingest(size, **counts, rejected=receipt.rejected, cut=receipt.cut)

    async def _cursors(
        self, streams: Mapping[AttemptKey, Collection[Stream]], new_parts: Mapping[AttemptKey, AttemptKey]
    ) -> AttemptCursors:
        """A new part of a node's log continues the line numbers of the part before, in all of its streams."""
        cursors, unknown = self._remembered(streams)
        if unknown:
            for key, stored in (await self.logs.stream_cursors(unknown)).items():
                cursors[key] |= stored
        if new_parts:
            before = await self.logs.cursors(list(new_parts.values()))
            for key, part in new_parts.items():
                if not cursors[key]:
                    cursors[key] = {stream: Cursor(cursor.covered) for stream, cursor in before[part].items()}
        return cursors

    def _remembered(
        self, streams: Mapping[AttemptKey, Collection[Stream]]
    ) -> tuple[AttemptCursors, dict[AttemptKey, set[Stream]]]:
        """(cursors that this process remembers, streams that it has to ask the store about)."""
        cursors: AttemptCursors = {key: {} for key in streams}
        unknown: dict[AttemptKey, set[Stream]] = {}
        for key, own in streams.items():
            for stream in own:
                cursor = self._known.get((key, stream))
                if cursor:
                    cursors[key][stream] = cursor
                else:
                    unknown.setdefault(key, set()).add(stream)
        return cursors, unknown

    async def _follow_up(self, appends: Sequence[Append]) -> None:
        """Of lines that look fatal. Those of a node: attempts that failed there shortly before are diagnosed again."""
        for append in appends:
            if not append.fatal:
                continue
            if _is_node(append.attempt.job):
                await self.logs.revisit(append.attempt.job, append.received - node_logs.AFTER, append.received)
            else:
                self.trace(TraceStep.INGEST, append.attempt, append.received)

    def _build(
        self, group: Sequence[_Pending], keys: Mapping[Target, AttemptKey], cursors: AttemptCursors
    ) -> _GroupCommit:
        commits: dict[AttemptKey, _AttemptCommit] = {}
        receipts = []
        for pending in group:
            accepted = offered = cut = 0
            for target, blocks in pending.batch.blocks.items():
                key = keys[target]
                commit = commits.get(key)
                if commit is None:
                    commit = commits[key] = _new_commit(pending.received, cursors.get(key, {}))
                commit.received = max(commit.received, pending.received)
                if pending.viewer.tenant:
                    commit.senders.add(pending.viewer)
                for block in map(node_logs.with_times, blocks) if _is_node(key.job) else blocks:
                    lines, long = measure(block.data)
                    cursor = cursors.get(key, {}).get(block.stream, Cursor())
                    accepted += _add_missing(commit, block, lines, cursor)
                    offered, cut = offered + lines, cut + long
            batch = pending.batch
            rest = batch.rejected, cut, tuple(batch.errors), batch.unplaced_lines
            receipts.append(IngestReceipt(accepted, offered - accepted, *rest))
        appends, losses = list[Append](), list[Losses]()
        for key, commit in commits.items():
            append, lost = self._append(key, commit)
            appends.append(append)
            if lost:
                losses.append(lost)
        return _GroupCommit(appends, receipts, losses)

    def _append(self, key: AttemptKey, commit: _AttemptCommit) -> tuple[Append, Losses | None]:
        """An attempt's share of a commit; with what compression dropped, where it was compressed at once."""
        cursors = {stream: (commit.versions[stream], ranges) for stream, ranges in commit.covered.items()}
        compressor, size = self.compressor(), sum(len(block.data) for block in commit.blocks)
        if 0 < size <= self.raw_bytes and not _is_node(key.job):  # what nodes say is rare, and read by many attempts
            text = b"\n".join(block.data.removesuffix(b"\n") for block in commit.blocks)
            fatal = compressor.has_fatal(text)
            packed = pack(commit.blocks)
            return Append(key, packed, commit.received, cursors, fatal, size, frozenset(commit.senders)), None
        for block in commit.blocks:
            compressor.feed(block)
        delta = compressor.take()
        senders = frozenset(commit.senders)
        return Append(key, to_bytes(delta), commit.received, cursors, delta.fatal, 0, senders), delta.losses


def _parts_before(hour: int, latest: Mapping[str, int]) -> dict[str, int]:
    """The logs of nodes whose latest part is of an earlier hour, with the number of that part."""
    return {job: number for job, number in latest.items() if _is_node(job) and number < hour}


def _is_node(job: str) -> bool:
    return job.startswith(NODE_LOG)


def _new_commit(received: float, cursors: Mapping[Stream, Cursor]) -> _AttemptCommit:
    """Cursors carried over from an earlier part are not stored yet: version 0."""
    carried = {stream: cursor.covered for stream, cursor in cursors.items() if not cursor.version}
    return _AttemptCommit(received, versions=dict.fromkeys(carried, 0), covered=carried)


def _add_missing(commit: _AttemptCommit, block: LineBlock, count: int, cursor: Cursor) -> int:
    """Add those of the ``count`` lines of ``block`` that the stream lacks; returns their number."""
    stream = block.stream
    commit.versions.setdefault(stream, cursor.version)
    covered = commit.covered.setdefault(stream, cursor.covered)
    first = block.first
    if not first:
        first = covered[-1][1] + 1 if covered else 1
    last = first + count - 1
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
    end = b"\n"
    if stop == len(lines) and not block.data.endswith(b"\n"):
        end = b""
    return LineBlock(
        stream=block.stream,
        data=b"\n".join(lines[start:stop]) + end,
        first=first,
        times=block.times[start:stop] if block.times else None,
        received=block.received,
    )
