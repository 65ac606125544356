"""NCCL RAS: what the library's own monitoring says of a running job: who is behind, who cannot be reached, and where.

Answers of `ncclras` (NCCL 2.24 and later), as text, as JSON (2.28.7) or as lines of its monitor (2.29). Unlike a flight
recorder they name hosts and processes. Format: chapter "RAS" of NVIDIA's NCCL user guide. RAS has said OK during a
watchdog's timeout: no finding is no proof of health.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import orjson

from diagnoser.hang.values import mapping, mappings, text
from diagnoser.model.errors import BadInput

BYTES_MAX = 16 << 20
FINDINGS_MAX = 100_000
RANKS_MAX = 200_000
_RANK = re.compile(r"^\s*Rank (\d{1,7}) -- GPU \S+ managed by process (\d{1,10}) on node (\S{1,253})\s*$")
_COUNT = re.compile(r"^\s*(\d{1,7}) ranks? (?:has|have) launched up to operation (\d{1,18})\s*$")
_STATUS = re.compile(r"^#|^\s*\d{1,7} ranks? (?:has|have) status \w+\s*$")
_PROCESS = re.compile(r"^\s*Process (\d{1,10}) on node (\S{1,253}) managing GPUs? ")
_MISSING = re.compile(r"^\s*The missing ranks?: ([\d, ]{1,100000})$")
_PEER = re.compile(r"\bPEER_(DEAD|UNRESPONSIVE)\b: Process (\d{1,10}) on node (\S{1,253})")
_GROUP = re.compile(r"^\s*(\d{1,7})(?:\s+[\d-]+){3}\s+(\d{1,7})(?:-\d{1,7})?\s+\d+\s+[A-Z]+\s+[A-Z]+\s*$")
"""A row of the table of communicators: number of the group, and ranks of each of its communicators."""
_COMMUNICATOR = re.compile(r"^#(\d{1,7})-")
_ENDED = re.compile(r"^\s*$|^#|^[A-Z]{4,}\s*$")
_SIGNS = re.compile("ommunicator|PEER_|RAS|Ranks|Job summary|job process")
"""What any answer of RAS holds."""
_DEAD_EVENTS = {"PEER_DEAD": "is considered dead", "PEER_UNRESPONSIVE": "does not answer"}


@dataclass(frozen=True, slots=True)
class RasFinding:
    """What RAS says of one process. rank: in the communicator, -1 where only the process is known. behind: by how many
    operations, 0 for one that cannot be reached."""

    rank: int
    why: str
    node: str = ""
    process: int = 0
    behind: int = 0

    @property
    def place(self) -> tuple[int, int, str]:
        """Tell findings of one process from those of others: its number counts only where the rank is unknown."""
        if self.rank < 0:
            return self.rank, self.process, self.node
        return self.rank, 0, self.node


@dataclass(frozen=True, slots=True)
class RasReport:
    """findings: each rank once. nodes: rank of the largest communicator -> host."""

    findings: tuple[RasFinding, ...] = ()
    nodes: tuple[tuple[int, str], ...] = ()


def parse_ras(data: bytes) -> RasReport:
    """Raises BadInput for text that is no answer of RAS. One without findings is empty."""
    if len(data) > BYTES_MAX:
        raise BadInput(f"an answer of {len(data)} bytes is larger than {BYTES_MAX}")
    answer = data.decode("utf-8", "replace")
    if not _SIGNS.search(answer):
        raise BadInput("this is no answer of NCCL RAS")
    if answer.lstrip()[:1] == "{":
        documents = _documents(answer)
        findings, nodes = _of_documents(documents), _nodes_of_documents(documents)
    else:
        # Whole lines only: in one that was cut short, the beginning of a rank or host is another rank or host.
        lines = list(_of_largest(answer[: answer.rfind("\n") + 1].splitlines()))
        findings, nodes = _of_text(lines), _nodes_of_text(lines)
    unique: dict[tuple[int, int, str], RasFinding] = {}
    for finding in islice(findings, FINDINGS_MAX):
        unique.setdefault(finding.place, finding)
    return RasReport(tuple(_joined(unique.values())), tuple(nodes))


def _joined(findings: Collection[RasFinding]) -> list[RasFinding]:
    """Text names the process in one place and the missing rank in another: where both are one, they are the same."""
    nameless, homeless, whole = list[RasFinding](), list[RasFinding](), list[RasFinding]()
    for finding in findings:
        if finding.rank < 0:
            nameless.append(finding)
        elif not finding.node:
            homeless.append(finding)
        else:
            whole.append(finding)
    if len(nameless) == len(homeless) == 1:
        process, rank = nameless[0], homeless[0]
        return [RasFinding(rank.rank, f"{rank.why}; {process.why}", process.node, process.process), *whole]
    return list(findings)


def _of_largest(lines: Sequence[str]) -> Iterator[str]:
    """Leave out blocks of communicators smaller than the largest: they count their own ranks, not those of the job."""
    sizes = {match[1]: int(match[2]) for match in map(_GROUP.match, lines) if match}
    largest = max(sizes.values(), default=0)
    is_smaller = False
    for line in lines:
        if match := _COMMUNICATOR.match(line):
            is_smaller = sizes.get(match[1], largest) < largest
        elif _ENDED.match(line):
            is_smaller = False
        if not is_smaller:
            yield line


def _of_text(lines: list[str]) -> Iterator[RasFinding]:
    dead = False
    operations: list[int] = []
    listed: list[tuple[int, RasFinding]] = []
    for line in lines:
        if line.strip() == "DEAD":
            dead = True
        elif _ENDED.match(line):
            dead = False
        if match := _COUNT.match(line):
            operations.append(int(match[2]))
        elif _STATUS.match(line):
            yield from _behind(operations, listed)
            operations, listed = [], []
        elif match := _RANK.match(line):
            if operations:
                listed.append((operations[-1], RasFinding(int(match[1]), "", match[3], int(match[2]))))
        else:
            yield from _of_line(line, dead)
    yield from _behind(operations, listed)


def _of_line(line: str, dead: bool) -> Iterator[RasFinding]:
    """Findings that one line makes. dead: it stands under the heading DEAD."""
    if match := _PROCESS.match(line):
        state = "is considered dead" if dead else "sends no communicator data"
        yield RasFinding(-1, f"RAS: its process {state}", match[2], int(match[1]))
    elif match := _MISSING.match(line):
        for rank in re.findall(r"\d+", match[1]):
            yield RasFinding(int(rank), "RAS: the communicator misses it")
    elif match := _PEER.search(line):
        yield RasFinding(-1, f"RAS: it {_DEAD_EVENTS[f'PEER_{match[1]}']}", match[3], int(match[2]))


def _behind(operations: list[int], listed: list[tuple[int, RasFinding]]) -> Iterator[RasFinding]:
    """Find the ranks that are behind: RAS lists the smaller parts rank by rank, each with its operations."""
    highest = max(operations, default=0)
    for operation, rank in listed:
        if operation < highest:
            why = f"RAS: it has launched {operation} operations, others {highest}"
            yield RasFinding(rank.rank, why, rank.node, rank.process, highest - operation)


def _of_documents(documents: Sequence[Mapping[str, Any]]) -> Iterator[RasFinding]:
    largest = _largest(documents)
    ranks = {(_host(row), _integer(row.get("pid"))): _rank(row) for row in _rows(largest)}
    for document in documents:
        peer = mapping(document.get("peer"))
        if why := _DEAD_EVENTS.get(str(document.get("event"))):
            yield RasFinding(-1, f"RAS: it {why}", _host(peer), _integer(peer.get("pid")))
        for communicator in mappings(document.get("communicators")):
            for finding in _of_communicator(communicator):
                if communicator is not largest:  # it counts its own ranks: a process tells which of the job it is
                    finding = replace(finding, rank=ranks.get((finding.node, finding.process), -1))
                yield finding


def _of_communicator(communicator: Mapping[str, Any]) -> Iterator[RasFinding]:
    for row in mappings(communicator.get("missing_ranks")):
        dead = mapping(row.get("status")).get("considered_dead") is True
        state = "is considered dead" if dead else "does not answer"
        yield RasFinding(_rank(row), f"RAS: it {state}", _host(row), _integer(row.get("pid")))
    rows = mappings(communicator.get("ranks"))
    counts = [sum(map(_integer, mapping(row.get("collective_counts")).values())) for row in rows]
    highest = max(counts, default=0)
    if counts.count(highest) * 2 < len(counts):
        return  # most are behind: then the others are ahead, or the answer was taken while they trained
    for row, count in zip(rows, counts, strict=True):
        if count < highest:
            why = f"RAS: it has launched {count} operations, others {highest}"
            yield RasFinding(_rank(row), why, _host(row), _integer(row.get("pid")), highest - count)


def _documents(answer: str) -> list[Mapping[str, Any]]:
    """One answer, or the events of the monitor one behind the other."""
    try:
        return [mapping(orjson.loads(answer))]
    except orjson.JSONDecodeError:
        pass
    parts = re.split(r"(?m)^\}\s*$", answer)
    try:
        return [mapping(orjson.loads(part + "}")) for part in parts if part.strip()]
    except orjson.JSONDecodeError as error:
        raise BadInput(f"the answer of RAS is no JSON: {error}") from None


def _nodes_of_text(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for line in lines:
        if match := _RANK.match(line):
            yield int(match[1]), match[3]


def _largest(documents: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    communicators = list[Mapping[str, Any]]()
    for document in documents:
        communicators += mappings(document.get("communicators"))
    return max(communicators, key=lambda row: _integer(row.get("size")), default={})


def _rows(communicator: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*mappings(communicator.get("ranks")), *mappings(communicator.get("missing_ranks"))]


def _nodes_of_documents(documents: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    for row in _rows(_largest(documents)):
        yield _rank(row), _host(row)


def _rank(row: Mapping[str, Any]) -> int:
    """Read a rank, -1 for a number that no job has."""
    rank = _integer(row.get("rank"))
    return rank if 0 <= rank < RANKS_MAX else -1


def _host(row: Mapping[str, Any]) -> str:
    return text(row.get("host"), 253)


def _integer(value: Any) -> int:
    return value if type(value) is int else -1
