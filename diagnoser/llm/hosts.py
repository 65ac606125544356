"""Names of machines that a model may see: each node and address keeps its identity, and none its name.

The map lives as long as one consultation, so that nothing can be learned by collecting questions.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice, pairwise
from typing import Any

import re2

_ADDRESS = re2.compile(
    r"\b(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)\b"
    r"|\b(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}\b"
    r"|\b(?:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3})(?::[0-9a-f]{1,4}){0,6}::(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6})?"
)
_WORD = re.compile(r"[\w.-]+")
_RUN = re.compile(r"[^\W_]+")
_NO_HOST = frozenset({"0.0.0.0", "127.0.0.1", "255.255.255.255"})  # noqa: S104 - compared, not bound

_NAME = r"([A-Za-z](?:[A-Za-z0-9_.-]{0,98}[A-Za-z0-9])?)"
_LIST = r"([A-Za-z][A-Za-z0-9_.-]{0,98}(?:\[[0-9,-]{1,500}\])?[A-Za-z0-9_.,\[\]-]{0,500})"
_CLOCK = r"(?:[A-Z][a-z]{2} {1,2}[0-9]{1,2} [0-9:]{8}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.,]{8,20}(?:Z|[+-][0-9:]{4,6})?)"
_DAEMON = (
    r"(?:kernel|systemd|slurm|nvidia|nv-|dcgm|dockerd|containerd|kubelet|crio|sshd|mcelog|rasdaemon|munged|lustre|smartd"
    r"|ipmievd|pbs_mom|cron|chronyd|NetworkManager|rsyslogd|opensm|ibacm|audit)"
)
_PLACES: tuple[Any, ...] = tuple(
    re2.compile(pattern)
    for pattern in (
        rf"{_CLOCK} {_NAME} {_DAEMON}[A-Za-z0-9_.()@-]{{0,64}}(?:\[[0-9]{{1,10}}\])?:",  # syslog
        rf"[A-Z][a-z]{{2}} {{1,2}}[0-9]{{1,2}} [0-9:]{{8}} {_NAME} [A-Za-z0-9_./-]{{1,64}}\[[0-9]{{1,10}}\]:",
        rf"\bhost {{2,12}}: {_NAME}",  # torchrun's table of failures
        rf"\bslurmstepd-{_NAME}:",
        rf"\*\*\* (?:JOB|STEP) [^\s]{{1,40}} ON {_NAME}",
        rf"\bsrun: error: {_LIST}: ",
        rf"(?:^|[\s>|]){_NAME}:[0-9]{{1,10}}:[0-9]{{1,10}} \[[0-9]{{1,3}}\]",  # NCCL
        rf"<[0-9]{{1,5}}\*{_NAME}>",  # LSF
        rf"(?i)\bhosts?(?:\(s\))? {{0,2}}<{_NAME}>",
        r"\bhost(?:name)?[\"']?[:=] ?[\"']?([A-Za-z][A-Za-z0-9-]{0,62}(?:\.[A-Za-z0-9-]{1,63}){2,6})",
        rf"\[[A-Za-z0-9_-]{{1,32}}@{_NAME} [^\]\n]{{1,200}}\][#$]",  # a shell's prompt
        r"\b(ip-[0-9]{1,3}(?:-[0-9]{1,3}){3}(?:\.[A-Za-z0-9-]{1,63}){0,5})\b",
    )
)
"""Where nothing but the name of a host stands."""
_NODE_LIST = (
    rf"(?i)(?:nodelist|node_list|nodes|hosts|hostlist|slurmd_nodename|batchhost|master_addr|exec_v?host)[\"']?"
    rf" {{0,2}}[:=] {{0,2}}[\"'<(]{{0,2}}{_LIST}"
)
_LIKELY: tuple[Any, ...] = tuple(
    re2.compile(pattern)
    for pattern in (
        rf"(?i)\b(?:host(?:name)?|node(?:name|_ip)?|server)[\"']?(?: {{0,2}}[:=] {{0,2}}| {{1,2}})[\"'<(]?{_NAME}",
        rf"(?i)\b(?:failure|failed|running|down|process|crash|died|lost) (?:on|at) {_NAME}",
        r"\bLSB_[A-Z_]{0,20}HOSTS=[\"']?([A-Za-z0-9_. -]+)",
        rf"\[{_NAME}\]:[0-9]{{2,5}}\b",
        rf"\b[a-z]{{2,8}}://{_NAME}:[0-9]{{2,5}}\b",
        _NODE_LIST,
    )
)
"""Where other words stand as well: what has no digit there is none."""
_LISTED = re2.compile(_NODE_LIST)
_BRACKETS = re2.compile(r"([A-Za-z][A-Za-z0-9_.-]{0,98})\[([0-9,-]{1,500})\]")
_LIST_NAME = re2.compile(rf"{_NAME}")
_NO_NAME = re2.compile(
    r"(?i)localhost|none|null|true|false|unknown|std(?:out|err)|mlx[0-9]+_.*"
    r"|(?:ib|eth|bond|hsn|cxi|rdma|roce|cuda|rank|task|step)[-_]?[0-9]+"
    r"|(?:[a-z_-]*[-_]|v)?v?[0-9]+(?:\.[0-9]+)+|v[0-9]+|.*\.(?:py|cc?|cpp|cu|h|log|txt|json|ya?ml|sh|whl|so)"
)
"""Devices, ranks, versions and files."""
_NAMES_MAX = 4_096
"""Names that one text or one bracketed list adds at most: hostile text could name millions."""
_LISTS_MAX = 64
"""Different bracketed lists that are told apart; what follows is masked without its numbers."""


class HostMap:
    """nodes: every known node of the job. text: what will be shown, so that no alias clashes with a word in it, and
    that a host which one line gives away is masked in all of them.

    prefix: what every alias begins with.
    """

    def __init__(self, nodes: Iterable[str], text: str = "") -> None:
        names = sorted({node for node in nodes if node and not node.isdecimal()})
        named = [name for name in hosts_in(text) if name not in names]
        prefixes = chain(("host-", "machine-"), (f"host{number}-" for number in count()))
        taken = [text, *names, *named]
        self.prefix = next(word for word in prefixes if not any(word in name for name in taken))
        self._aliases: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._lengths: list[int] = []
        self._heads: set[str] = set()
        self._lists: dict[str, str] = {}
        for name in (*names, *named):
            self._alias(name)
        self._shown = re.compile(rf"{re.escape(self.prefix)}\d+(?!\d)")

    def hide(self, text: str) -> str:
        """``text`` with aliases for nodes, addresses, and what stands where only a host can."""
        for name in hosts_in(text):
            self._alias(name)
        if self._aliases:
            text = str(_BRACKETS.sub(self._listed, text))
            text = _WORD.sub(lambda match: self._hidden(match.group()), text)
        return str(_ADDRESS.sub(self._address, text))

    def show(self, text: str) -> str:
        """``text`` of the model with the true names; an alias that was never handed out stays as it is."""
        return self._shown.sub(lambda match: self._names.get(match.group(), match.group()), text)

    def _alias(self, name: str) -> str:
        """The alias of a name, a new one where it has none. A host's short name has the alias of its full one."""
        if alias := self._aliases.get(name):
            return alias
        short = name.partition(".")[0]
        known = self._aliases.get(short, "")
        if self._names.get(known) == short:
            return known
        alias = f"{self.prefix}{len(self._names) + 1}"
        self._names[alias] = name
        for form in (name, short) if _has_digit(short) and not short.isdecimal() else (name,):
            self._aliases.setdefault(form, alias)
            self._heads.add(form.rstrip("0123456789"))
            if len(form) not in self._lengths:
                self._lengths = sorted((*self._lengths, len(form)), reverse=True)
        return alias

    def _hidden(self, word: str) -> str:
        """A word with the names in it replaced, also between other parts, as in ``slurmstepd-gpu-1``: one bare
        occurrence would tell which host an alias stands for."""
        parts: list[str] = []
        done = 0
        for run in _RUN.finditer(word):
            start = run.start()
            if start >= done and (name := self._name_at(word, start)):
                parts += word[done:start], self._aliases[name]
                done = start + len(name)
        return "".join((*parts, word[done:]))

    def _name_at(self, word: str, start: int) -> str | None:
        """The longest name that begins there and ends with a part of the word. One without a digit is a common word,
        so it must be the whole word, or its first labels before the site's domain."""
        for length in self._lengths:
            name, follows = word[start : start + length], word[start + length : start + length + 1]
            if name not in self._aliases or follows.isalnum():
                continue
            if _has_digit(name) or (start == 0 and follows in ("", ".")) or word[:start] == "slurmstepd-":
                return name
        return None

    def _listed(self, match: Any) -> str:
        """``gpu-[1-3]``, where it holds a known name, as numbers of aliases."""
        listed = str(match[0])
        if match[1] not in self._heads:
            return listed
        if listed not in self._lists:
            if len(self._lists) == _LISTS_MAX:
                return f"{self.prefix}[]"
            names = _expanded(match[1], match[2])
            known = any(name in self._aliases for name in names)
            numbers = sorted(int(self._alias(name)[len(self.prefix) :]) for name in names) if known else []
            self._lists[listed] = f"{self.prefix}[{_ranges(numbers)}]" if numbers else listed
        return self._lists[listed]

    def _address(self, match: Any) -> str:
        address = str(match.group())
        if address in _NO_HOST:
            return address
        return self._alias(address)


