"""Takes what stands in front of a line apart: who speaks, and the message."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from diagnoser.dialects import collectors, launchers, runtimes
from diagnoser.dialects.dialect import HOST, ISO, Dialect, PrefixStripping

DIALECTS: tuple[Dialect, ...] = (*launchers.DIALECTS, *runtimes.DIALECTS, *collectors.DIALECTS)
PEELED = tuple(dialect for dialect in DIALECTS if dialect.peeled is PrefixStripping.ALWAYS and not dialect.opens)
CARRIERS = tuple(dialect for dialect in DIALECTS if dialect.peeled is PrefixStripping.CARRIED)
"""What carries frames of tracebacks as well: a frame behind it is one."""


HEADS = (r"\[", ISO, collectors.CLOCK, f"(?:{HOST})")
"""What several prefixes begin with."""


def any_of(sources: Iterable[str], heads: Iterable[str] = HEADS) -> str:
    """One pattern of them all. What they begin with is read once for all that begin so."""
    tails: dict[str, list[str]] = {}
    for source in sources:
        head = next(filter(source.startswith, heads), "")
        tails.setdefault(head, []).append(source.removeprefix(head))
    alternatives = []
    for head, rest in tails.items():
        either = "|".join(rest)
        alternatives.append(f"{head}(?:{either})" if head else either)
    return "|".join(alternatives)


# Atomic groups: a possessive repeat of a group is matched too short, or not at all, by CPython 3.11 before 3.11.5.
_STAMPS = f"(?>(?:{any_of(dialect.source for dialect in PEELED if dialect.is_stamp)})*)"
_NAMES = f"(?>(?:(?:{any_of(dialect.source for dialect in PEELED if not dialect.is_stamp)}){_STAMPS})*)"
_PREFIXES = re.compile((_STAMPS + _NAMES).encode())
_HEAD = re.compile(f"{_STAMPS}({_NAMES})".encode())
_READERS = [re.compile(dialect.prefix.encode()) for dialect in PEELED]
_OPENINGS = [re.compile(dialect.prefix.encode()) for dialect in DIALECTS if dialect.opens]
LOGGER = re.compile(next(dialect.prefix for dialect in CARRIERS if dialect.is_stamp))
_NUMBER = re.compile(r"\d+")
_FEW_LINES = 4
_RANK = re.compile(r"r\d+")
"""A voice that is only a rank: a process prints some lines with it and some without."""


class Prefix(NamedTuple):
    """What stands in front of a line; -1 and "" where it does not say.

    task: number given by ``srun --label``: the rank only where each task is one rank. local: rank within the node.
    pod: of Kubernetes; it is no node. pid: of the process, as Ray and syslog tell it.
    voice: names who speaks, for joining what one process printed: the outermost labels, without ``[rankN]`` unless
        there is no other process (one prints some lines with it and some without).
    """

    rank: int = -1
    task: int = -1
    local: int = -1
    node: str = ""
    voice: str = ""
    pod: str = ""
    pid: int = -1

    @property
    def is_numbered(self) -> bool:
        """Whether a launcher that is known numbers who speaks: within the job, or within the node."""
        return max(self.task, self.local) >= 0

    def around(self, inner: "Prefix") -> "Prefix":
        """What this prefix and another one behind it say together; the inner one is nearer to who speaks."""
        voices = [self.voice, inner.voice]
        if self.voice and _RANK.fullmatch(inner.voice):
            voices.pop()
        return Prefix(
            self.rank if inner.rank < 0 else inner.rank,
            self.task if inner.task < 0 else inner.task,
            self.local if inner.local < 0 else inner.local,
            inner.node or self.node,
            "/".join(filter(None, voices)),
            inner.pod or self.pod,
            self.pid if inner.pid < 0 else inner.pid,
        )


def head_of(line: bytes) -> bytes:
    """The prefix of a line, empty where it has none, without its stamps: those differ from line to line and tell nobody
    apart."""
    match = _HEAD.match(line)
    return match[1] if match else b""


def split_prefix(line: bytes) -> tuple[bytes, bytes]:
    """(prefix, body)."""
    match = _PREFIXES.match(line)
    end = match.end() if match else 0
    return line[:end], line[end:]


def are_of_one_logger(lines: Iterable[str]) -> bool:
    """Whether all lines have the head of one logger, at one level: it carries what another program prints, frames of
    tracebacks as well."""
    heads = list[str]()
    for line in lines:
        head = LOGGER.match(line)
        if head is None:  # mostly that of the first line: the others are not even read
            return False
        heads.append(_NUMBER.sub("0", head[0]))
    if len(heads) < _FEW_LINES:
        return False
    return len(set(heads)) == 1


@lru_cache(maxsize=16384)  # more than the ranks of a large job; heads with times in them never come again
def read_prefix(head: bytes) -> Prefix:
    """The fields of a prefix as found by ``split_prefix``. The innermost ``[rankN]`` wins."""
    fields, place = dict[str, str](), 0
    while place < len(head):
        match = _next_part(head, place)
        if match is None:
            break
        for name, value in match.groupdict().items():
            if value is not None:
                fields[name] = value.decode("latin-1")
        place = match.end()
    rank, task, local, pid = (int(fields.get(name, -1)) for name in ("rank", "task", "local", "pid"))
    node = fields.get("node") or fields.get("host") or fields.get("ip", "")
    return Prefix(rank, task, local, node, _voice(fields, rank), fields.get("pod", ""), pid)


def _next_part(head: bytes, place: int) -> re.Match[bytes] | None:
    for reader in _READERS:
        match = reader.match(head, place)
        if match and match.end() > place:
            return match
    return None


def _voice(fields: Mapping[str, str], rank: int) -> str:
    labels = []
    if "task" in fields:
        labels.append(f"t{fields['task']}")
    if "local" in fields:
        labels.append(f"d{fields['local']}")
    if "pid" in fields:
        labels.append(f"p{fields['pid']}@{fields.get('ip', fields.get('host', ''))}")
    elif "host" in fields and rank < 0:  # many ranks share a host
        labels.append(f"h{fields['host']}")
    if "pod" in fields:
        labels.append(f"k{fields['pod']}")
    if not labels and rank >= 0:
        return f"r{rank}"
    return "/".join(labels)


def with_opening(prefix: Prefix, body: bytes) -> Prefix:
    """The prefix with the node that opens a message, where the prefix names none."""
    if prefix.node:
        return prefix
    if body[:1] != b"[":
        return prefix
    for opening in _OPENINGS:
        if match := opening.match(body):
            return prefix._replace(node=match["node"].decode("latin-1"))
    return prefix
