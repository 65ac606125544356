"""NCCL RAS: what the library's own monitoring says of a running job: who is behind, who cannot be reached, and where.

Answers of `ncclras` (NCCL 2.24 and later), as text, as JSON (2.28.7) or as lines of its monitor (2.29). Unlike a flight
recorder they name hosts and processes. Format: chapter "RAS" of NVIDIA's NCCL user guide. RAS has said OK during a
watchdog's timeout: no finding is no proof of health.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from diagnoser.model.errors import BadInput

BYTES_MAX = 16 << 20
FINDINGS_MAX = 100_000
_RANK = re.compile(r"^\s*Rank (\d{1,7}) -- GPU \S+ managed by process (\d{1,10}) on node (\S{1,253})\s*$")
_COUNT = re.compile(r"^\s*(\d{1,7}) ranks? (?:has|have) launched up to operation (\d{1,18})\s*$")
_STATUS = re.compile(r"^\s*(\d{1,7}) ranks? (?:has|have) status (\w+)\s*$")
_PROCESS = re.compile(r"^\s*Process (\d{1,10}) on node (\S{1,253}) managing GPUs? ")
_MISSING = re.compile(r"^\s*The missing ranks?: ([\d, ]{1,100000})$")
_PEER = re.compile(r"\bPEER_(DEAD|UNRESPONSIVE)\b: Process (\d{1,10}) on node (\S{1,253})")
_ENDED = re.compile(r"^\s*$|^#|^[A-Z]{4,}\s*$")
_SIGNS = ("ommunicator", "PEER_", "RAS", "Ranks", "Job summary", "job process")
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


@dataclass(frozen=True, slots=True)
class RasReport:
    """findings: each rank once. nodes: rank of the largest communicator -> host."""

    findings: tuple[RasFinding, ...] = ()
    nodes: tuple[tuple[int, str], ...] = ()


def parse_ras(data: bytes) -> RasReport:
    """Raises BadInput for what is no answer of RAS. One without findings is empty."""
    if len(data) > BYTES_MAX:
        raise BadInput(f"an answer of {len(data)} bytes is larger than {BYTES_MAX}")
    text = data.decode("utf-8", "replace")
    if not any(sign in text for sign in _SIGNS):
        raise BadInput("this is no answer of NCCL RAS")
    every = _of_documents(text) if text.lstrip()[:1] == "{" else _of_text(_lines(text))
    findings = list(islice(every, FINDINGS_MAX))
    unique: dict[tuple[int, int, str], RasFinding] = {}
    for finding in findings:
        unique.setdefault((finding.rank, finding.process if finding.rank < 0 else 0, finding.node), finding)
    return RasReport(tuple(_joined(list(unique.values()))), tuple(_nodes(text)))


def _lines(text: str) -> list[str]:
    """List the whole lines: in a line that was cut short, the beginning of a rank or host is another rank or host."""
    return text[: text.rfind("\n") + 1].splitlines()


def _joined(findings: list[RasFinding]) -> list[RasFinding]:
    """Text names the process in one place and the missing rank in another: where both are one, they are the same."""
    nameless = [finding for finding in findings if finding.rank < 0]
    homeless = [finding for finding in findings if finding.rank >= 0 and not finding.node]
    if len(nameless) == len(homeless) == 1:
        process, rank = nameless[0], homeless[0]
        joined = RasFinding(rank.rank, f"{rank.why}; {process.why}", process.node, process.process)
        return [joined, *(finding for finding in findings if finding not in (process, rank))]
    return findings


def _of_text(lines: list[str]) -> Iterator[RasFinding]:
    dead = False
    operations: list[int] = []
    listed: list[tuple[int, RasFinding]] = []
    for line in lines:
        dead = line.strip() == "DEAD" or (dead and not _ENDED.match(line))
        if match := _COUNT.match(line):
            operations.append(int(match[2]))
        elif _STATUS.match(line) or line.startswith("#"):
            yield from _behind(operations, listed)
            operations, listed = [], []
        elif (match := _RANK.match(line)) and operations:
            listed.append((operations[-1], RasFinding(int(match[1]), "", match[3], int(match[2]))))
        else:
            yield from _of_line(line, dead)
    yield from _behind(operations, listed)


def _of_line(line: str, dead: bool) -> Iterator[RasFinding]:
    """Findings that one line makes. dead: it stands under the heading DEAD."""
    if match := _PROCESS.match(line):
        why = "RAS: its process is considered dead" if dead else "RAS: its process sends no communicator data"
        yield RasFinding(-1, why, match[2], int(match[1]))
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


def _of_documents(text: str) -> Iterator[RasFinding]:
    for document in _documents(text):
        peer = _dict(document.get("peer"))
        if why := _DEAD_EVENTS.get(str(document.get("event"))):
            yield RasFinding(-1, f"RAS: it {why}", _host(peer), _integer(peer.get("pid")))
        for communicator in _dicts(document.get("communicators")):
            yield from _of_communicator(communicator)


def _of_communicator(communicator: dict[str, Any]) -> Iterator[RasFinding]:
    for row in _dicts(communicator.get("missing_ranks")):
        status = _dict(row.get("status"))
        state = "is considered dead" if status.get("considered_dead") is True else "does not answer"
        yield RasFinding(_integer(row.get("rank")), f"RAS: it {state}", _host(row), _integer(row.get("pid")))
    rows = _dicts(communicator.get("ranks"))
    counts = [sum(map(_integer, _dict(row.get("collective_counts")).values())) for row in rows]
    highest = max(counts, default=0)
    if sum(count < highest for count in counts) * 2 > len(counts):
        return  # most are behind: then the others are ahead, or the answer was taken while they trained
    for row, count in zip(rows, counts, strict=True):
        if count < highest:
            why = f"RAS: it has launched {count} operations, others {highest}"
            yield RasFinding(_integer(row.get("rank")), why, _host(row), _integer(row.get("pid")), highest - count)


def _documents(text: str) -> list[dict[str, Any]]:
    """One answer, or the events of the monitor one behind the other."""
    try:
        return [_dict(orjson.loads(text))]
    except orjson.JSONDecodeError:
        pass
    parts = re.split(r"(?m)^\}\s*$", text)
    try:
        return [_dict(orjson.loads(part + "}")) for part in parts if part.strip()]
    except orjson.JSONDecodeError as error:
        raise BadInput(f"the answer of RAS is no JSON: {error}") from None


def _nodes(text: str) -> Iterator[tuple[int, str]]:
    if text.lstrip()[:1] != "{":
        for match in map(_RANK.match, _lines(text)):
            if match:
                yield int(match[1]), match[3]
        return
    communicators = [row for document in _documents(text) for row in _dicts(document.get("communicators"))]
    largest = max(communicators, key=lambda row: _integer(row.get("size")), default={})
    for row in (*_dicts(largest.get("ranks")), *_dicts(largest.get("missing_ranks"))):
        yield _integer(row.get("rank")), _host(row)


def _host(row: dict[str, Any]) -> str:
    host = row.get("host")
    return host[:253] if isinstance(host, str) else ""


def _integer(value: Any) -> int:
    return value if type(value) is int else -1


def _dict(value: Any) -> dict[str, Any]:
    return value if type(value) is dict else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [row for row in value if type(row) is dict] if type(value) is list else []
