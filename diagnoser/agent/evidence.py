"""Collects evidence of runs that may hang, as the service asks for it: dump files, NCCL RAS, and stacks of the ranks.

It runs beside observer and executor and holds up neither. A request is a lease: an agent that dies loses it, and
another one collects anew; the same dump replaces the one before. What is collected is hostile data: it is bounded, and
passed on unread.
"""

import asyncio
import base64
import re
import string
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

import orjson
import structlog

from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.claims import CLAIM_SECONDS, claimed_requests
from diagnoser.agent.cluster import Cluster, NotCollected, S
from diagnoser.client import evidence_runner
from diagnoser.client.evidence_runner import Bounds
from diagnoser.hang import flight_recorder, report
from diagnoser.model import AttemptKey, EvidenceKind, EvidenceRequest, RequestReason, RuntimeFile
from diagnoser.model.errors import BadInput, Denied, DiagnoserError, NotFound, Unavailable
from diagnoser.model.lines import printable

REQUESTS_AT_ONCE = 4
POSTS_AT_ONCE = 8
NODES_AT_ONCE = 16
LEASE_PART = 0.8
"""Part of a lease after which collecting ends: what there is until then still has to be told."""
PROGRAM_SECONDS = 15.0
"""For one program on a node."""
CLOCKS = 60.0
"""Seconds by which the clocks of the service and of the ranks may differ."""
RAS_NODES = 4
"""Nodes that are asked: each knows of the whole job, unless its own process is the one that hangs."""
RESULT_LENGTH = 2000
NOTES_KEPT = 20
NOTE_LENGTH = 200

_NAMES = {
    EvidenceKind.FLIGHT_RECORDER: "flight recorders",
    EvidenceKind.RAS: "answers of NCCL RAS",
    EvidenceKind.STACKS: "stacks",
    EvidenceKind.ACTIVITY: "looks at what ranks do",
}
_VALUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DumpPattern:
    """A pattern of the files in which jobs put their dumps. root: the operator's own folder. parts: of the rest, with
    wildcards and fields."""

    root: str
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, fields: Sequence[str]) -> "DumpPattern":
        """``/shared/dumps/{job}/_dump_*``. Raises BadInput.

        fields: those that it may have.
        """
        words = text.split("/")
        try:
            named = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
        except ValueError as error:
            raise BadInput(f"{text[:100]!r} is no pattern of dump files: {error}") from None
        if not _is_whole_path(text):
            raise BadInput(f"{text[:100]!r} is no pattern of dump files: it must be a whole path")
        if not {"job"} <= named <= set(fields):
            known = ", ".join(f"{{{name}}}" for name in fields)
            raise BadInput(f"{text[:100]!r} must hold {{job}}, so that jobs do not share dumps; it may hold {known}")
        # There is such a word: {job} stands in one.
        free = next(place for place, word in enumerate(words) if any(sign in word for sign in "{*?["))
        return cls("/".join(words[:free]) or "/", tuple(words[free:]))

    def of(self, values: Mapping[str, str]) -> tuple[str, list[str]]:
        """(root, parts) for one job. Raises BadInput for a value that would be more than one name."""
        for name, value in values.items():
            if _VALUE.fullmatch(value):
                continue
            if any(f"{{{name}}}" in part for part in self.parts):
                raise BadInput(f"{name} {value[:60]!r} cannot be part of a path")
        return self.root, [part.format(**values) for part in self.parts]


@dataclass(frozen=True, slots=True)
class EvidenceOptions:
    """dumps: files that the agent itself can read. node_dumps: files on the nodes. programs: whether to run something
    beside the training."""

    dumps: tuple[DumpPattern, ...] = ()
    node_dumps: tuple[DumpPattern, ...] = ()
    programs: bool = False

    @property
    def any(self) -> bool:
        if self.programs:
            return True
        return bool(self.dumps)


def options(
    dumps: Sequence[str], node_dumps: Sequence[str], fields: Sequence[str], *, programs: bool
) -> EvidenceOptions:
    """Raises BadInput."""
    if node_dumps and not programs:
        raise BadInput("--node-dumps are read by a program on the nodes: allow it with --collect-evidence")
    shared, on_nodes = ([DumpPattern.parse(text, fields) for text in given] for given in (dumps, node_dumps))
    return EvidenceOptions(tuple(shared), tuple(on_nodes), programs)


@dataclass(frozen=True, slots=True)
class LaunchWindow:
    """The launch whose files count: those of ``uid`` (-1: not known), changed from ``since`` until before ``until``.

    values: of a pattern's fields.
    """

    values: Mapping[str, str]
    uid: int
    since: float
    until: float = float("inf")