def hosts_in(text: str) -> list[str]:
    """Hosts that ``text`` names in places of their own: syslog prefixes, reports of launchers and schedulers, their
    lists. Each once, in an order that depends on the text alone. Versions, devices and files are none."""
    names = chain(
        (name for place in _PLACES for match in place.finditer(text) for name in _names(match[1])),
        (name for place in _LIKELY for match in place.finditer(text) for name in _names(match[1]) if _has_digit(name)),
    )
    return [name for name in dict.fromkeys(islice(names, _NAMES_MAX)) if not _NO_NAME.fullmatch(name)]


def listed_nodes(text: str) -> list[str]:
    """Nodes in lists that ``text`` prints, as ``Nodes: gpu-[01-03,08]``: a silent node may stand only there."""
    listed = (name for match in _LISTED.finditer(text) for name in _names(match[1]) if _has_digit(name))
    return [name for name in dict.fromkeys(islice(listed, _NAMES_MAX)) if not _NO_NAME.fullmatch(name)]


def _names(listed: str) -> Iterator[str]:
    """``gpu-[1-2],login-1`` -> gpu-1, gpu-2, login-1; one name is a list too."""
    for match in _BRACKETS.finditer(listed):
        yield from _expanded(match[1], match[2])
    for match in _LIST_NAME.finditer(_BRACKETS.sub("", listed)):
        yield match[1]


def _expanded(head: str, ranges: str) -> list[str]:
    names: list[str] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            continue
        stop = min(int(last or first), int(first) + _NAMES_MAX - len(names) - 1)
        names += (f"{head}{number:0{len(first)}d}" for number in range(int(first), stop + 1))
    return names


def _ranges(numbers: list[int]) -> str:
    """1, 2, 3, 7 -> ``1-3,7``."""
    starts = [numbers[0], *(after for before, after in pairwise(numbers) if after != before + 1)]
    ends = [*(before for before, after in pairwise(numbers) if after != before + 1), numbers[-1]]
    return ",".join(str(start) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True))


def _has_digit(name: str) -> bool:
    return any(map(str.isdecimal, name))


def without_addresses(text: str) -> str:
    """``text`` as it may leave the site: a chat or a receiver of webhooks has no use for addresses in log lines."""
    return str(_ADDRESS.sub(lambda match: match.group() if match.group() in _NO_HOST else "<address>", text))
