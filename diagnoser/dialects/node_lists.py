"""Lists of nodes as schedulers and launchers write them: ``gpu-[01-03,08],login``."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any

import re2

NAMES_MAX = 4_096
"""Names that one text adds at most: hostile text could name millions."""
_DIMENSIONS = 4
"""Most brackets in one name."""
_ITEM = re.compile(r"(?>(?:[^,\[\]]|\[[0-9,-]+\])+)")
_BRACKETS = re.compile(r"\[([0-9,-]+)\]")

LIST = r"([A-Za-z][A-Za-z0-9_.-]{0,98}(?:\[[0-9,-]{1,500}\])?(?:[A-Za-z0-9_.,\[\]-]|[:/][0-9]+[,+]){0,500})"
"""A list within a larger pattern of RE2, as its only group: also ``gpu-1:8,gpu-2:8`` (slots) and ``b4/0+b5/0``."""
_KEYS = r"nodelist|node_list|nodes|hosts|hostlist|slurmd_nodename|batchhost|master_addr|exec_v?host"
PLACES = (
    rf"(?i)(?:{_KEYS})[\"']? {{0,2}}[:=] {{0,2}}[\"'<(]{{0,2}}{LIST}",
    rf"\s(?:-H|-w|-?-hosts?|--nodelist)[ =]{LIST}",  # mpirun, horovodrun, pdsh
    r"\bLSB_[A-Z_]{0,20}HOSTS=[\"']?([A-Za-z0-9_. -]+)",
    r"\bWORLD INFO DICT: \{([^}\n]+)\}",  # DeepSpeed
)
_NAME = re.compile(r"[A-Za-z](?>(?:[A-Za-z0-9_.-]|\[[0-9,-]{1,500}\])*)")
_NO_NAME = re.compile(
    r"(?i)localhost|none|null|true|false|unknown|std(?:out|err)|mlx[0-9]+_.*"
    r"|(?:ib|eth|bond|hsn|cxi|rdma|roce|cuda|rank|task|step)[-_]?[0-9]+"
    r"|(?:[a-z_-]*[-_]|v)?v?[0-9]+(?:\.[0-9]+)+|v[0-9]+|.*\.(?:py|cc?|cpp|cu|h|log|txt|json|ya?ml|sh|whl|so)"
)
"""Devices, ranks, versions and files."""


def numbers(ranges: str) -> Iterator[str]:
    """``01-03,7`` -> 01, 02, 03, 7, one at a time: a range may hold 10^9. Raises ValueError."""
    for part in ranges.split(","):
        bounds = part.split("-", 1)
        low, high = bounds[0], bounds[-1]
        if not (low.isdecimal() and high.isdecimal()):
            raise ValueError(f"{part[:40]!r} is no range")
        for number in range(int(low), int(high) + 1):
            yield str(number).zfill(len(low))


def expanded(hostlist: str) -> Iterator[str]:
    """``gpu-[01-03,7],r[1-2]n[1-2]`` -> its names in order, one at a time: the caller takes as many as it can hold.
    Raises ValueError at what is no list of nodes."""
    place = 0
    while place < len(hostlist):
        item = _ITEM.match(hostlist, place)
        if item is None or hostlist[item.end() : item.end() + 1] not in ("", ","):
            raise ValueError(f"{hostlist[:100]!r} is no list of nodes")
        parts = _BRACKETS.split(item[0])
        if len(parts) > 2 * _DIMENSIONS + 1:
            raise ValueError(f"{item[0][:100]!r} has too many brackets")
        yield from _joined(parts)
        place = item.end() + 1


def _joined(parts: list[str]) -> Iterator[str]:
    """parts: text and ranges in turn, text first and last."""
    head, *rest = parts
    if not rest:
        yield head
        return
    for number in numbers(rest[0]):
        for tail in _joined(rest[1:]):
            yield f"{head}{number}{tail}"


@cache
def _compiled(place: str) -> Any:
    """At first need: each allows for hundreds of characters, which takes RE2 milliseconds."""
    return re2.compile(place)


def names_at(text: str, places: Iterable[str]) -> Iterator[str]:
    """Names in the lists that stand at these places of a text.

    places: patterns of RE2, each with the list as its first group.
    """
    for place in places:
        for match in _compiled(place).finditer(text):
            yield from names(match[1])


def names(listed: str) -> Iterator[str]:
    """``gpu-[1-2]:8,login-1`` -> gpu-1, gpu-2, login-1, without slots and quotes; one name is a list too. What is no
    list is passed over."""
    for match in _NAME.finditer(listed):
        try:
            yield from expanded(match[0].rstrip("._-"))
        except ValueError:
            continue


def is_host_name(name: str) -> bool:
    """Whether it can be a host's, and no device, rank, version or file."""
    return _NO_NAME.fullmatch(name) is None


def has_digit(name: str) -> bool:
    return any(map(str.isdecimal, name))


def listed_nodes(text: str) -> list[str]:
    """Nodes in lists that ``text`` prints, as ``Nodes: gpu-[01-03,08]``: a silent node may stand only there."""
    named = dict.fromkeys(islice(filter(has_digit, names_at(text, PLACES)), NAMES_MAX))
    return list(filter(is_host_name, named))