def _is_whole_path(text: str) -> bool:
    """Tell whether a path begins at the root, has two or more names, and none that is empty or leads back."""
    root, *names = text.split("/")
    if root:
        return False
    if "\0" in text:
        return False
    if len(names) < 2:
        return False
    return {"", ".", ".."}.isdisjoint(names)


Collected = RuntimeFile | NotCollected


async def read_dumps(patterns: Sequence[DumpPattern], window: LaunchWindow) -> AsyncGenerator[Collected]:
    """Files that this process can read. One is in memory at a time."""
    bounds = Bounds()
    for pattern in patterns:
        root, parts = pattern.of(window.values)
        files = evidence_runner.dump_files(root, parts, window.uid, window.since, window.until, bounds)
        while file := await asyncio.to_thread(next, files, None):
            yield NotCollected(f"{file.path}: {file.why}") if file.why else of_file(file.path, file.data)


def of_file(path: str, data: bytes, node: str = "") -> Collected:
    """Recognize a dump file: its content says what it is, its name of which rank."""
    kind, rank = report.kind_of(data), flight_recorder.rank_of_file(path)
    if kind is EvidenceKind.RAS:
        return RuntimeFile(kind, data, node=node)
    if report.names_ranks(data):
        return RuntimeFile(kind, data, node=node)
    return RuntimeFile(kind, data, rank, node) if rank >= 0 else NotCollected(f"{path}: its name ends in no rank")


def program(patterns: Sequence[DumpPattern], window: LaunchWindow, job: str, *, ras: bool) -> tuple[str, ...]:
    """Build what to start on a node, as the job's user. Isolated: nothing of the working folder or the environment is
    imported. job: number of Slurm's, "" in a container."""
    source = Path(str(evidence_runner.__file__)).read_text("utf-8")
    asked = {
        "job": job,
        "dumps": [pattern.of(window.values) for pattern in patterns],
        "since": window.since,
        "until": min(window.until, 1e12),
        "stacks": True,
        "ras": ras,
        "seconds": PROGRAM_SECONDS,
    }
    return ("python3", "-I", "-c", source, orjson.dumps(asked).decode())


def parse_output(node: str, output: str, bounds: Bounds) -> Iterator[Collected]:
    """Read what the program printed, as far as it can be read; whoever shares its user may have forged it."""
    for line in filter(str.strip, output.splitlines()):
        try:
            given = orjson.loads(line)
            if "note" in given:
                yield NotCollected(f"{node}: {str(given['note'])[:NOTE_LENGTH]}")
                continue
            unpacked = zlib.decompressobj()
            data = unpacked.decompress(base64.b64decode(given["data"], validate=True), evidence_runner.FILE_BYTES)
            kind, rank, name = str(given["kind"]), int(given["rank"]), str(given["name"])
            bounds.size -= len(data)
            if any((unpacked.unconsumed_tail, bounds.size < 0, not -1 <= rank < 1 << 31)):
                raise ValueError("out of bounds")
            yield of_file(name, data, node) if kind == "file" else RuntimeFile(EvidenceKind(kind), data, rank, node)
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            yield NotCollected(f"{node}: a line of the collector cannot be read: {type(error).__name__}")


async def from_nodes(nodes: Sequence[str], ask: Callable[[int, str], Any]) -> AsyncGenerator[Collected]:
    """Give what each node printed, as it comes. ask: (place among the nodes, node) -> what was printed; raises
    Unavailable where it could not be asked. Ends what is under way when nobody wants more."""
    turn, bounds = asyncio.Semaphore(NODES_AT_ONCE), Bounds()

    async def findings(place: int, node: str) -> list[Collected]:
        async with turn:
            try:
                return list(parse_output(node, await ask(place, node), bounds))
            except (Unavailable, Denied, BadInput) as error:
                return [NotCollected(f"{node}: {error}")]

    tasks = [asyncio.create_task(findings(place, node)) for place, node in enumerate(nodes)]
    try:
        for task in asyncio.as_completed(tasks):
            for item in await task:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def collect(
    options: EvidenceOptions,
    asked: EvidenceRequest,
    window: LaunchWindow,
    nodes: Sequence[str],
    ask: Callable[[int, str], Any],
    refusal: str,
) -> AsyncGenerator[Collected]:
    """Read dump files; of a run that goes on, or seems to, run programs on its nodes, too, where the operator allows
    that.

    ask: as of ``from_nodes``.
    refusal: why no program may be run beside the launch, "" where it may.
    """
    async for item in read_dumps(options.dumps, window):
        yield item
    if not options.programs:
        return
    if asked.reason is RequestReason.TIMEOUT:
        return
    if refusal:
        yield NotCollected(refusal)
        return
    async for item in from_nodes(nodes, ask):
        yield item


