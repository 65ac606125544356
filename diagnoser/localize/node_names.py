"""One machine has one name: what the lines call it, brought to the name that people and schedulers use.

A machine is printed as its short and its full name, as an address, as ``localhost``, or by the id of a container that
runs on it. The names are taken as the log shows them; nothing is looked up.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType

from diagnoser.dialects import mentions
from diagnoser.dialects.mentions import Tells
from diagnoser.model import Evidence
from diagnoser.model.choice import only

_THIS_MACHINE = re.compile(
    r"(?i)localhost\d?(?:\.localdomain\d?)?|ip6-localhost|127(?:\.\d{1,3}){3}|::1|::|0\.0\.0\.0"
    r"|[(<\[]?(?:none|null|unknown|undefined)[)>\]]?|n/a|-"
)
"""What a process calls the machine it runs on, whichever that is, and what stands where a name is missing."""
_LOOPBACK = re.compile(r"(?i)(?<![\w.:-])(?:127(?:\.\d{1,3}){3}|::1|(?:ip6-)?localhost)(?!\w)")
"""An address within the machine, in a text."""
_CONTAINER = re.compile(r"(?=\w{0,63}\d)[0-9a-f]{12}(?:[0-9a-f]{52})?")
"""The id of a container, which is its host name unless it is given another."""
_ADDRESS = re.compile(r"[\d.]+|[\da-fA-F]{0,4}(?::[\da-fA-F.]{0,15}){2,8}")
_IN_NAME = re.compile(r"ip-(\d{1,3})-(\d{1,3})-(\d{1,3})-(\d{1,3})(?:\..+)?")
"""A name that is made of the machine's address, as clouds give it."""


class NodeNames:
    """The names of a log's machines.

    evidence: the log.
    registered: names that the job was registered with; they come first.
    placed: names that tables and lists of the launcher show.
    pods: pod -> node that it was assigned to.
    """

    def __init__(
        self,
        evidence: Evidence,
        registered: Collection[str] = (),
        placed: Iterable[str] = (),
        pods: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._evidence, self._pods = evidence, pods
        self._registered = frozenset(filter(is_machine, registered))
        self._placed = frozenset(filter(is_machine, placed))

    def canonical(self, name: str | None) -> str | None:
        """The machine's name; None where only the machine itself knows which one it is."""
        if not name:
            return None
        name = self._pods.get(name, name)
        if _THIS_MACHINE.fullmatch(name):
            return self._only
        if _CONTAINER.fullmatch(name):
            return self._only or name
        if _ADDRESS.fullmatch(name):
            return self.at(name) or name
        return self._by_label.get(_label(name), name)

    def at(self, address: str) -> str | None:
        """The machine of an address; None where no line shows both."""
        return self._by_address.get(address)

    def of_ranks(self, nodes: Mapping[int, str]) -> dict[int, str]:
        """rank -> canonical name, without the ranks whose machine has none."""
        named = ((rank, self.canonical(node)) for rank, node in nodes.items())
        return {rank: node for rank, node in named if node}

    @cached_property
    def _nodes(self) -> frozenset[str]:
        """The nodes that lines are from."""
        return frozenset(line.node for line in self._evidence.lines)

    @cached_property
    def _printed(self) -> frozenset[str]:
        """The names of machines that the log shows, as they are printed."""
        names = set(self._nodes)
        for line in self._evidence.lines:
            for tells in (Tells.NODE, Tells.HOST):
                names.update(mentions.named(tells, line.text))
        shown = filter(is_machine, names)
        return frozenset(shown) | self._placed

    @cached_property
    def _by_label(self) -> dict[str, str]:
        """First label of a host name -> the machine's name. Two full names that begin alike are two machines."""
        named = self._registered | self._placed | set(filter(is_machine, self._nodes))
        by_label = defaultdict[str, set[str]](set)
        for name in named:
            by_label[_label(name)].add(name)
        machines = {}
        for label, names in by_label.items():
            registered = only(names & self._registered)
            full = {name for name in names if "." in name}
            if registered:
                machines[label] = registered
            elif len(full) <= 1:
                machines[label] = min(names, key=len)
        return machines

    @cached_property
    def _by_address(self) -> dict[str, str]:
        """Address -> name, where a line shows both or the name is made of the address."""
        named = {}
        for name in sorted(self._registered | self._printed):
            match = _IN_NAME.fullmatch(name)
            if match:
                named[".".join(match.groups())] = name
        for address, name in _addresses(self._evidence).items():
            named.setdefault(address, self._by_label.get(_label(name), name))
        return named

    @cached_property
    def _only(self) -> str | None:
        """The only machine that the log, or else the registration, names."""
        label = only(set(map(_label, self._printed or self._registered)))
        if label is None:
            return None
        return min((name for name in self._printed | self._registered if _label(name) == label), key=len)


def is_machine(name: str) -> bool:
    """Whether it is a machine's own name: no address, no container, no device, and not just "this one"."""
    if not name:
        return False
    if mentions.is_device(name):
        return False
    return not any(form.fullmatch(name) for form in (_THIS_MACHINE, _CONTAINER, _ADDRESS))


def names_loopback(text: str) -> bool:
    """Whether a text names an address that never leaves the machine."""
    return _LOOPBACK.search(text) is not None


def _addresses(evidence: Evidence) -> dict[str, str]:
    """Address -> node, where lines show both; the node that most lines give."""
    votes = defaultdict[str, Counter[str]](Counter)
    for line in evidence.lines:
        for address, node in mentions.node_addresses(line.body):
            if _is_shared(address, node):
                votes[address][node] += 1
    return {address: counts.most_common(1)[0][0] for address, counts in votes.items()}


def _is_shared(address: str, node: str) -> bool:
    """Whether others know a machine by these: none of them means "this one"."""
    return is_machine(node) and not _THIS_MACHINE.fullmatch(address)


def _label(name: str) -> str:
    return name.partition(".")[0].lower()