@dataclass(slots=True)
class Collection:
    """Outcome of one request so far. smallest: a dump that was sent, to be sent again as the last one."""

    sent: Counter[EvidenceKind] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    left_out: int = 0
    smallest: RuntimeFile | None = None

    def add_note(self, why: str) -> None:
        if len(self.notes) < NOTES_KEPT and why not in self.notes:
            self.notes.append(why[:NOTE_LENGTH])
        else:
            self.left_out += 1

    def keep(self, dump: RuntimeFile) -> None:
        self.sent[dump.kind] += 1
        if self.smallest is None or len(dump.data) < len(self.smallest.data):
            self.smallest = dump

    @property
    def result(self) -> str:
        counts = [f"{_NAMES[kind]}: {count}" for kind, count in sorted(self.sent.items())]
        more = [f"{self.left_out} more such notes"] if self.left_out else []
        text = "; ".join((", ".join(counts) or "nothing was collected", *self.notes, *more))
        return printable(text)[:RESULT_LENGTH]


@dataclass(frozen=True, slots=True)
class EvidenceCollector(Generic[S]):
    client: ApiClient
    cluster: Cluster[S]

    async def run(self) -> None:
        """For ever. Raises Denied."""
        try:
            async with asyncio.TaskGroup() as group:
                await self._claim(group)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _claim(self, group: asyncio.TaskGroup) -> None:
        running = set[asyncio.Task[None]]()

        async def claim() -> list[dict[str, Any]]:
            free = REQUESTS_AT_ONCE - len(running)
            if not free:
                return []
            return await self.client.claim_evidence(self.cluster.name, free, CLAIM_SECONDS)

        async for request in claimed_requests(claim, self.client.pause, "evidence_not_claimed"):
            task = group.create_task(self.answer(request))
            running.add(task)
            task.add_done_callback(running.discard)

    async def answer(self, claimed: Mapping[str, Any]) -> None:
        """Collects, sends and reports. Never raises: whatever goes wrong, the lease ends and the request is made anew,
        until it is too old to matter."""
        try:
            asked = _request(claimed, self.cluster.name)
            log.info("evidence_asked", job=asked.attempt.job, attempt=asked.attempt.number, reason=asked.reason)
            collection = await self.collect(asked, float(claimed["lease_seconds"]) * LEASE_PART)
            await self.client.evidence_result(asked.id, self.cluster.name, collection.result)
            log.info("evidence_collected", job=asked.attempt.job, result=collection.result)
        except DiagnoserError as error:
            log.warning("evidence_left", request=str(claimed.get("id")), why=str(error))
        except Exception as error:  # a request that cannot be met must not end the agent
            log.error("evidence_failed", request=str(claimed.get("id")), why=repr(error)[:500])

    async def collect(self, asked: EvidenceRequest, seconds: float) -> Collection:
        """Collect and send what there is within so many seconds. Raises Unavailable when the service is away."""
        collection, turn = Collection(), asyncio.Semaphore(POSTS_AT_ONCE)
        try:
            async with (
                asyncio.timeout(seconds),
                asyncio.TaskGroup() as group,
                aclosing(self.cluster.collect(asked)) as items,
            ):
                async for item in items:
                    if isinstance(item, NotCollected):
                        collection.add_note(item.why)
                        continue
                    await turn.acquire()
                    group.create_task(self._send(asked, item, collection, turn))
        except TimeoutError:
            collection.add_note(f"ended after {seconds:.0f} s")
        except ExceptionGroup as errors:
            error = errors.exceptions[0]
            if not isinstance(error, BadInput | Denied):
                raise error from None
            collection.add_note(str(error))
        if collection.smallest:  # the run is judged with all of them, not with the first that came
            await self.client.evidence(asked.attempt, collection.smallest)
        return collection

    async def _send(
        self, asked: EvidenceRequest, dump: RuntimeFile, collection: Collection, turn: asyncio.Semaphore
    ) -> None:
        try:
            await self.client.evidence(asked.attempt, dump, more=True)
            collection.keep(dump)
        except (BadInput, NotFound, Denied) as error:
            collection.add_note(f"{dump.name} was refused: {error}")
        finally:
            turn.release()


def _request(claimed: Mapping[str, Any], cluster: str) -> EvidenceRequest:
    """Raises BadInput for one that this agent does not understand."""
    try:
        key = AttemptKey(str(claimed["job"]), int(claimed["attempt"]))
        reason, since = RequestReason(claimed["reason"]), float(claimed["since"])
        return EvidenceRequest(str(claimed["id"]), key, cluster, since, reason, 0.0)
    except (KeyError, ValueError, TypeError) as error:
        raise BadInput(f"a request for evidence cannot be read: {error!r}") from None
